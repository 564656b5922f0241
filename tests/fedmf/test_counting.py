import numpy as np
import pytest
from scipy.optimize import brentq

from fedmf.accounting import finite_precision
from fedmf.counting import OnlineLearner, clip, continual_counter, online_learner
from fedmf.errors import SettingError
from fedmf.randomness import SecretKey
from oracles import gaussian


def key(seed=0):
    return SecretKey.reproducible(seed)


def released(counter, values, seed=0):
    state, sums = counter.start(key=key(seed)), []
    for value in values:
        output, state = counter.feed(value, state)
        sums.append(output)
    return np.array(sums)


@pytest.mark.parametrize(("epsilon", "dimension"), [(0.1, 1), (5.0, 1), (1.0, 10**9)])
def test_noise_is_the_least_that_keeps_the_promise_of_which_floating_point_is_a_part(epsilon, dimension):
    """Epsilon less 2 a at (1 - 2 a) delta is what the noise is calibrated to; of long vectors 2 a shows."""
    counter = continual_counter(500, epsilon=epsilon, delta=1e-6, dimension=dimension)
    given = {"dimension": dimension, "rounds": 500, "cohort_size": 1, "delta": 1e-6}
    price = finite_precision(
        [counter.factorization.precision], noise_multiplier=counter.noise_multiplier, **given
    ).a
    mu = brentq(lambda m: gaussian(epsilon - 2 * price, m) - 1e-6 * (1 - 2 * price), 1e-3, 50)
    assert price > 1e-5 or dimension == 1
    assert counter.noise_multiplier == pytest.approx(1 / mu, rel=1e-6)


@pytest.mark.parametrize("family", ["optimal", "sqrt_toeplitz", "binary_tree"])
def test_errors_have_the_stated_standard_deviation(family):
    """20,000 coordinates a round: each variance within 5 of its deviation sqrt(2/n); false alarm below 1e-5.

    Half and twice the noise, as from a forgotten sensitivity, would be far outside.
    """
    counter = continual_counter(16, epsilon=1.0, delta=1e-5, norm=2.0, dimension=20_000, family=family)
    rows = released(counter, np.zeros((16, 20_000)))
    assert np.abs((rows.var(axis=1) / counter.stddev**2) - 1).max() < 5 * np.sqrt(2 / 20_000)


def test_sensitivity_of_what_is_released_is_covered():
    """The whitened change that one clipped vector makes to all releases is at most 1 / noise multiplier."""
    counter = continual_counter(12, epsilon=1.0, delta=1e-5, norm=3.0)
    B, _ = counter.factorization.materialize()
    sigma = counter.noise_multiplier * counter.factorization.sensitivity * 3.0
    for position in range(12):
        change = np.zeros(12)
        change[position:] = 3.0
        assert np.linalg.norm(np.linalg.solve(sigma * B, change)) <= 1 / counter.noise_multiplier * (1 + 1e-9)


def test_sums_are_the_exact_ones_plus_noise_that_does_not_depend_on_them():
    counter = continual_counter(10, epsilon=1.0, delta=1e-6)
    bits = np.array([1, 0, 1, 1, 0, 0, 1, 1, 1, 0.0])
    noise = released(counter, np.zeros(10))
    np.testing.assert_allclose(released(counter, bits) - noise, np.cumsum(bits)[:, None], atol=1e-9)


def test_error_bound_covers_all_rounds_at_once():
    """Of 600 runs at most 5 % may leave the bound: 570 are expected inside, below 540 has chance 1e-7."""
    counter = continual_counter(64, epsilon=1.0, delta=1e-6, dimension=600)
    bound = continual_counter(64, epsilon=1.0, delta=1e-6).error_bound(failure=0.05)
    errors = np.abs(released(counter, np.zeros((64, 600))))
    assert (errors.max(axis=0) <= bound).sum() >= 570
    assert (errors.max(axis=0) > bound / 2).sum() > 100, "the bound is of the right size"


def test_feeding_is_pure_depends_on_the_key_and_ends_with_the_last_round():
    counter = continual_counter(2, epsilon=1.0, delta=1e-6)
    state = counter.start(key=key())
    first, following = counter.feed(1, state)
    again, _ = counter.feed(1, state)
    np.testing.assert_array_equal(first, again)
    assert (first != counter.feed(1, counter.start(key=key(1)))[0]).all()
    _, last = counter.feed(1, following)
    with pytest.raises(SettingError, match="step is 2"):
        counter.feed(1, last)


def test_long_vectors_are_clipped_and_broken_ones_count_as_zero():
    np.testing.assert_allclose(clip([3.0, 4.0], 2, 1.0), [0.6, 0.8])
    np.testing.assert_allclose(clip([1e300, 1e300], 2, 1.0), [0.5**0.5, 0.5**0.5])
    np.testing.assert_array_equal(clip([0.3, 0.4], 2, 1.0), [0.3, 0.4])
    for broken in (np.nan, np.inf, -np.inf):
        np.testing.assert_array_equal(clip([1.0, broken], 2, 1.0), 0)
    with pytest.raises(SettingError, match="shape"):
        clip([1.0], 2, 1.0)


def test_bad_settings_are_refused():
    given = {"epsilon": 1.0, "delta": 1e-6}
    wrong = {"epsilon": 0.0, "delta": 1.0, "norm": 0.0, "dimension": 0, "family": "magic"}
    for changed, said in (
        *(({name: value}, f"{name} is {value!r}") for name, value in wrong.items()),
        ({"epsilon": 21.0}, "epsilon is 21; a counter claims no privacy above 20"),
        ({"rounds": 2000, "dimension": 10**12}, r"it must add at most 0\.001"),
    ):
        with pytest.raises(SettingError, match=said):
            continual_counter(**({"rounds": 5} | given | changed))
    with pytest.raises(SettingError, match="radius is 0"):
        online_learner(5, dimension=1, lipschitz=1.0, radius=0.0, **given)


def learner_for(rounds=200, family="optimal"):
    return online_learner(
        rounds, dimension=3, lipschitz=1.0, radius=2.0, epsilon=2.0, delta=1e-6, family=family
    )


def test_regret_stays_below_its_bound():
    """The theorem bounds the expectation; here the mean over 20 runs of linear losses with a drifting sign."""
    learner = learner_for()
    rng = np.random.default_rng(8)
    gradients = rng.normal(size=(200, 3)) + np.array([0.5, 0.0, 0.0])
    gradients /= np.maximum(1, np.linalg.norm(gradients, axis=1))[:, None]
    best = 2.0 * np.linalg.norm(gradients.sum(0))
    regrets = []
    for seed in range(20):
        point, state = learner.start(key=key(seed))
        loss = 0.0
        for gradient in gradients:
            loss += gradient @ point
            point, state = learner.step(gradient, state)
            assert np.linalg.norm(point) <= 2.0 + 1e-12
        regrets.append(loss + best)
    assert 0 < np.mean(regrets) < learner.regret_bound()


def test_the_bound_is_its_formula_and_least_at_the_best_learning_rate():
    learner = learner_for()
    counter, eta = learner.counter, learner.learning_rate
    noise = counter.noise_multiplier * counter.factorization.root_loss
    by_hand = 4 / (2 * eta) + eta * 200 / 2 + eta * np.sqrt(3 * 200) * noise
    assert learner.regret_bound() == pytest.approx(by_hand, rel=1e-12)
    for other in (0.9 * eta, 1.1 * eta):
        assert OnlineLearner(counter, 2.0, other).regret_bound() > by_hand

"""What finite precision adds to epsilon: the formula, that no release exceeds it, and where it is counted or refused."""

import math
from dataclasses import replace

import numpy as np
import pytest
from mpmath import mp, mpf

from fedmf.accounting import EpochEvent, Ledger, finite_precision, privacy_spent
from fedmf.accounting.floating_point import BETA
from fedmf.clip_norm import AdaptiveClipping
from fedmf.errors import SettingError
from fedmf.mechanisms import design, momentum
from fedmf.mechanisms.noise import next_noise, released
from fedmf.mechanisms.streams.protocol import feed
from fedmf.normals import STEP
from fedmf.randomness import SecretKey
from plans import small_plan, stated

RUN = {"dimension": 10**6, "rounds": 2048, "cohort_size": 100, "noise_multiplier": 1.0, "delta": 1e-5}


def slow_price(epochs, *, dimension, rounds, cohort_size, noise_multiplier, delta):
    """The theorem's `a` at 40 digits, written out from its statement; `delta` large enough to play no part."""
    mp.dps = 40
    u, s, d, z = mpf(2) ** -53, mpf(2) ** -44, mpf(dimension), mpf(noise_multiplier)
    each = [
        mp.sqrt(d) * s * mpf(shares) + (mp.sqrt(d) + 14) * mpf(rounding) + 4 * u * rounds * cohort_size / z
        for shares, rounding in epochs
    ]
    mu = mp.sqrt(sum(x**2 for x in each)) + mp.sqrt(len(epochs)) * 2 * 540 * u * cohort_size / z
    mu_q = mp.sqrt(d * rounds * len(epochs)) * mpf(2) ** -45
    return sum(m**2 / 2 + m * mp.sqrt(2 * mp.log(1 / mpf("1e-30"))) for m in (mu, mu_q))


@pytest.mark.parametrize(("family", "rounds", "twice"), [
    ("independent", 2048, 3.2e-6), ("optimal", 64, 2.6e-7), ("optimal", 2048, 1.4e-5), ("blt", 2048, 1.4e-5),
    ("binary_tree", 2048, 1.5e-5), ("sqrt_toeplitz", 2048, 4.2e-4),
])  # fmt: skip
def test_the_price_of_a_million_parameters_is_that_of_the_statement(family, rounds, twice):
    mechanism = design(family, momentum(rounds, 0.9))
    given = {**RUN, "rounds": rounds}
    price = finite_precision([mechanism.precision] * 2, **given)
    exact = float(slow_price([mechanism.precision] * 2, **given))
    assert exact <= price.a <= 1.1 * exact  # two digits, rounded up
    assert 2 * finite_precision([mechanism.precision], **given).a == pytest.approx(twice, rel=0.1)
    shares = sum(abs(mechanism.stream.own(step)) for step in range(rounds))
    assert mechanism.precision[0] == pytest.approx(mechanism.sensitivity * shares)


@pytest.mark.parametrize(
    "family", ["independent", "optimal", "sqrt_toeplitz", "binary_tree", "optimal_dense"]
)
def test_no_release_moves_the_conditional_means_further_than_is_priced(family):
    """C n/sigma less the fresh rows is what rounding has moved: lattice, streams and sum together, in extended precision.

    A mean that is kept or added in float32 moves them much further.
    """
    rounds, d, sigma = 64, 256, 1.3
    mechanism, key = design(family, momentum(rounds, 0.9)), SecretKey.reproducible(3)
    stream, rng = mechanism.stream, np.random.default_rng(0)
    emitted = feed(stream, np.eye(rounds)).astype(np.longdouble)
    totals = rng.normal(scale=50, size=(rounds, d))

    def moved(change):
        state, rows, fresh = stream.init(d), [], []
        for total in totals:
            row, state = next_noise(stream, state, key, dimension=d)
            row = change(row)
            step = np.longdouble(float(sigma) * row.own * STEP)
            places = np.rint(2 * released(total, row, sigma, np.float64).astype(np.longdouble) / step) / 2
            rows.append((step * places - total) / np.longdouble(sigma))
            fresh.append(row.fresh * np.longdouble(STEP))
        solved = np.zeros((rounds, d), np.longdouble)  # C x, by substitution in the stream's own matrix
        for t in range(rounds):
            solved[t] = (rows[t] - emitted[t, :t] @ solved[:t]) / emitted[t, t]
        return float(np.linalg.norm((solved - np.array(fresh)).astype(float)))

    norms = np.linalg.norm(totals, axis=1).max()
    price = {"dimension": d, "rounds": rounds, "cohort_size": 1, "delta": 0.5}
    price["noise_multiplier"] = sigma / norms / mechanism.sensitivity
    a = finite_precision([mechanism.precision], **price).a
    root = math.sqrt(2 * math.log(1 / BETA))
    mu = math.sqrt(root**2 + 2 * a) - root  # A(mu) = a
    assert mu / 500 < moved(lambda row: row) < mu
    broken = moved(lambda row: replace(row, mean=row.mean.astype(np.float32).astype(float)))
    assert broken > 10 * mu or family == "independent"


def test_epsilon_is_that_of_real_numbers_at_a_smaller_delta_and_the_price_twice():
    event = EpochEvent(0.5, 0.1, 0.1)
    for target in ({}, {"adjacency": "replace"}, {"accountant": "tight"}):
        plain = privacy_spent(event, 3, delta=1e-5 * (1 - 2e-4), **target)
        found = privacy_spent(event, 3, delta=1e-5, precision=1e-4, **target)
        assert found.epsilon == plain.epsilon + 2e-4
        assert found.epsilon_rdp == plain.epsilon_rdp + 2e-4
        assert (found.delta, found.order) == (1e-5, plain.order)
        assert Ledger((event,) * 3).spent(delta=1e-5, precision=1e-4, **target) == found
    assert privacy_spent(event, 0, delta=1e-5, precision=1e-4).epsilon == 0


def test_a_target_is_met_with_the_price_and_the_statement_holds_it():
    plan = small_plan(epsilon=2.0, noise_multiplier=None, dimension=10**6, rounds_per_epoch=512, clients=2048)
    price = plan.floating_point.a
    real = privacy_spent(plan.epoch_event, 2, delta=1e-5 * (1 - 2 * price)).epsilon
    assert 2.0 - 1e-7 < real + 2 * price == plan.spent().epsilon <= 2.0
    assert real < 2.0 - 1.9 * price
    said = stated(plan)
    assert said.epsilon == plan.spent().epsilon
    assert said.to_dict()["floating_point"] == {"a": price, "beta": BETA, "phi": plan.floating_point.phi}
    assert f"a = {price:.2g}: 2 a is contained in epsilon" in said.paragraph()
    assert small_plan(noise_multiplier=0).floating_point is None


def test_a_run_whose_rounding_costs_too_much_is_refused_where_an_epsilon_is_claimed():
    long = {"family": "sqrt_toeplitz", "rounds_per_epoch": 2048, "clients": 6144, "epochs": 1}
    large = {**long, "dimension": 4 * 10**9}
    with pytest.raises(SettingError, match=r"adds 0\.00\d+ to epsilon; it must add at most 0.001"):
        small_plan(**large)
    for epochs in (
        1,
        400,
    ):  # a budget may end a run after epochs of which an epsilon is claimed, whatever was planned
        with pytest.raises(SettingError, match=r"it must add at most 0\.001"):
            small_plan(**{**large, "epochs": epochs}, noise_multiplier=2.0, max_epsilon=8.0)
    short = small_plan(**long, dimension=4 * 10**8)
    with pytest.raises(SettingError, match=r"it must add at most 0\.001"):
        short.extended(1, short.factorization)
    claimless = small_plan(**large, noise_multiplier=0.01)
    assert claimless.floating_point is None
    assert claimless.spent(1).epsilon == privacy_spent(claimless.epoch_event, 1, delta=1e-5).epsilon > 20


def test_what_a_client_adds_to_the_sum_is_priced_where_noise_is_small():
    """The terms in n/z, which the other tests do not see: 2 h n/z an epoch, and 4 u T n/z; and the law of the draws of all epochs."""
    given = {**RUN, "cohort_size": 10**6, "noise_multiplier": 1e-2}
    for rounds, dimension in ((1, 1), (2000, 1), (2000, 10**16)):
        given |= {"rounds": rounds, "dimension": dimension}
        exact = float(slow_price([(1.0, 0.0)] * 3, **given))
        found = finite_precision([(1.0, 0.0)] * 3, **given).a
        assert exact <= found <= 1.1 * exact
        assert finite_precision([(1.0, 0.0)] * 3, **given | {"delta": 1e-22}).a > found


def test_a_ledger_with_less_noise_is_priced_with_it():
    plan = small_plan(cohort_size=1000, clients=4000, noise_multiplier=1e-3, delta=0.4)
    less = replace(plan.epoch_event, noise_multiplier=plan.noise_multiplier / 20)
    ledger, own = Ledger((plan.epoch_event, less)), replace(plan, noise_multiplier=less.noise_multiplier)
    assert own.precision > plan.precision
    assert plan.spent_on(ledger) == own.spent_on(ledger) == ledger.spent(delta=0.4, precision=own.precision)


def test_a_ledger_with_less_noise_on_a_count_is_priced_with_it():
    """Also where the plan itself has no count."""
    plan = small_plan(cohort_size=1000, clients=4000, delta=0.4, clipping=AdaptiveClipping(0.5, noise=1.0))
    own = plan.with_count_noise(1e-3)
    ledger = Ledger((plan.epoch_event, own.epoch_event))
    assert own.precision > 10 * plan.precision
    priced = ledger.spent(delta=0.4, precision=own.precision)
    assert (
        replace(plan, clipping=None).spent_on(ledger)
        == plan.spent_on(ledger)
        == own.spent_on(ledger)
        == priced
    )


def test_a_count_is_one_draw_more_in_an_epoch():
    """Of one coordinate in one round: twice the squares. Of far more clients than noise: what float64 makes of their number."""
    given = {"dimension": 1, "rounds": 1, "noise_multiplier": 1e9, "delta": 1e-5}
    one, two, many = (
        finite_precision([(1.0, 0.0)], cohort_size=n, count_noise=noise, **given).a
        for n, noise in ((1, None), (1, 1e9), (10**8, 1.0))
    )
    assert two / one == pytest.approx(2**0.5, rel=0.05)
    assert many == pytest.approx(4 * 2.0**-53 * 10**8 * math.sqrt(2 * math.log(1e30)), rel=0.05)

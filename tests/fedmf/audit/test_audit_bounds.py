import itertools
import math

import pytest
from scipy.optimize import brentq
from scipy.stats import binom

from fedmf.audit.bounds import epsilon_lower_bound, one_run_lower_bound, one_run_p_value
from fedmf.errors import SettingError


def test_the_bound_is_that_of_clopper_and_pearson_solved_for_the_rates():
    low = brentq(lambda p: binom.sf(28, 30, p) - 0.025, 1e-12, 1)
    high = brentq(lambda p: binom.cdf(7, 30, p) - 0.025, 0, 1 - 1e-12)
    found = epsilon_lower_bound(29, 30, 7, 30, delta=0.01, confidence=0.95)
    assert found == pytest.approx(math.log((low - 0.01) / high), rel=1e-9)


def exceeding(epsilon, delta, true_rate, false_rate, trials=60):
    """The exact probability that the bound exceeds epsilon, by enumeration."""
    return sum(
        binom.pmf(k, trials, true_rate) * binom.pmf(f, trials, false_rate)
        for k, f in itertools.product(range(trials + 1), repeat=2)
        if epsilon_lower_bound(k, trials, f, trials, delta=delta, confidence=0.95) > epsilon
    )


@pytest.mark.parametrize(("epsilon", "delta", "false_rate"), [(0.5, 0.05, 0.3), (1.0, 0.01, 0.1)])
def test_epsilon_bound_is_wrong_at_most_as_often_as_stated(epsilon, delta, false_rate):
    """The worst mechanism allowed: its true positive rate is e^epsilon times the false one, plus delta."""
    assert exceeding(epsilon, delta, math.exp(epsilon) * false_rate + delta, false_rate) <= 0.05


def test_epsilon_bound_would_be_wrong_too_often_with_a_delta_left_out():
    true_rate = math.exp(0.1) * 0.02 + 0.5
    assert exceeding(0.1, 0.5, true_rate, 0.02) <= 0.05
    assert exceeding(0.1, 1e-9, true_rate, 0.02) > 0.9


def test_epsilon_bound_is_zero_without_evidence_and_grows_with_it():
    for counts in ((0, 100, 0, 100), (50, 100, 50, 100), (100, 100, 100, 100)):
        assert epsilon_lower_bound(*counts, delta=0.01, confidence=0.95) == 0
    bounds = [
        epsilon_lower_bound(3 * n, 5 * n, n // 2, 5 * n, delta=0.01, confidence=c)
        for n, c in ((20, 0.99), (20, 0.95), (200, 0.95), (20000, 0.95))
    ]
    assert bounds == sorted(bounds)
    assert bounds[-1] == pytest.approx(math.log(0.59 / 0.1), abs=0.05)


@pytest.mark.parametrize(
    ("correct", "guesses", "canaries", "delta", "printed"),
    [(75, 100, 1000, 1e-4, 0.673), (1439, 1510, 100_000, 1e-5, 2.675)],
)
def test_one_run_bound_gives_the_numbers_of_the_paper(correct, guesses, canaries, delta, printed):
    """Steinke, Nasr, Jagielski 2023 (arXiv 2305.08846): Appendix D and section 7, three digits."""
    bound = one_run_lower_bound(correct, guesses, canaries, delta=delta, confidence=0.95)
    assert bound == pytest.approx(printed, abs=1e-3)


@pytest.mark.parametrize(("correct", "guesses", "canaries"), [(5, 6, 9), (12, 20, 20), (20, 20, 50)])
@pytest.mark.parametrize("epsilon", [0.0, 0.7])
def test_one_run_p_value_is_the_theorem_as_printed(correct, guesses, canaries, epsilon):
    """The slow twin: f by summing the probabilities, the maximum over all i up to m."""
    rate = math.exp(epsilon) / (math.exp(epsilon) + 1)

    def f(v):
        counts = range(max(0, v), guesses + 1)
        return math.fsum(math.comb(guesses, k) * rate**k * (1 - rate) ** (guesses - k) for k in counts)

    slope = max((f(correct - i) - f(correct)) / i for i in range(1, canaries + 1))
    expected = f(correct) + 2 * canaries * 0.001 * slope
    found = one_run_p_value(correct, guesses, canaries, epsilon=epsilon, delta=0.001)
    assert found == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 0.0), (0.5, 0.002), (1.0, 0.01)])
def test_one_run_bound_is_wrong_at_most_as_often_as_stated(epsilon, delta):
    """Randomised response that gives each coin away with probability delta is (epsilon, delta)-DP."""
    rate = delta + (1 - delta) / (1 + math.exp(-epsilon))
    wrong = sum(
        binom.pmf(v, 50, rate)
        for v in range(51)
        if one_run_lower_bound(v, 50, 50, delta=delta, confidence=0.95) > epsilon
    )
    assert wrong <= 0.05


def test_one_run_bound_without_delta_is_randomised_response_inverted_and_0_by_chance():
    rate = brentq(lambda p: binom.sf(39, 50, p) - 0.05, 1e-12, 1)
    bound = one_run_lower_bound(40, 50, 1000, delta=0.0, confidence=0.95)
    assert bound == pytest.approx(math.log(rate / (1 - rate)), abs=1e-6)
    assert one_run_lower_bound(25, 50, 100, delta=1e-5, confidence=0.95) == 0
    assert one_run_lower_bound(0, 0, 100, delta=1e-5, confidence=0.95) == 0


def test_numbers_that_do_not_fit_are_an_error():
    for counts in ((11, 10, 0, 10), (-1, 10, 0, 10), (0, 0, 0, 10), (1, 2, 3, 2)):
        with pytest.raises(ValueError, match="must"):
            epsilon_lower_bound(*counts, delta=0.1, confidence=0.95)
    for counts in ((3, 2, 9), (1, 10, 9), (-1, 2, 9), (0, 0, 0)):
        with pytest.raises(SettingError, match="each must be at most the next"):
            one_run_p_value(*counts, epsilon=1.0, delta=0.0)
    for delta, confidence in ((0.0, 0.95), (0.1, 1.0)):
        with pytest.raises(SettingError, match=r"delta|confidence"):
            epsilon_lower_bound(1, 2, 1, 2, delta=delta, confidence=confidence)

"""p-values and bounds from counts: each against a twin that adds up or simulates its law, and wrong as seldom as stated."""

import math
from bisect import bisect_right
from functools import partial

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import binom, kstest

from fedmf.audit.bounds import epsilon_lower_bound, one_run_lower_bound, one_run_p_value
from fedmf.audit.finding import binomial_p, chi_square_p, cosine_p
from fedmf.errors import SettingError

DRAWS = 40_000


def test_binomial_p_values_are_twice_the_smaller_of_two_added_up_tails_and_seldom_small():
    n, p = 12, 0.3
    masses = [math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(n + 1)]
    for k in range(n + 1):
        expected = min(1.0, 2 * min(sum(masses[: k + 1]), sum(masses[k:])))
        assert binomial_p(k, n, p) == pytest.approx(expected, rel=1e-12)
    for level in (0.001, 0.01, 0.05, 0.2, 0.5):
        assert sum(mass for k, mass in enumerate(masses) if binomial_p(k, n, p) <= level) <= level


def test_p_values_of_sums_of_squares_and_of_cosines_are_those_of_simulated_ones_at_any_scale():
    rng = np.random.default_rng(0)
    sums = (rng.normal(size=(DRAWS, 5)) ** 2).sum(axis=1)
    for value in (0.8, 4.35, 13.0):
        expected = 2 * min((sums <= value).mean(), (sums >= value).mean())
        assert chi_square_p(value, 5) == pytest.approx(min(1.0, expected), abs=0.02)
    a, b = 3 * rng.normal(size=(DRAWS, 6)), 0.1 * rng.normal(size=(DRAWS, 6))
    cosines = (a * b).sum(axis=1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    for value in (0.2, 0.5, 0.85):
        assert cosine_p(value, 6) == pytest.approx((np.abs(cosines) >= value).mean(), abs=0.01)
    for found in (chi_square_p(sums[:4000], 5), cosine_p(cosines[:4000], 6)):
        assert kstest(found, "uniform").pvalue > 1e-3


def test_the_bound_is_that_of_clopper_and_pearson_solved_for_the_rates():
    low = brentq(lambda p: binom.sf(28, 30, p) - 0.025, 1e-12, 1)
    high = brentq(lambda p: binom.cdf(7, 30, p) - 0.025, 0, 1 - 1e-12)
    found = epsilon_lower_bound(29, 30, 7, 30, delta=0.01, confidence=0.95)
    assert found == pytest.approx(math.log((low - 0.01) / high), rel=1e-9)


@pytest.mark.parametrize(
    ("epsilon", "delta", "false_rate"), [(0.5, 0.05, 0.3), (1.0, 0.01, 0.1), (0.1, 0.5, 0.02)]
)
def test_epsilon_bound_is_wrong_at_most_as_often_as_stated(epsilon, delta, false_rate):
    """The worst mechanism allowed: its true positive rate is e^epsilon times the false one, plus delta.

    By enumeration of the false positives; the bound grows with the true ones, so that all from the first that exceeds do.
    """
    counts, true_rate = range(41), math.exp(epsilon) * false_rate + delta
    given = {"members": 40, "non_members": 40, "delta": delta, "confidence": 0.95}
    exceeding = 0.0
    for f in counts:
        first = bisect_right(counts, epsilon, key=partial(epsilon_lower_bound, false_positives=f, **given))
        exceeding += binom.pmf(f, 40, false_rate) * binom.sf(first - 1, 40, true_rate)
    assert exceeding <= 0.05


def test_epsilon_bound_is_zero_without_evidence_and_grows_with_it():
    for counts in ((0, 100, 0, 100), (50, 100, 50, 100), (100, 100, 100, 100)):
        assert epsilon_lower_bound(*counts, delta=0.01, confidence=0.95) == 0
    of_rates = lambda n: epsilon_lower_bound(3 * n, 5 * n, n // 2, 5 * n, delta=0.01, confidence=0.95)  # noqa: E731
    bounds = [of_rates(n) for n in (20, 200, 20000)]
    assert bounds == sorted(bounds)
    assert bounds[-1] == pytest.approx(math.log(0.59 / 0.1), abs=0.05)


def test_one_run_bound_gives_the_numbers_of_the_paper_and_0_by_chance():
    """Steinke, Nasr, Jagielski 2023 (arXiv 2305.08846): Appendix D and section 7, three digits."""
    for counts, delta, printed in (((75, 100, 1000), 1e-4, 0.673), ((1439, 1510, 100_000), 1e-5, 2.675)):
        bound = one_run_lower_bound(*counts, delta=delta, confidence=0.95)
        assert bound == pytest.approx(printed, abs=1e-3)
    rate = brentq(lambda p: binom.sf(39, 50, p) - 0.05, 1e-12, 1)
    bound = one_run_lower_bound(40, 50, 1000, delta=0.0, confidence=0.95)  # randomised response, inverted
    assert bound == pytest.approx(math.log(rate / (1 - rate)), abs=1e-6)
    assert one_run_lower_bound(25, 50, 100, delta=1e-5, confidence=0.95) == 0


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
    bounds = [one_run_lower_bound(v, 50, 50, delta=delta, confidence=0.95) for v in range(51)]
    assert sum(binom.pmf(v, 50, rate) for v, bound in enumerate(bounds) if bound > epsilon) <= 0.05


def test_numbers_that_do_not_fit_are_an_error():
    with pytest.raises(SettingError, match="each must be at most the next"):
        one_run_p_value(3, 2, 9, epsilon=1.0, delta=0.0)
    for counts, delta, confidence, said in (
        ((11, 10, 0, 10), 0.1, 0.95, "must"),
        ((1, 2, 1, 2), 0.0, 0.95, "delta"),
        ((1, 2, 1, 2), 0.1, 1.0, "confidence"),
    ):
        with pytest.raises(ValueError, match=said):  # which a SettingError is
            epsilon_lower_bound(*counts, delta=delta, confidence=confidence)

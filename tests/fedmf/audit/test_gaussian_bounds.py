"""Bounds on mu: against enumeration, a convex program, the authors' numbers, and Gaussians at the boundary."""

import itertools

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.stats import binom, norm

from fedmf.audit.bounds import one_run_lower_bound
from fedmf.audit.gaussian_bounds import (
    f_dp_one_run_mu_lower_bound,
    f_dp_one_run_p_value,
    gaussian_inverse,
    mu_lower_bound,
)
from fedmf.errors import SettingError


@pytest.mark.parametrize(("mu", "threshold"), [(0.3, 0.1), (1.0, 0.5), (1.0, 1.0), (2.0, 1.2)])
def test_mu_bound_is_wrong_at_most_as_often_as_stated(mu, threshold):
    """Gaussians at the boundary, 60 runs of each kind, by enumeration; and within reach of the level."""
    rates = norm.sf(threshold - mu), norm.sf(threshold)
    wrong = sum(
        binom.pmf(k, 60, rates[0]) * binom.pmf(f, 60, rates[1])
        for k, f in itertools.product(range(61), repeat=2)
        if mu_lower_bound(k, 60, f, 60, confidence=0.9) > mu
    )
    assert 1e-4 < wrong <= 0.1


def test_mu_bound_of_a_perfect_attack_has_a_closed_form():
    """All right, none wrong: each rate gets half of the error, 0.025."""
    for n in (10, 400):
        expected = norm.ppf(0.025 ** (1 / n)) - norm.ppf(1 - 0.025 ** (1 / n))
        assert mu_lower_bound(n, n, 0, n, confidence=0.95) == pytest.approx(expected, rel=1e-9)


def test_mu_bound_approaches_the_truth():
    rates = norm.sf(0.5 - 1.2), norm.sf(0.5)
    bounds = [mu_lower_bound(n * rates[0], n, n * rates[1], n, confidence=0.95) for n in (100, 10**4, 10**8)]
    assert bounds == sorted(bounds)
    assert 1.19 < bounds[-1] < 1.2


def test_mu_bound_is_zero_without_evidence():
    assert mu_lower_bound(0, 50, 0, 50, confidence=0.95) == 0
    assert mu_lower_bound(50, 50, 50, 50, confidence=0.95) == 0
    assert mu_lower_bound(25, 50, 25, 50, confidence=0.95) == 0


def slow_p_value(correct, guesses, canaries, mu):
    """The most that the theorem's inequalities, as a convex program over all laws of the count, leave to the tail.

    Those of sets {i, ..., r}, of which the algorithm uses i <= correct; what lies above may be spread.
    """
    counts = np.arange(guesses + 1)
    sets = [counts >= i for i in range(1, correct + 1)]
    right = np.array([chosen * counts for chosen in sets]) / canaries
    wrong = np.array([np.append(chosen[1:], True) * (guesses - counts) for chosen in sets]) / canaries

    def room(p):
        return norm.cdf(norm.ppf(np.clip(wrong @ p, 1e-300, 1 - 1e-16)) + mu) - right @ p

    found = minimize(
        lambda p: -p[correct:].sum(),
        np.full(guesses + 1, 1 / (guesses + 1)),
        constraints=[
            {"type": "eq", "fun": lambda p: p.sum() - 1},
            {"type": "ineq", "fun": room},
        ],
        bounds=[(0, 1)] * (guesses + 1),
        method="SLSQP",
        options={"maxiter": 500, "ftol": 1e-13},
    )
    assert room(found.x).min() > -1e-7
    return -found.fun


@pytest.mark.parametrize(
    ("correct", "guesses", "canaries", "mu"),
    [(4, 5, 5, 0.5), (5, 6, 6, 0.3), (6, 6, 6, 1.0), (5, 5, 7, 1.5), (7, 8, 30, 0.2), (3, 4, 9, 0.1)],
)
def test_f_dp_p_value_is_the_optimum_of_the_theorems_inequalities(correct, guesses, canaries, mu):
    fast = f_dp_one_run_p_value(correct, guesses, canaries, inverse=gaussian_inverse(mu))
    assert fast < 1
    assert fast == pytest.approx(slow_p_value(correct, guesses, canaries, mu), abs=2e-6)


@pytest.mark.parametrize(
    ("correct", "guesses", "canaries", "published"),
    [
        (500, 800, 1000, 0.201048),
        (75, 100, 100, 0.404312),
        (75, 100, 1000, 0.269495),
        (1400, 1500, 2000, 0.995113),
        (1439, 1510, 10_000, 0.937886),
    ],
)
def test_f_dp_bound_gives_the_numbers_of_the_authors(correct, guesses, canaries, published):
    """What the recursion published by the authors (Meta's PrivacyGuard, `fdp_analysis_node`) gives, by bisection."""
    bound = f_dp_one_run_mu_lower_bound(correct, guesses, canaries, confidence=0.95)
    assert bound == pytest.approx(published, abs=1e-6)


def guesses_right(mu, canaries, guesses, rng):
    """How many of an optimal attacker's guesses on independent Gaussians are right."""
    coins = rng.integers(2, size=canaries)
    order = np.argsort(rng.standard_normal(canaries) + mu * coins)
    low, high = order[: guesses // 2], order[canaries - guesses // 2 :]
    return int((coins[low] == 0).sum() + (coins[high] == 1).sum())


@pytest.mark.parametrize(("mu", "canaries", "guesses"), [(0.5, 300, 40), (1.5, 300, 300), (1.0, 2000, 100)])
def test_f_dp_bound_errs_on_gaussians_at_the_boundary_no_more_often_than_stated(mu, canaries, guesses):
    """2000 runs at level .3, where misses would be seen: an honest error of .3 exceeds .35 less than once in 1e6."""
    rng = np.random.default_rng(0)
    rights = [guesses_right(mu, canaries, guesses, rng) for _ in range(2000)]
    bounds = {c: f_dp_one_run_mu_lower_bound(c, guesses, canaries, confidence=0.7) for c in set(rights)}
    assert np.mean([bounds[c] > mu for c in rights]) < 0.35
    assert np.mean([bounds[c] > mu / 3 for c in rights]) > 0.5


def test_f_dp_p_value_bounds_a_mechanism_whose_guesses_hang_together():
    """One secret draw for all: with probability .2 every coin is told, each right with .9; else none is."""
    weight, keep, canaries = 0.2, 0.9, 12
    truth = weight * binom.sf(10, canaries, keep) + (1 - weight) * binom.sf(10, canaries, 0.5)

    def inverse(rate):
        """The trade-off of one coin: which case it is can be seen, so that claims are "told in", "not told", all."""
        corners = [
            (0, 0),
            (weight * (1 - keep), weight * keep),
            (weight * (1 - keep) + 1 - weight, weight * keep + 1 - weight),
            (1, 1),
        ]
        false, true = np.array(corners).T
        return float(np.interp(rate, true, false))

    assert truth > 0.1
    assert f_dp_one_run_p_value(11, canaries, canaries, inverse=inverse) >= truth
    assert f_dp_one_run_p_value(12, canaries, canaries, inverse=inverse) >= weight * keep**12


def test_f_dp_p_value_falls_with_right_guesses_and_rises_with_mu():
    values = [f_dp_one_run_p_value(c, 100, 400, inverse=gaussian_inverse(0.5)) for c in (60, 75, 90, 100)]
    assert values == sorted(values, reverse=True)
    values = [f_dp_one_run_p_value(80, 100, 400, inverse=gaussian_inverse(mu)) for mu in (0, 0.5, 1, 3)]
    assert values == sorted(values)
    assert values[0] < 1e-3


def test_f_dp_bound_of_a_gaussian_is_larger_than_that_of_epsilon_and_delta():
    """The point of the method: the same guesses refute more where the whole curve is claimed."""
    from fedmf.accounting import gaussian_epsilon

    mu = f_dp_one_run_mu_lower_bound(515, 656, 16384, confidence=0.95)
    assert gaussian_epsilon(mu, 1e-5) > one_run_lower_bound(515, 656, 16384, delta=1e-5, confidence=0.95)


def test_f_dp_bound_refutes_nothing_with_chance_results():
    assert f_dp_one_run_mu_lower_bound(50, 100, 200, confidence=0.95) == 0
    assert f_dp_one_run_mu_lower_bound(0, 0, 10, confidence=0.95) == 0
    assert f_dp_one_run_p_value(0, 5, 10, inverse=gaussian_inverse(0.0)) == 1


def test_f_dp_p_value_without_any_dependence_is_at_least_a_fair_coins():
    """mu = 0: nothing is learned, so all counts of fair coins must stay possible."""
    for right in (30, 35, 40):
        value = f_dp_one_run_p_value(right, 40, 40, inverse=gaussian_inverse(0.0))
        assert value >= binom.sf(right - 1, 40, 0.5)


def test_counts_and_mus_that_do_not_fit_are_refused():
    with pytest.raises(SettingError, match="at most the next"):
        f_dp_one_run_mu_lower_bound(5, 4, 10, confidence=0.95)
    with pytest.raises(SettingError, match="mu is -1"):
        gaussian_inverse(-1.0)
    with pytest.raises(SettingError, match="confidence"):
        mu_lower_bound(1, 2, 1, 2, confidence=1.0)

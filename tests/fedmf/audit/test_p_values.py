"""p-values: each against a twin that adds up or simulates its law, and uniform on honest draws."""

from math import comb

import numpy as np
import pytest
from scipy.stats import kstest

from fedmf.audit.finding import binomial_p, chi_square_p, cosine_p

DRAWS = 40_000


def test_binomial_p_values_are_twice_the_smaller_of_two_added_up_tails():
    n, p = 12, 0.3
    masses = [comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(n + 1)]
    for k in range(n + 1):
        expected = min(1.0, 2 * min(sum(masses[: k + 1]), sum(masses[k:])))
        assert binomial_p(k, n, p) == pytest.approx(expected, rel=1e-12)


def test_chi_square_p_values_are_those_of_simulated_sums_of_squares():
    rng = np.random.default_rng(0)
    sums = (rng.normal(size=(DRAWS, 5)) ** 2).sum(axis=1)
    for value in (0.8, 4.35, 13.0):
        expected = 2 * min((sums <= value).mean(), (sums >= value).mean())
        assert chi_square_p(value, 5) == pytest.approx(min(1.0, expected), abs=0.02)


def test_cosines_of_two_gaussian_vectors_follow_the_beta_law_at_any_scale():
    rng = np.random.default_rng(1)
    a, b = 3 * rng.normal(size=(DRAWS, 6)), 0.1 * rng.normal(size=(DRAWS, 6))
    cosines = (a * b).sum(axis=1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    for value in (0.2, 0.5, 0.85):
        assert cosine_p(value, 6) == pytest.approx((np.abs(cosines) >= value).mean(), abs=0.01)


def test_p_values_of_honest_draws_are_uniform():
    values = np.random.default_rng(3).normal(size=(4000, 7))
    for found in (
        chi_square_p((values**2).sum(axis=1), 7),
        cosine_p(values[:, 0] / np.linalg.norm(values, axis=1), 7),
    ):
        assert kstest(found, "uniform").pvalue > 1e-3


def test_p_values_of_counts_are_never_more_often_small_than_uniform_ones():
    n, p = 9, 0.35
    masses = {k: comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(n + 1)}
    for level in (0.001, 0.01, 0.05, 0.2, 0.5):
        assert sum(mass for k, mass in masses.items() if binomial_p(k, n, p) <= level) <= level

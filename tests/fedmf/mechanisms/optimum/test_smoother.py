"""The diagonals of the smoother against dense inverses and long arithmetic."""

from dataclasses import replace

import numpy as np
import pytest
from mpmath import mp, mpf

from fedmf.mechanisms import momentum, prefix_sum, workload as workloads
from fedmf.mechanisms.later_rounds import LaterRounds, later_rounds
from fedmf.mechanisms.optimum import smoother
from fedmf.mechanisms.optimum.poles import Poles, poles, spectral_interval
from workloads import every_workload, falling, precision, some_v


@every_workload
def test_filters_give_the_diagonal_of_the_inverse(workload):
    v = some_v(workload)
    expansion = poles(spectral_interval(v, workload), 1e-6)
    P = precision(workload)
    expected = sum(
        weight * np.diag(np.linalg.inv(P + shift * np.diag(v)))
        for shift, weight in zip(*expansion, strict=True)
    )
    for computed in (
        smoother.diagonal(v, workload, expansion),
        smoother.filters(v, workload, expansion)[1],
        smoother.filters_in_numpy(v, workload, expansion)[1],
    ):
        np.testing.assert_allclose(computed, expected, rtol=1e-8)


def test_filters_keep_relative_precision_where_matrices_lose_it():
    """Beta .99, n = 1500, tiny shifts: against 40-digit arithmetic on the same recursion of exact rationals."""
    workload = momentum(30, 0.99, falling(30, 1e-5))
    v = np.ones(30)
    shift = 1e-30
    with mp.workdps(60):
        A = mp.matrix(workloads.materialize(workload).tolist())
        inverse = A**-1
        exact = (inverse * inverse.T + mpf(shift) * mp.eye(30)) ** -1
        expected = [float(exact[i, i]) for i in range(30)]
    computed = smoother.filters_in_numpy(v, workload, Poles(np.array([shift]), np.array([1.0])))[1]
    np.testing.assert_allclose(computed, expected, rtol=1e-11)


@pytest.mark.parametrize("rounds", [1, 2, 3, 7, 50, 4096, 65536])
@pytest.mark.parametrize("later", [0, 3, 10**6])
def test_prefix_sums_keep_relative_precision_where_pivots_lose_it(rounds, later):
    """Unobserved, round i has the variance of all steps behind it; by LAPACK's pivots it has lost half of its digits."""
    workload = replace(prefix_sum(rounds), later=LaterRounds(later, later, later, 0.0))
    computed = smoother.diagonal(np.ones(rounds), workload, Poles(np.array([1e-40]), np.array([1.0])))
    np.testing.assert_allclose(computed, later + np.arange(rounds, 0, -1.0), rtol=1e-12)


@pytest.mark.parametrize("beta", [0.0, 0.9])
@pytest.mark.parametrize("rounds", [1, 2, 3, 17, 50])
def test_rounds_behind_the_epoch_enter_the_diagonal(rounds, beta):
    """Against dense inverses of the whole Gram matrix W = A^T A + R Q R^T."""
    eta = np.linspace(2, 1, rounds + 40)
    workload = momentum(rounds, beta, tuple(eta[:rounds]))
    workload = replace(workload, later=later_rounds(eta[rounds:], beta))
    v = some_v(workload)
    expansion = poles(spectral_interval(v, workload), 1e-6)
    P = np.linalg.inv(workloads.gram(workload))
    expected = sum(
        weight * np.diag(np.linalg.inv(P + shift * np.diag(v)))
        for shift, weight in zip(*expansion, strict=True)
    )
    np.testing.assert_allclose(smoother.diagonal(v, workload, expansion), expected, rtol=1e-7)


@pytest.mark.parametrize("beta", [0.0, 0.9, 0.99])
def test_rounding_of_the_diagonal_is_far_below_what_is_charged(beta):
    """Against the same filters in long arithmetic of 40 digits: 50 eps, where 8 eps a round are charged."""
    rounds = 512
    workload = replace(momentum(rounds, beta), later=later_rounds(np.ones(10**5), beta))
    v = 1e-3 / np.sqrt(10**5 + np.arange(rounds, 0, -1.0))
    shifts = (1e-6, 1e-2, 1e3, 1e12)
    for shift in shifts:
        expected = _long(v, workload, shift)
        pole = Poles(np.array([shift]), np.ones(1))
        for computed in (
            smoother.diagonal(v, workload, pole),
            smoother.filters_in_numpy(v, workload, pole)[1],
        ):
            np.testing.assert_allclose(computed, expected, rtol=50 * np.finfo(np.float64).eps)


def _long(v, workload, shift):
    """The two filters of one pole, as in fedmf/mechanisms/optimum/smoother.py, to 40 digits."""
    beta = mpf(workload.momentum)
    with mp.workdps(40):
        a, b, c, D = (mpf(number) for number in smoother.behind(workload))
        gathered = []
        for observed in v[::-1]:
            r = mpf(shift) * mpf(observed)
            c, D, a, b = c + 1, beta**2 * (D + a), beta**2 * a + 2 * beta * b + c + 1, beta * b + c + 1
            gathered.append((a, b, c, D))
            q = 1 / (1 + r * a)
            a, b, c, D = a * q, b * q, (c + r * D) * q, D * q
        A = B = C = J = mpf(0)
        variances = []
        for observed, (a, b, c, D) in zip(v, gathered[::-1], strict=True):
            r = mpf(shift) * mpf(observed)
            J, A = J + r * C, A + r
            variances.append(float((D * C + a) / (D * J + A * a + 2 * B * b + C * c + 1)))
            t = A + B
            after = t + B + C
            q = 1 / (1 + after)
            A, B, C, J = beta**2 * (A + J) * q, beta * t * q, after * q, beta**2 * J * q
    return variances

"""The diagonals of the smoother against dense inverses and long arithmetic."""

import numpy as np
from mpmath import mp, mpf

from fedmf.mechanisms import momentum
from fedmf.mechanisms import workload as workloads
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

"""Products, inverses and costs of Toeplitz matrices against dense ones."""

import numpy as np

from fedmf.mechanisms import momentum, workload as workloads
from fedmf.mechanisms.schedules import rates
from fedmf.mechanisms.streams import toeplitz


def test_toeplitz_inverse_and_rows_match_the_matrix():
    coefs = np.array([1.0, 0.4, 0.2])
    C = toeplitz.materialize(coefs, 9)
    np.testing.assert_allclose(toeplitz.materialize(toeplitz.inverse(coefs, 9), 9) @ C, np.eye(9), atol=1e-14)
    for workload in (momentum(9, 0.5), momentum(9, 0.5, rates("decay", 9))):
        B = workloads.materialize(workload) @ np.linalg.inv(C)
        computed, left = toeplitz.row_norms(toeplitz.inverse(coefs, 9), workload)
        np.testing.assert_allclose(computed, np.linalg.norm(B, axis=1), rtol=1e-12)
        after = workloads.after_last(workload, np.linalg.inv(C))
        np.testing.assert_allclose(left, after @ after.T, rtol=1e-12)
    long = np.arange(1.0, 101)
    np.testing.assert_allclose(toeplitz.multiply(long, long, 100), np.convolve(long, long)[:100], rtol=1e-9)

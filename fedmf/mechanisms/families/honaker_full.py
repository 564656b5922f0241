"""Honaker's full estimator: every prefix sum from ALL nodes of the tree by least squares,
B = A C^+, made causal.

B looks ahead. With the LQ factorization B = L Q, Q Q^T = I, the noise L Z' has the law of B Z, and
M = Q C = L^-1 A is lower triangular with the same column norms, because Q spans the columns of C. So the pair
(L, M) is deployed. Source: Denisov et al. (NeurIPS 2022), Propositions C.1 and 2.2.
"""

import numpy as np

from fedmf.mechanisms import workload as workloads
from fedmf.mechanisms.arrays import Arrays
from fedmf.mechanisms.streams import dense, tree
from fedmf.mechanisms.streams.dense import DenseStream
from fedmf.mechanisms.workload import Workload

MOST_ROUNDS = 2048


def fit(workload: Workload) -> Arrays:
    """Return the dense C^-1 = A^-1 L with its cost. Raises `SettingError` for more than 2048 rounds."""
    dense.check_rounds("honaker_full", workload.rounds, MOST_ROUNDS)
    C = tree.strategy(workload.rounds)
    decoder = np.linalg.solve(C.T @ C, workloads.materialize(workload).T).T @ C.T
    transposed = np.asarray(np.linalg.qr(decoder.T, mode="r"))
    triangular = transposed.T * np.sign(np.diag(transposed))
    return dense.deployed(workloads.solve(workload, triangular), workload)


def stream(workload: Workload, arrays: Arrays) -> DenseStream:
    """Return the stream, whose state is T - 1 rows."""
    return DenseStream(workload.rounds, arrays["noising"])

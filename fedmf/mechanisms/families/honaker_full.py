"""Honaker's full estimator: prefix sums from ALL nodes of the tree by least squares, made causal.

B = A C^+ looks ahead. With the LQ factorization B = L Q, Q Q^T = I, the noise L Z' has the law of B Z, and
M = Q C = L^-1 A is lower triangular with the same column norms, because Q spans the columns of C. So the pair
(L, M) is deployed. Source: Denisov et al. (NeurIPS 2022), Propositions C.1 and 2.2.
"""

import numpy as np

from fedmf.mechanisms import workload as workloads
from fedmf.mechanisms.families.protocol import Family
from fedmf.mechanisms.fitted import Fitted
from fedmf.mechanisms.streams import dense, tree
from fedmf.mechanisms.streams.dense import DenseStream
from fedmf.mechanisms.workload import Workload


def fit(workload: Workload) -> Fitted:
    """Return the dense C^-1 = A^-1 L with its cost."""
    C = tree.strategy(workload.rounds)
    decoder = np.linalg.solve(C.T @ C, workloads.materialize(workload).T).T @ C.T
    transposed = np.asarray(np.linalg.qr(decoder.T, mode="r"))
    triangular = transposed.T * np.sign(np.diag(transposed))
    return dense.rounded_with_cost(workloads.solve(workload, triangular), workload)


HONAKER_FULL = Family("honaker_full", fit, DenseStream, most_rounds=2048)

"""Dyadic trees and, with no correlation at all, independent noise.

`binary_tree`: all dyadic nodes are measured, and a prefix sum adds up to log2 T of them. As published (Dwork et al. 2010,
Chan et al. 2011), nodes that no prefix uses count in the sensitivity. Other workloads post-process the prefix sums:
B = A S^-1 B_tree.

`honaker_online`: every node is estimated from its own subtree, online. The best weight of a node's own measurement is
1 / (2 - 2^-h), which is then also its variance. This is DP-FTRL of Kairouz et al. (ICML 2021) and the "Honaker" column of
Denisov et al. (NeurIPS 2022), Table 2; their Appendix C. Reported as published: the reduction of its sensitivity that an
LQ factorization of B would allow is not used.

`honaker_full`: prefix sums from ALL nodes by least squares, made causal. B = A C^+ looks ahead. With the LQ factorization
B = L Q, Q Q^T = I, the noise L Z' has the law of B Z, and M = Q C = L^-1 A is lower triangular with the same column norms,
because Q spans the columns of C. So the pair (L, M) is deployed. Source: Denisov et al. (NeurIPS 2022), Propositions C.1
and 2.2.

`independent`: C = I, which is DP-SGD and DP-FedAvg. No state; the error of a prefix sum grows like sqrt(t).
"""

import numpy as np

from fedmf.mechanisms import workload as workloads
from fedmf.mechanisms.families import Family
from fedmf.mechanisms.streams.dense import DenseStream
from fedmf.mechanisms.streams.toeplitz import ToeplitzStream
from fedmf.mechanisms.streams.tree import TreeStream, levels, strategy
from fedmf.mechanisms.workload import Workload


def fit_binary(workload: Workload) -> TreeStream:
    """Return the tree with weight 1 of each node's own measurement."""
    return TreeStream(workload.rounds, np.ones(levels(workload.rounds)))


def fit_online(workload: Workload) -> TreeStream:
    """Return the tree with weights 1 / (2 - 2^-h)."""
    return TreeStream(workload.rounds, 1 / (2 - 2.0 ** -np.arange(levels(workload.rounds))))


def fit_full(workload: Workload) -> DenseStream:
    """Return the dense C^-1 = A^-1 L."""
    C = strategy(workload.rounds)
    decoder = np.linalg.solve(C.T @ C, workloads.materialize(workload).T).T @ C.T
    transposed = np.asarray(np.linalg.qr(decoder.T, mode="r"))
    triangular = transposed.T * np.sign(np.diag(transposed))
    return DenseStream(workload.rounds, np.tril(workloads.solve(workload, triangular)))


def fit_independent(workload: Workload) -> ToeplitzStream:
    """Return the one coefficient 1, with which the stream passes its fresh rows on."""
    return ToeplitzStream(workload.rounds, np.ones(1))


BINARY_TREE = Family("binary_tree", fit_binary)
HONAKER_ONLINE = Family("honaker_online", fit_online)
HONAKER_FULL = Family("honaker_full", fit_full, most_rounds=2048)
INDEPENDENT = Family("independent", fit_independent)

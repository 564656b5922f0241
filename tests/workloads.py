"""Workloads of every kind for the tests of mechanisms, and dense twins of what is streamed."""

import numpy as np
import pytest

from fedmf.mechanisms import momentum, prefix_sum, workload as workloads
from fedmf.mechanisms.schedules import rates


def falling(rounds, last):
    """Rates that fall along half a cosine to `last` times the first: further than any schedule does."""
    done = np.linspace(0, 1, rounds)
    return tuple(1 - (1 - last) * (1 - np.cos(np.pi * done)) / 2)


WORKLOADS = [
    prefix_sum(1),
    prefix_sum(2),
    prefix_sum(50),
    momentum(40, 0.9),
    momentum(40, 0, rates("decay", 40)),
    momentum(40, 0.95, falling(40, 1e-3)),
]
every_workload = pytest.mark.parametrize(
    "workload", WORKLOADS, ids=["one", "two", "prefix_sum", "momentum", "rates", "momentum_and_rates"]
)


def precision(workload):
    """P = (A^T A)^-1, dense, from the inverse factor so that it loses nothing."""
    inverse = workloads.solve(workload, np.eye(workload.rounds))
    return inverse @ inverse.T


def some_v(workload):
    return np.random.default_rng(3).uniform(0.5, 2, workload.rounds) / workloads.rates(workload) ** 2


def dense_strategy(form):
    n = len(form.c)
    C, sigma = np.zeros((n, n)), np.zeros((form.g.shape[1], n))
    for t in range(n):
        C[t] = form.lam[t] @ sigma
        C[t, t] += form.c[t]
        sigma = form.F[t] @ sigma
        sigma[:, t] += form.g[t]
    return C


def fading(workload):
    """C_ts = 0.7^(t - s), below the diagonal half of it on odd columns: no Toeplitz matrix."""
    ages = np.subtract.outer(np.arange(workload.rounds), np.arange(workload.rounds))
    C = np.tril(0.7 ** np.maximum(ages, 0))
    C[:, 1::2] *= np.where(ages[:, 1::2] > 0, 0.5, 1)
    return C

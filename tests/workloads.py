"""Workloads of every kind for the tests of mechanisms."""

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

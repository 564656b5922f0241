"""Reference values by slow and obvious computations: mechanisms, workloads, laws, loops without numba."""

import json
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest
from scipy.special import ndtr

from fedmf import compiling
from fedmf.accounting.tight import Setting
from fedmf.audit import Stated, StatedEpoch
from fedmf.mechanisms import design, momentum, prefix_sum, workload as workloads
from fedmf.mechanisms.schedules import rates

ORACLE = json.loads((Path(__file__).parents[1] / "fedmf/accounting/oracles.json").read_text())
FLOAT = 1e-12
CELLS = 400
BUCKETS = 300
REACH = 12.0


@dataclass(frozen=True)
class Pair:
    """Masses of the same outcomes under P and under Q, each of shape [outcomes]."""

    p: np.ndarray
    q: np.ndarray


NOTHING = Pair(np.ones(1), np.ones(1))


def gaussian(epsilon, mu):
    """The divergence at e^epsilon of N(mu, 1) over N(0, 1), written out (Balle and Wang 2018, Theorem 8)."""
    return ndtr(mu / 2 - epsilon / mu) - np.exp(epsilon) * ndtr(-mu / 2 - epsilon / mu)


def coordinate(t, gamma, cells=CELLS):
    """One masked coordinate: Q = N(0, 1), P = (1 - gamma) N(0, 1) + gamma N(sqrt(t), 1), cut into cells."""
    root = np.sqrt(t)
    edges = np.concatenate([[-np.inf], np.linspace(-REACH, root + REACH, cells - 1), [np.inf]])
    q = normal_masses(edges)
    return merged(Pair((1 - gamma) * q + gamma * normal_masses(edges - root), q))


def normal_masses(edges):
    """Each from the tail that is nearer, so that small masses keep their digits."""
    below, above = ndtr(edges), ndtr(-edges)
    return np.where(edges[:-1] > 0, above[:-1] - above[1:], below[1:] - below[:-1])


def compose(first, second, buckets=BUCKETS):
    return merged(Pair(np.outer(first.p, second.p).ravel(), np.outer(first.q, second.q).ravel()), buckets)


def power(pair, count, buckets=BUCKETS):
    """`count` independent observations, by squaring."""
    result = NOTHING
    while count:
        if count % 2:
            result = compose(result, pair, buckets)
        count //= 2
        if count:
            pair = compose(pair, pair, buckets)
    return result


def merged(pair, buckets=BUCKETS):
    """Outcomes of nearly equal P/Q as one; the grid of log(P/Q) covers all but 1e-13 of either mass."""
    if len(pair.p) <= buckets:
        return pair
    kept = (pair.p > 0) & (pair.q > 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.log(pair.p) - np.log(pair.q)
    ratio = np.where(pair.p + pair.q > 0, ratio, 0.0)
    order = np.argsort(ratio[kept])
    sorted_ratio = ratio[kept][order]
    weight = np.cumsum((pair.p + pair.q)[kept][order])
    low = sorted_ratio[np.searchsorted(weight, 1e-13)]
    high = sorted_ratio[min(np.searchsorted(weight, weight[-1] - 1e-13), len(weight) - 1)]
    place = np.clip((ratio - low) / max(high - low, 1e-300), 0.0, 1.0)
    index = np.minimum((place * buckets).astype(np.int64), buckets - 1)
    return Pair(np.bincount(index, pair.p, buckets), np.bincount(index, pair.q, buckets))


def epoch(profile, gamma):
    """One epoch of the coordinates t_j in `profile`."""
    different, counts = np.unique(np.asarray(profile), return_counts=True)
    parts = [power(coordinate(t, gamma), int(n)) for t, n in zip(different, counts, strict=True)]
    return reduce(compose, parts, NOTHING)


def add(pair, epsilon):
    """H_{e^epsilon}(P || Q), from below."""
    return float(np.maximum(pair.p - np.exp(epsilon) * pair.q, 0).sum()) - FLOAT


def remove(pair, epsilon):
    """H_{e^epsilon}(Q || P), from below."""
    return add(Pair(pair.q, pair.p), epsilon)


def profiles(tau, ratio, rng):
    """Ways to spend a budget of `ratio` tau on coordinates of at most tau: extreme, even, uneven, slack."""
    whole = int(ratio)
    extreme = [tau] * whole + ([(ratio - whole) * tau] if ratio > whole else [])
    number = 2 * int(np.ceil(ratio))
    even = [ratio * tau / number] * number
    shares = np.minimum(rng.dirichlet(np.ones(whole + 2)) * ratio, 1.0)
    slack = [0.8 * tau] * max(1, whole)
    return {"extreme": extreme, "even": even, "uneven": list(shares * tau), "slack": slack}


def log_exponential_moment(s, *, tau, keep_probability, stop=None):
    """The product's bound of psi for one coordinate."""
    return float(Setting(tau, keep_probability, 1.0).psi(s, stop))


def hitting_probability(stop, *, tau, keep_probability):
    """The product's bound of pi."""
    return Setting(tau, keep_probability, 1.0).hits(stop)


def banded(rounds=4, second=0.5):
    """Return a custom strategy matrix: two bands."""
    return np.eye(rounds) + second * np.eye(rounds, k=-1)


def banded_statement(rounds=4, epochs=2, sigma=1.5, **bounds):
    return Stated.of_strategy(banded(rounds), sigma=sigma, l2_norm=1.0, epochs=epochs, **bounds)


def tree_statement(rounds=4, sigma=1.0):
    fitted = design("binary_tree", prefix_sum(rounds))
    epoch = StatedEpoch(fitted.stream.materialize_noising(), fitted.sensitivity, sigma)
    return Stated((epoch,), 1.0), fitted.stream.materialize_strategy()


def noise(stated, rng, runs=5, dimension=16):
    """Noise of the stated law, (runs, epochs, T, d), from the noising matrices themselves."""

    def of(epoch):
        return epoch.sigma * epoch.noising @ rng.normal(size=(epoch.noising.shape[1], dimension))

    return np.array([[of(epoch) for epoch in stated.epochs] for _ in range(runs)])


def refuted(findings):
    return {finding.test for finding in findings if finding.refutes}


def named(findings, test):
    (finding,) = (finding for finding in findings if finding.test == test)
    return finding


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


Result = TypeVar("Result")

needs_numba = pytest.mark.skipif(
    compiling.loops() is None, reason="numba, the extra fast, is not installed or compiles nothing"
)


@contextmanager
def without_numba():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "numba", None)  # installed, and cannot be imported
        compiling.loops.cache_clear()
        try:
            yield
        finally:
            compiling.loops.cache_clear()


def both_forms(run):
    """Return what `run` gives in numpy, and compiled."""
    with without_numba():
        plain = run()
    return plain, run()

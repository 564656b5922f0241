"""What the accountant is compared with: numbers of 40 digits, and exact divergences, slow and independent of it.

`ORACLE` holds the numbers. Hockey-stick divergences of small cases are computed from below.

An observation is cut into cells whose masses under P (with the client) and under Q (zeroed) are known; to compose,
all pairs of cells are taken, and cells of nearly equal P/Q are merged. Cutting and merging are post-processing, so by
the data-processing inequality every divergence computed here is at most the true one, whatever the grid: a bound
below it is wrong. `FLOAT` is what float64 may add.
"""

import json
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

import numpy as np
from scipy.special import ndtr

from fedmf.accounting.tight import Setting

ORACLE = json.loads((Path(__file__).parent / "fedmf/accounting/oracles.json").read_text())
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
    """Both observations together."""
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

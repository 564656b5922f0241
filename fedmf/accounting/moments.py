"""The moments of one sparsified coordinate, log F_a(t), for every real order above 1.

With gamma the keep probability, t the squared signal-to-noise and E over x ~ N(0, 1),

    y = gamma expm1(sqrt(t) x - t/2),   E y = 0,   F_a(t) = E (1 + y)^a = 1 + E [(1 + y)^a - 1 - a y].

The last integrand is never negative (Bernoulli), so nothing cancels: log F keeps its relative accuracy
(1e-11) where F - 1 is 1e-18, which matters because it is multiplied by up to 10^6 coordinates and epochs.

    >>> round(log_moment(2.0, 1.0, 0.5), 12) == round(math.log1p(0.25 * math.expm1(1.0)), 12)
    True
"""

import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

LARGEST_SUM = 256  # integer orders up to here use the finite sum, which is exact
TAIL = 12.0  # standard deviations; what lies beyond is below e^-72
TRANSITION = 40.0  # p(1-p) < e^-40 this far, in the exponent, from the point where p = 1/2
PANEL = 2.0
TWO_BUMPS = 1e4  # from this t on the transition holds e^(-t/8) of the mass
NODES, WEIGHTS = np.polynomial.legendre.leggauss(16)
LARGEST_EXPONENT = 600.0
SERIES_BELOW = 0.1
LARGE = 30.0  # logarithms beyond are not exponentiated
SERIES_TERMS = 12
REMEMBERED = 2**15  # moments, of some ten calibrations: 10 MB
LOG_FACTORIAL = np.array([math.lgamma(n + 1) for n in range(LARGEST_SUM + 1)])


@lru_cache(REMEMBERED)  # a run is calibrated, then accounted for after each epoch, at the same orders
def log_moment(order: float, t: float, keep_probability: float) -> float:
    """Return log F_a(t) >= 0 for a real order a > 1, t >= 0, gamma in (0, 1], to 1e-11 relative.

    Infinite for infinite t. Integer orders to 256 use the finite sum, all others the integral, and t from
    10^4 on its limit.
    """
    if t == 0:
        return 0.0
    if not math.isfinite(t):
        return math.inf
    if keep_probability == 1:
        return order * (order - 1) * t / 2
    if t >= TWO_BUMPS:
        return max(0.0, _log_moment_limit(order, t, keep_probability))
    if order == math.floor(order) and order <= LARGEST_SUM:
        return log_moment_sum(int(order), t, keep_probability)
    return log_moment_integral(order, t, keep_probability)


def log_moment_sum(order: int, t: float, gamma: float) -> float:
    """F = 1 + sum_{l=2}^a binom(a,l) (1-gamma)^(a-l) gamma^l (e^{(l^2-l) t/2} - 1), integer a to 256; its log.

    The paper's sum starts at l = 1, whose term does not vanish as the noise grows; its first term already
    holds l = 0 and 1 (2837 times too large at gamma = .01, a = 5, t = .0164).
    """
    whole = np.arange(2, order + 1)
    log_binomial = LOG_FACTORIAL[order] - LOG_FACTORIAL[whole] - LOG_FACTORIAL[order - whole]
    count = whole.astype(np.float64)
    exponent = (count * count - count) * t / 2
    log_weight = log_binomial + (order - count) * math.log1p(-gamma) + count * math.log(gamma)
    log_expm1 = exponent + np.log(-np.expm1(-exponent))
    return float(np.logaddexp(0.0, log_sum(log_weight + log_expm1)))


def log_moment_integral(order: float, t: float, gamma: float) -> float:
    """log F by Gauss-Legendre panels on the logarithm of the integrand; order > 1, t > 0, gamma < 1.

    The branch points of (1 + y)^a lie pi/sqrt(t) off the real line at the transition, where p = gamma
    e^v/(1 + y) goes from 0 to 1, v = sqrt(t) x - t/2: panels are 2 wide, and 2/sqrt(t) there.
    """
    edges = _edges(order, t, gamma)
    half = (edges[1:] - edges[:-1]) / 2
    x = (edges[:-1, None] + half[:, None] * (1 + NODES)).ravel()
    log_weight = np.log((half[:, None] * (WEIGHTS / math.sqrt(2 * math.pi))).ravel())
    log_excess = _log_excess(order, math.sqrt(t) * x - t / 2, gamma)
    return float(np.logaddexp(0.0, log_sum(log_excess - x * x / 2 + log_weight)))


def _log_moment_limit(order: float, t: float, gamma: float) -> float:
    """F = (1-gamma)^a + gamma^a e^{a(a-1) t/2}, the two sides of the transition for large t; its log."""
    left = (order - 1) * math.log1p(-gamma)
    right = (order - 1) * (math.log(gamma) + order / 2 * t)
    if right > LARGE:
        return float(np.logaddexp(math.log1p(-gamma) + left, math.log(gamma) + right))
    return math.log1p((1 - gamma) * math.expm1(left) + gamma * math.expm1(right))


def _edges(order: float, t: float, gamma: float) -> Floats:
    """Edges of panels over [-12, a sqrt(t) + 12], fine where there is mass, one panel where there is none.

    Left of the transition the integrand is a sum of bumps: one at 0, and binom(a, l) y^l at l sqrt(t) for
    l >= 2. Right of it there is one bump, at a sqrt(t).
    """
    root = math.sqrt(t)
    end = order * root + TAIL
    middle = t / 2 + math.log1p(-gamma) - math.log(gamma)
    low = min(max((middle - TRANSITION) / root, -TAIL), end)
    high = min(max((middle + TRANSITION) / root, -TAIL), end)
    right = max(high, end - 2 * TAIL)
    points = (-TAIL, low, high, right, end)
    widths = (PANEL, min(PANEL, PANEL / root), math.inf, PANEL)
    parts = [_cut(*span) for span in zip(points, points[1:], widths, strict=False) if span[1] > span[0]]
    return np.concatenate([*parts, [end]])


def _cut(low: float, high: float, width: float) -> Floats:
    """Left edges of equal panels of at most `width` over [low, high)."""
    count = max(1, math.ceil((high - low) / width))
    return low + (high - low) / count * np.arange(count, dtype=np.float64)


def _log_excess(order: float, v: Floats, gamma: float) -> Floats:
    """log((1 + y)^a - 1 - a y) for y = gamma expm1(v): series, difference or logarithms, by size."""
    result = np.empty_like(v)
    y = gamma * np.expm1(np.minimum(v, LARGEST_EXPONENT))
    small = np.abs(order * y) < SERIES_BELOW
    log_base = np.log1p(y)
    large = (v >= LARGEST_EXPONENT) | (order * log_base >= LARGE)
    middle = ~(small | large)
    with np.errstate(divide="ignore"):  # where v is 0 so is the integrand, its logarithm -inf
        result[small] = np.log(_binomial_series(order, y[small]))
    # As (1 + y) [(1 + y)^(a-1) - 1] - (a - 1) y, nothing is lost where a is near 1.
    above, y = order - 1, y[middle]
    result[middle] = np.log((1 + y) * np.expm1(above * log_base[middle]) - above * y)
    log_base = np.logaddexp(math.log1p(-gamma), math.log(gamma) + v[large])
    # log of (1 + y)^a over 1 + a y = a (1 + y) - (a - 1)
    beyond = above * log_base - math.log1p(above) - np.log1p(-above / order * np.exp(-log_base))
    result[large] = order * log_base + np.log(-np.expm1(-beyond))
    return result


def _binomial_series(order: float, y: Floats) -> Floats:
    """sum_{j=2}^{12} binom(a, j) y^j, by Horner; |a y| < .1 leaves a relative error below 1e-12."""
    total = np.zeros_like(y)
    for j in range(SERIES_TERMS, 2, -1):
        total = (order - j + 1) / j * y * (1 + total)
    return order * (order - 1) / 2 * y * y * (1 + total)


def log_sum(logs: Floats) -> float:
    """Return log sum exp of finite or -infinite logarithms, any shape."""
    largest = float(np.max(logs))
    return largest + math.log(float(np.sum(np.exp(logs - largest)))) if math.isfinite(largest) else largest

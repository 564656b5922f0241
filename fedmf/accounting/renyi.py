"""The Renyi curve of one epoch, for every real order above 1.

Per coordinate, with gamma the keep probability, t = (kappa / sigma)^2 and E over x ~ N(0, 1),

    y = gamma expm1(sqrt(t) x - t/2),   F_a(t) = E (1 + y)^a,   f_a(t) = log F_a(t) / (a - 1).

Theorem (Chen, Isik, Kairouz, No, Oh, Xu, ICML 2024, Theorem 5.1, corrected; adaptive streams; zero-out
adjacency, both directions; one participation per epoch): with K = (kappa_2/kappa_inf)^2 one epoch is
(a, eps(a))-RDP for

    eps(a) = floor(K) f_a(t) + f_a(kappa_2^2/sigma^2 - floor(K) t),  t = kappa_inf^2/sigma^2

           <= K f_a(t)                                               (the paper's form)

because t -> f_a(t) is convex, increasing and 0 at 0, so that the worst split of kappa_2^2 over the
coordinates puts as much as allowed on as few as possible. Convex for every real a > 1, where the paper
proves integers: F_a(t) = e^{-t/8} E_{x~N(0,t)} k(x), k(x) = e^{-x/2} (1-gamma+gamma e^x)^a; by the heat
equation and Cauchy-Schwarz k k'''' >= (k'')^2 suffices, and with p = gamma e^x/(1-gamma+gamma e^x) the
difference is k^2 a p (1-p) [4 (a-1)^2 p^2 + 2 (a-1) p (1-p)] >= 0.

As E y = 0, F_a(t) = 1 + E [(1 + y)^a - 1 - a y]. The last integrand is never negative (Bernoulli), so nothing
cancels: log F keeps its relative accuracy (1e-11) where F - 1 is 1e-18, which matters because it is multiplied by
up to 10^6 coordinates and epochs.

    >>> event = EpochEvent(noise_multiplier=0.05, keep_probability=0.01, linf_over_l2=0.01)
    >>> round(rdp(event, 2.0), 10)
    0.0408106909
    >>> round(log_moment(2.0, 1.0, 0.5), 12) == round(math.log1p(0.25 * math.expm1(1.0)), 12)
    True
"""

import math
from functools import lru_cache

import numpy as np

from fedmf.accounting.epoch import EpochEvent
from fedmf.errors import SettingError

Floats = np.typing.NDArray[np.float64]

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


def rdp(event: EpochEvent, order: float) -> float:
    """Return eps(order) of one epoch in nats; infinite where the noise multiplier is 0.

    Zero-out adjacency, both directions, one participation per epoch. Raises `SettingError` for an order of 1 or below.
    The count of an epoch follows its sums and depends on them: adaptive composition adds its divergence (Mironov 2017,
    Propositions 1 and 7).
    """
    check_order(order)
    if event.count_noise is not None:
        return rdp(event.without_count, order) + gaussian_rdp(order, event.count_noise)
    z, gamma = event.noise_multiplier, event.keep_probability
    if z == 0:
        return math.inf
    if gamma == 1:
        return gaussian_rdp(order, z)
    signal = event.linf_over_l2 / z
    t = signal * signal
    whole = math.floor(event.ratio)
    # Never negative in exact arithmetic; clamped so that no rounding can make it so.
    remainder = _over_square(max(0.0, 1.0 - whole * event.linf_over_l2**2), z)
    return whole * rdp_per_coordinate(order, t, gamma) + rdp_per_coordinate(order, min(remainder, t), gamma)


def gaussian_rdp(order: float, noise_multiplier: float) -> float:
    """Return a/(2 z^2), the divergence of a Gaussian whose noise is z times its sensitivity; infinite for z = 0."""
    return _over_square(order / 2, noise_multiplier)


def rdp_per_coordinate(order: float, t: float, keep_probability: float) -> float:
    """Return f_a(t) = log F_a(t) / (a - 1): one coordinate with squared signal-to-noise t >= 0."""
    return log_moment(order, t, keep_probability) / (order - 1)


def check_order(order: float) -> None:
    """Raise `SettingError` unless 1 < order < infinity."""
    if not (order > 1 and math.isfinite(order)):
        raise SettingError(f"the Renyi order is {order}; it must be a finite number above 1.")


def _over_square(numerator: float, value: float) -> float:
    """numerator / value^2, infinite where value^2 underflows."""
    square = value * value
    return numerator / square if square > 0 else (math.inf if numerator > 0 else 0.0)


@lru_cache(REMEMBERED)  # a run is calibrated, then accounted for after each epoch, at the same orders
def log_moment(order: float, t: float, keep_probability: float) -> float:
    """Return log F_a(t) >= 0 for a real order a > 1, t >= 0, gamma in (0, 1], to 1e-11 relative.

    Infinite for infinite t. From t = 10^4 on the integral is its limit.
    """
    if t == 0:
        return 0.0
    if not math.isfinite(t):
        return math.inf
    if keep_probability == 1:
        return order * (order - 1) * t / 2
    if t >= TWO_BUMPS:  # F = (1-gamma)^a + gamma^a e^{a(a-1) t/2}, the two sides of the transition
        log_kept, log_dropped = math.log(keep_probability), math.log1p(-keep_probability)
        left, right = (order - 1) * log_dropped, (order - 1) * (log_kept + order / 2 * t)
        if right > LARGE:
            return max(0.0, float(np.logaddexp(log_dropped + left, log_kept + right)))
        excess = (1 - keep_probability) * math.expm1(left) + keep_probability * math.expm1(right)
        return max(0.0, math.log1p(excess))
    return log_moment_integral(order, t, keep_probability)


def log_moment_integral(order: float, t: float, gamma: float) -> float:
    """log F by Gauss-Legendre panels on the logarithm of the integrand; order > 1, t > 0, gamma < 1.

    The branch points of (1 + y)^a lie pi/sqrt(t) off the real line at the transition, where p = gamma
    e^v/(1 + y) goes from 0 to 1, v = sqrt(t) x - t/2: panels are 2 wide, and 2/sqrt(t) there.
    """
    edges = _edges(order, t, gamma)
    half = (edges[1:] - edges[:-1]) / 2
    x = (edges[:-1, None] + half[:, None] * (1 + NODES)).ravel()
    log_weight = np.log((half[:, None] * (WEIGHTS / math.sqrt(2 * math.pi))).ravel())
    logs = _log_excess(order, math.sqrt(t) * x - t / 2, gamma) - x * x / 2 + log_weight
    largest = float(logs.max())
    if not math.isfinite(largest):  # all of them are -infinite where t is next to 0
        return float(np.logaddexp(0.0, largest))
    return float(np.logaddexp(0.0, largest + math.log(float(np.exp(logs - largest).sum()))))


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
    points = (-TAIL, low, high, max(high, end - 2 * TAIL), end)
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
        # sum_{j=2}^{12} binom(a, j) y^j, by Horner; |a y| < 0.1 leaves a relative error below 1e-12.
        total, near = np.zeros(int(small.sum())), y[small]
        for j in range(SERIES_TERMS, 2, -1):
            total = (order - j + 1) / j * near * (1 + total)
        result[small] = np.log(order * (order - 1) / 2 * near * near * (1 + total))
    # As (1 + y) [(1 + y)^(a-1) - 1] - (a - 1) y, nothing is lost where a is near 1.
    above, y = order - 1, y[middle]
    result[middle] = np.log((1 + y) * np.expm1(above * log_base[middle]) - above * y)
    log_base = np.logaddexp(math.log1p(-gamma), math.log(gamma) + v[large])
    # log of (1 + y)^a over 1 + a y = a (1 + y) - (a - 1)
    beyond = above * log_base - math.log1p(above) - np.log1p(-above / order * np.exp(-log_base))
    result[large] = order * log_base + np.log(-np.expm1(-beyond))
    return result

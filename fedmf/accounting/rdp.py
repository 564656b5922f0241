"""The Renyi curve of one epoch, for every real order above 1.

Per coordinate, with t = (kappa / sigma)^2 and E over x ~ N(0, 1),

    y = gamma expm1(sqrt(t) x - t/2),   F_a(t) = E (1 + y)^a,   f_a(t) = log F_a(t) / (a - 1).

Theorem (Chen, Isik, Kairouz, No, Oh, Xu, ICML 2024, Theorem 5.1, corrected; adaptive streams; zero-out
adjacency, both directions; one participation per epoch): with K = (kappa_2/kappa_inf)^2 one epoch is (a,
eps(a))-RDP for

    eps(a) = floor(K) f_a(t) + f_a(kappa_2^2/sigma^2 - floor(K) t),  t = kappa_inf^2/sigma^2     form="floor"
           <= K f_a(t)                                                                           form="ratio"

because t -> f_a(t) is convex, increasing and 0 at 0, so that the worst split of kappa_2^2 over the
coordinates puts as much as allowed on as few as possible. Convex for every real a > 1, where the paper
proves integers: F_a(t) = e^{-t/8} E_{x~N(0,t)} k(x), k(x) = e^{-x/2} (1-gamma+gamma e^x)^a; by the heat
equation and Cauchy-Schwarz k k'''' >= (k'')^2 suffices, and with p = gamma e^x/(1-gamma+gamma e^x) the
difference is k^2 a p (1-p) [4 (a-1)^2 p^2 + 2 (a-1) p (1-p)] >= 0.

K E is often 10^6, so F - 1 is what is computed, never F: it keeps its relative accuracy (1e-11) when it is
1e-18.

    >>> event = EpochRelease(noise_multiplier=0.05, keep_probability=0.01, linf_over_l2=0.01)
    >>> round(rdp(event, 2.0), 10)
    0.0408106909
"""

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln

from fedmf.accounting.release import EpochRelease
from fedmf.checks import check_choice
from fedmf.errors import SettingError

Form = Literal["floor", "ratio"]
Floats = npt.NDArray[np.float64]

TAIL = 12.0  # standard deviations; what lies beyond is below e^-72
WIDEST_STEP = 0.25
BRANCH_STEP = (
    0.5  # over sqrt(t): the branch points of (1 + y)^a lie pi/sqrt(t) off the real line, so error e^-39
)
MOST_POINTS = 1 << 16
LARGEST_SUM = 256  # integer orders up to here use the exact finite sum
LARGEST_EXPONENT = 600.0
SERIES_BELOW = 0.1
SERIES_TERMS = 12


def rdp(event: EpochRelease, order: float, form: Form = "floor") -> float:
    """Return eps(order) of one epoch in nats; infinite where the noise multiplier is 0.

    Zero-out adjacency, both directions, one participation per epoch. "floor" is the tighter form and the
    default, "ratio" the paper's. Raises `SettingError` for an order of 1 or below and for an unknown form.
    """
    check_order(order)
    check_choice("form", form, ("floor", "ratio"))
    z, gamma = event.noise_multiplier, event.keep_probability
    if z == 0:
        return math.inf
    if gamma == 1:
        return _over_square(order / 2, z)
    signal = event.linf_over_l2 / z
    t = signal * signal
    if form == "ratio":
        return event.ratio * rdp_per_coordinate(order, t, gamma)
    whole = math.floor(event.ratio)
    # Rounding may put floor(K) kappa_inf^2 an ulp above kappa_2^2; the exact remainder is never negative.
    remainder = _over_square(max(0.0, 1.0 - whole * event.linf_over_l2**2), z)
    return whole * rdp_per_coordinate(order, t, gamma) + rdp_per_coordinate(order, min(remainder, t), gamma)


def rdp_curve(event: EpochRelease, orders: Sequence[float] | Floats, form: Form = "floor") -> Floats:
    """Return eps(a) of one epoch for each order: shape [len(orders)], float64. See `rdp`."""
    return np.array([rdp(event, float(order), form) for order in orders], dtype=np.float64)


def rdp_per_coordinate(order: float, t: float, keep_probability: float) -> float:
    """Return f_a(t) = log F_a(t) / (a - 1): one coordinate with squared signal-to-noise t >= 0."""
    return log_moment(order, t, keep_probability) / (order - 1)


def log_moment(order: float, t: float, keep_probability: float) -> float:
    """Return log F_a(t) >= 0, to a relative accuracy of 1e-11; infinite for infinite t.

    Integer orders to 256 use the finite sum, all others the integral. Where the integral would need more
    than 2^16 points (sqrt(t) in the hundreds: epsilon in the ten thousands) the value is the upper bound
    that the convexity of a -> log F_a gives between the two integer orders around it.
    """
    if t == 0:
        return 0.0
    if not math.isfinite(t):
        return math.inf
    if keep_probability == 1:
        return order * (order - 1) * t / 2
    if order == math.floor(order) and order <= LARGEST_SUM:
        return _log_moment_sum(int(order), t, keep_probability)
    if _points(order, t) <= MOST_POINTS:
        return _log_moment_integral(order, t, keep_probability)
    return _log_moment_chord(order, t, keep_probability)


def check_order(order: float) -> None:
    """Raise `SettingError` unless 1 < order < infinity."""
    if not (order > 1 and math.isfinite(order)):
        raise SettingError(f"the Renyi order is {order}; it must be a finite number above 1.")


def _log_moment_sum(order: int, t: float, gamma: float) -> float:
    """F = 1 + sum_{l=2}^a binom(a,l) (1-gamma)^(a-l) gamma^l (e^{(l^2-l) t/2} - 1), integer a; its log.

    The paper's sum starts at l = 1, whose term does not vanish as the noise grows; its first term already
    holds l = 0 and 1 (2837 times too large at gamma = .01, a = 5, t = .0164).
    """
    count = np.arange(2, order + 1, dtype=np.float64)
    with np.errstate(over="ignore"):  # an infinite moment is the right answer for a vanishing sigma
        exponent = (count * count - count) * t / 2
    log_binomial = gammaln(order + 1.0) - gammaln(count + 1) - gammaln(order - count + 1)
    log_weight = log_binomial + (order - count) * math.log1p(-gamma) + count * math.log(gamma)
    log_expm1 = exponent + np.log(-np.expm1(-exponent))
    return float(np.logaddexp(0.0, _log_sum(log_weight + log_expm1)))


def _points(order: float, t: float) -> float:
    """Number of trapezoid steps over [-12, a sqrt(t) + 12], before rounding up."""
    root = math.sqrt(t)
    return (order * root + 2 * TAIL) / min(WIDEST_STEP, BRANCH_STEP / root)


def _log_moment_integral(order: float, t: float, gamma: float) -> float:
    """log F by the trapezoid rule on (1 + y)^a - 1 - a y, whose mean is F - 1 because E y = 0.

    The integrand is analytic and never negative (Bernoulli), so the rule converges geometrically and
    nothing cancels.
    """
    root = math.sqrt(t)
    x, step = np.linspace(-TAIL, order * root + TAIL, math.ceil(_points(order, t)) + 1, retstep=True)
    log_excess = _log_excess(order, root * x - t / 2, gamma)
    log_density = -x * x / 2 + math.log(step / math.sqrt(2 * math.pi))
    return float(np.logaddexp(0.0, _log_sum(log_excess + log_density)))


def _log_excess(order: float, v: Floats, gamma: float) -> Floats:
    """log((1 + y)^a - 1 - a y) for y = gamma expm1(v): series, difference or logarithms, by size."""
    result = np.empty_like(v)
    y = gamma * np.expm1(np.minimum(v, LARGEST_EXPONENT))
    small = np.abs(order * y) < SERIES_BELOW
    power = order * np.log1p(y)
    large = (v >= LARGEST_EXPONENT) | (power >= 30.0)
    middle = ~(small | large)
    with np.errstate(
        divide="ignore"
    ):  # y is exactly 0 where v is: the integrand is 0 there, its logarithm -inf
        result[small] = np.log(_binomial_series(order, y[small]))
    result[middle] = np.log(np.expm1(power[middle]) - order * y[middle])
    log_base = np.logaddexp(math.log1p(-gamma), math.log(gamma) + v[large])
    # 1 + a y = a (1 + y) - (a - 1).
    log_line = math.log(order) + log_base + np.log1p(-(order - 1) / order * np.exp(-log_base))
    result[large] = order * log_base + np.log1p(-np.exp(log_line - order * log_base))
    return result


def _binomial_series(order: float, y: Floats) -> Floats:
    """sum_{j=2}^{12} binom(a, j) y^j, by Horner; |a y| < .1 leaves a relative error below 1e-12."""
    total = np.zeros_like(y)
    for j in range(SERIES_TERMS, 2, -1):
        total = (order - j + 1) / j * y * (1 + total)
    return order * (order - 1) / 2 * y * y * (1 + total)


def _log_moment_chord(order: float, t: float, gamma: float) -> float:
    """An upper bound: a -> log F_a is convex and 0 at a = 1, so it lies below its chord between integers."""
    low = math.floor(order)
    share = order - low
    left = _log_moment_sum(low, t, gamma) if low > 1 else 0.0
    return (1 - share) * left + share * _log_moment_sum(low + 1, t, gamma) if share else left


def _log_sum(logs: Floats) -> float:
    """log sum exp; scipy's own, which is general, takes two thirds of an accountant's time."""
    largest = float(np.max(logs))
    return largest + math.log(float(np.sum(np.exp(logs - largest)))) if math.isfinite(largest) else largest


def _over_square(numerator: float, value: float) -> float:
    """numerator / value^2, infinite where value^2 underflows."""
    square = value * value
    return numerator / square if square > 0 else (math.inf if numerator > 0 else 0.0)

"""The inverse square root as a sum of poles, and the interval on which it must hold.

For W with spectrum in [m, M],  W^-1/2 = sum_k w_k (W + s_k)^-1 up to a relative error that falls
geometrically with the number of poles. Source: Hale, Higham, Trefethen, "Computing A^alpha, log(A), and
related matrix functions by contour integrals" (SIAM J. Numer. Anal. 2008), method 3.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.special import ellipj, ellipkm1

from fedmf.mechanisms.arrays import Float64
from fedmf.mechanisms.workload import Workload, gram_apply, rates

ROUNDING = 1e-12  # of the sums in a power step; for one round it also keeps low below high
TINY = 1e-200  # keeps the power iterates positive, as Collatz-Wielandt needs


class Interval(NamedTuple):
    """An interval [low, high] that holds the whole spectrum."""

    low: float
    high: float


class Poles(NamedTuple):
    """Shifts s (K,) and weights w (K,), all positive: W^-1/2 ~ sum_k w_k (W + s_k)^-1."""

    shifts: Float64
    weights: Float64


def poles(interval: Interval, tolerance: float) -> Poles:
    """Return the poles for spectra in `interval` with relative error `tolerance`.

    >>> s, w = poles(Interval(1.0, 100.0), 1e-10)
    >>> bool(abs((w / (9.0 + s)).sum() - 1 / 3) < 1e-10)
    True
    """
    ratio = interval.low / interval.high  # m / M
    # K poles leave a relative error of about 4 exp(-2 pi^2 K / (ln(M/m) + 3)).
    count = int(np.ceil(np.log(4 / tolerance) * (3 - np.log(ratio)) / (2 * np.pi**2)))
    period = ellipkm1(ratio)  # K', the complete elliptic integral of parameter 1 - m/M
    u = (np.arange(count) + 0.5) * period / count  # the midpoint rule on (0, K')
    sn, cn, dn = _jacobi(u, period, ratio)
    # s_k = m sc(u_k)^2 and w_k = (2 / pi) sqrt(m) (K' / K) dn(u_k) / cn(u_k)^2
    weights = 2 * period * np.sqrt(interval.low) / (np.pi * count) * dn / cn**2
    return Poles(interval.low * (sn / cn) ** 2, weights)


def _jacobi(u: Float64, period: float, ratio: float) -> tuple[Float64, Float64, Float64]:
    """Return sn, cn, dn of parameter 1 - ratio; by reflection beyond K'/2, where ellipj would lose cn."""
    near = u <= period / 2
    sn, cn, dn, _ = ellipj(np.where(near, u, period - u), 1 - ratio)
    root = np.sqrt(ratio)
    return np.where(near, sn, cn / dn), np.where(near, cn, root * sn / dn), np.where(near, dn, root / dn)


def spectral_interval(v: Float64, workload: Workload, iterations: int = 8) -> Interval:
    """Return a rigorous interval for the spectrum of V^-1/2 P V^-1/2, P = W^-1, in O(T).

    Collatz-Wielandt: for entrywise positive x, max_i (M x)_i / x_i bounds the spectral radius of a nonnegative M.
    The low end uses M = V^1/2 W V^1/2, where W = A^T A + R Q R^T has no negative entry. The high end uses the
    entrywise absolute value of V^-1/2 A^-1 A^-T V^-1/2, which has the same spectral radius because the signs of
    A^-1 form a checkerboard: |A^-1| = D A^-1 D with D = diag(+1, -1, ...). Later rounds only add to W, so
    P <= (A^T A)^-1 and the bound holds for them too.
    """
    eta = rates(workload)
    root = np.sqrt(v)  # V^1/2
    high_vector = 1 / (root * eta)  # a first x for the high end, where A^-1 is largest
    high_vector = np.maximum(high_vector, 1e-12 * high_vector.max())
    highest_inverse = _radius(lambda x: root * gram_apply(workload, root * x), root, iterations)
    highest = _radius(lambda x: _absolute_precision(x / root, workload, eta) / root, high_vector, iterations)
    return Interval((1 - ROUNDING) / highest_inverse, highest * (1 + ROUNDING))


def _absolute_precision(x: Float64, workload: Workload, eta: Float64) -> Float64:
    """Return |A^-1| |A^-1|^T x with |A^-1| = (I + beta Z) diag(1/eta) (I + Z), Z the shift down by one."""
    up = x.copy()  # (I + beta Z)^T x
    up[:-1] += workload.momentum * x[1:]
    up /= eta
    transposed = up.copy()  # |A^-1|^T x
    transposed[:-1] += up[1:]
    down = transposed.copy()  # (I + Z) of that
    down[1:] += transposed[:-1]
    down /= eta
    result = down.copy()  # |A^-1| |A^-1|^T x
    result[1:] += workload.momentum * down[:-1]
    return result


def _radius(multiply: Callable[[Float64], Float64], x: Float64, iterations: int) -> float:
    """Return the smallest Collatz-Wielandt upper bound met on the way of a few power steps."""
    bound = np.inf
    for _ in range(iterations):
        y = multiply(x)
        bound = min(bound, float((y / x).max()))  # max_i (W x)_i / x_i
        x = np.maximum(y / y.max(), TINY)
    return bound

"""The inverse square root as a sum of poles, and the interval on which it must hold.

For W with spectrum in [m, M],  W^-1/2 = sum_k w_k (W + s_k)^-1 up to a relative error below

    4 exp(-2 pi^2 K / log(16 M / m))

with K poles. The poles are those of Hale, Higham, Trefethen, "Computing A^alpha, log(A), and related matrix
functions by contour integrals" (SIAM J. Numer. Anal. 2008), method 3: the midpoint rule in an elliptic variable.
For the inverse square root that rule gives Zolotarev's best rational approximation of the sign up to a factor. The
factor is divided out here, so that the error equioscillates and the bound on Zolotarev's numbers of Beckermann and
Townsend, "On the singular values of matrices with displacement structure" (SIAM J. Matrix Anal. Appl. 2017),
Corollary 3.2, is a theorem about these poles. docs/theory.md, section 6, has the proof.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.special import ellipk

from fedmf.mechanisms.workload import Float64, Workload, gram_apply, rates

ROUNDING = 1e-12  # of the poles themselves, and of the sums in a power step, which also grow with T
TINY = 1e-200  # keeps the power iterates positive, as Collatz-Wielandt needs
EQUAL_MEANS = 1e-9  # the next arithmetic and geometric mean differ by an eighth of its square


class Interval(NamedTuple):
    """An interval [low, high] that holds the whole spectrum."""

    low: float
    high: float


class Poles(NamedTuple):
    """Shifts s (K,) and weights w (K,), all positive: W^-1/2 ~ sum_k w_k (W + s_k)^-1."""

    shifts: Float64
    weights: Float64


def poles(interval: Interval, tolerance: float) -> Poles:
    """Return the fewest poles whose relative error on `interval` is at most `tolerance` by the bound above.

    >>> s, w = poles(Interval(1.0, 100.0), 1e-10)
    >>> bool(abs((w / (9.0 + s)).sum() - 1 / 3) < 1e-10 / 3)
    True
    """
    count = np.log(4 / tolerance) * np.log(16 * interval.high / interval.low) / (2 * np.pi**2)
    return zolotarev(interval, max(1, int(np.ceil(count))))


def zolotarev(interval: Interval, count: int) -> Poles:
    """Return the `count` poles whose largest relative error on `interval` is the least possible."""
    ratio = interval.low / interval.high  # m / M
    cs, dn, period = _jacobi(count, ratio)
    # The midpoint rule: s_k = m sc(u_k)^2, w_k = (2 / pi) sqrt(m) (K' / K) dn(u_k) / cn(u_k)^2.
    weights = 2 * period * np.sqrt(interval.low) / (np.pi * count) * dn * (1 + cs**-2)
    # Its relative error lies between theta_4(q)^2 - 1 and theta_3(q)^2 - 1, about -4 q and 4 q; the half sum of both
    # squares is theta_3(q^2)^2. Divided by that, the error is the same up and down, and the least possible.
    q = np.exp(-2 * np.pi * count * ellipk(ratio) / period)
    theta = 1 + 2 * (q ** (2.0 * np.arange(1, 9) ** 2)).sum()
    return Poles(interval.low / cs**2, weights / theta**2)


def _jacobi(count: int, ratio: float) -> tuple[Float64, Float64, float]:
    """Return cs = cn / sn and dn, (K,), at u_k = (k + 1/2) K' / K, k = 0 .. K - 1, and the period K'.

    K' is the complete elliptic integral, and the functions are those, of parameter 1 - `ratio`. Landen's
    transformation as in Bulirsch (Numer. Math. 1965): it takes the complementary parameter, which is known to all
    digits where 1 - `ratio` is not, and it adds, multiplies and divides positive numbers only.
    """
    larger, smaller = 1.0, float(np.sqrt(ratio))
    means = [(larger, smaller)]
    while larger - smaller > EQUAL_MEANS * larger:
        larger, smaller = (larger + smaller) / 2, float(np.sqrt(larger * smaller))
        means.append((larger, smaller))
    limit = (larger + smaller) / 2
    # At equal means cs is the cotangent; from its complement it has all digits near pi / 2 too.
    scaled = np.tan(np.pi / 2 * (count - np.arange(count) - 0.5) / count)
    cs, dn = limit * scaled, np.ones(count)
    for larger, smaller in reversed(means):
        product = scaled * cs
        cs = cs * dn
        dn = (smaller + product) / (larger + product)
        scaled = cs / larger
    return cs, dn, float(np.pi / (2 * limit))


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
    # W x is four running sums of positive numbers in turn, two of them with a product at every step: 6 T roundings.
    summed = ROUNDING + 4 * np.finfo(np.float64).eps * workload.rounds
    return Interval((1 - summed) / highest_inverse, highest * (1 + ROUNDING))


def _absolute_precision(x: Float64, workload: Workload, eta: Float64) -> Float64:
    """Return |A^-1| |A^-1|^T x with |A^-1| = (I + beta Z) diag(1/eta) (I + Z), Z the shift down by one."""
    beta = workload.momentum
    up = (x + beta * np.append(x[1:], 0.0)) / eta  # (I + beta Z)^T x, over eta
    transposed = up + np.append(up[1:], 0.0)  # |A^-1|^T x
    down = (transposed + np.append(0.0, transposed[:-1])) / eta  # (I + Z) of that, over eta
    return np.asarray(down + beta * np.append(0.0, down[:-1]))


def _radius(multiply: Callable[[Float64], Float64], x: Float64, iterations: int) -> float:
    """Return the smallest Collatz-Wielandt upper bound met on the way of a few power steps."""
    bound = np.inf
    for _ in range(iterations):
        y = multiply(x)
        bound = min(bound, float((y / x).max()))  # max_i (W x)_i / x_i
        x = np.maximum(y / y.max(), TINY)
    return bound

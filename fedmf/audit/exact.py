"""Exact two-sided p-values of the laws that honest releases follow; each is at most uniform, whatever the sample size.

Two-sided: twice the smaller tail, at most 1. Arrays in, arrays out. A p-value of exactly 0 stands for one below what
float64 can hold.
"""

import numpy as np
import numpy.typing as npt
from scipy.special import bdtr, bdtrc, betainc, chdtr, chdtrc, ndtr, ndtri

from fedmf.mechanisms.arrays import Float64


def two_sided(lower: npt.ArrayLike, upper: npt.ArrayLike) -> Float64:
    """Return twice the smaller of two tail probabilities, at most 1."""
    return np.asarray(np.minimum(1.0, 2 * np.minimum(lower, upper)))


def normal(z: npt.ArrayLike) -> Float64:
    """Return the p-value of a value that is N(0, 1)."""
    return np.asarray(2 * ndtr(-np.abs(z)))


def chi_square(sum_of_squares: npt.ArrayLike, count: int) -> Float64:
    """Return the p-value of the sum of squares of `count` independent N(0, 1): chi-square with as many degrees.

    >>> round(float(chi_square(3.841459, 1)), 4)  # the 95 % point, and two-sided
    0.1
    """
    values = np.asarray(sum_of_squares, np.float64)
    return two_sided(chdtr(count, values), chdtrc(count, values))


def chi_square_scores(sums_of_squares: npt.ArrayLike, count: int) -> Float64:
    """Return the normal scores of sums of squares of `count` independent N(0, 1): themselves N(0, 1).

    >>> round(float(chi_square_scores(3.841459, 1)), 4)  # the 95 % point of both
    1.6449
    """
    values = np.asarray(sums_of_squares, np.float64)
    lower, upper = (np.maximum(tail, 1e-300) for tail in (chdtr(count, values), chdtrc(count, values)))
    return np.asarray(np.where(lower < upper, ndtri(lower), -ndtri(upper)))


def binomial(successes: npt.ArrayLike, trials: int, probability: float) -> Float64:
    """Return the p-value of a count that is Binomial(`trials`, `probability`).

    >>> round(float(binomial(0, 10, 0.5)), 6)  # 2 / 2^10
    0.001953
    """
    counts = np.asarray(successes, np.float64)
    return two_sided(
        bdtr(counts, trials, probability), np.where(counts > 0, bdtrc(counts - 1, trials, probability), 1.0)
    )


def correlation(cosine: Float64, count: int) -> Float64:
    """Return the p-value of the cosine of two independent vectors of `count` independent N(0, s^2), any s.

    Its square is Beta(1/2, (count - 1)/2): a fixed direction against a uniform one on the sphere. No mean is
    subtracted. A scale that is wrong does not change the law, so that this sees dependence alone.
    """
    squared = np.clip(np.square(cosine), 0.0, 1.0)
    return np.asarray(
        betainc((count - 1) / 2, 0.5, 1 - squared)
    )  # the upper tail, without a subtraction from 1


def largest(magnitude: float, count: int, error: float = 0.0) -> float:
    """Return the p-value of the largest of `count` independent |N(0, 1)|: its law is (2 Phi(m) - 1)^count.

    Of a magnitude that is known to `error`: the largest p-value that it may have.
    """
    return float(two_sided(_all_within(magnitude + error, count), _one_beyond(magnitude - error, count)))


def _all_within(magnitude: float, count: int) -> float:
    outside = 2 * float(ndtr(-magnitude))
    return float(np.exp(count * np.log1p(-outside))) if outside < 1 else 0.0


def _one_beyond(magnitude: float, count: int) -> float:
    outside = 2 * float(ndtr(-magnitude))
    return float(-np.expm1(count * np.log1p(-outside))) if outside < 1 else 1.0


def least(magnitude: float, count: int, error: float = 0.0) -> float:
    """Return the p-value of the smallest of `count` independent |N(0, 1)|: P[above m] = (2 Phi(-m))^count.

    Of a magnitude that is known to `error`: the largest p-value that it may have.
    """
    return float(two_sided(_one_within(magnitude + error, count), _all_beyond(magnitude - error, count)))


def _one_within(magnitude: float, count: int) -> float:
    # near 0, log of the probability outside = log1p(-(2 Phi(m) - 1)), which keeps the digits of a small m
    inside = float(ndtr(magnitude) - ndtr(-magnitude))
    return float(-np.expm1(count * np.log1p(-inside))) if inside < 1 else 1.0


def _all_beyond(magnitude: float, count: int) -> float:
    outside = 2 * float(ndtr(-max(magnitude, 0.0)))
    return float(np.exp(count * np.log(outside))) if outside > 0 else 0.0

"""Exact two-sided p-values of the laws that honest releases follow, for every sample size.

Two-sided: twice the smaller tail, at most 1. A p-value of 0 stands for one below what float64 can hold.
"""

import numpy as np
import numpy.typing as npt
from scipy.special import bdtr, bdtrc, betainc, chdtr, chdtrc, ndtr, ndtri

from fedmf.mechanisms.arrays import Float64


def two_sided(lower: npt.ArrayLike, upper: npt.ArrayLike) -> Float64:
    """Return twice the smaller of two tail probabilities, at most 1."""
    return np.asarray(np.minimum(1.0, 2 * np.minimum(lower, upper)))


def normal(z: npt.ArrayLike) -> Float64:
    """Return the p-values of values that are N(0, 1)."""
    return np.asarray(2 * ndtr(-np.abs(z)))


def chi_square(sums_of_squares: npt.ArrayLike, count: int) -> Float64:
    """Return the p-values of sums of squares of `count` independent N(0, 1).

    >>> round(float(chi_square(3.841459, 1)), 4)  # the 95 % point, and two-sided
    0.1
    """
    sums = np.asarray(sums_of_squares, np.float64)
    return two_sided(chdtr(count, sums), chdtrc(count, sums))


def chi_square_scores(sums_of_squares: npt.ArrayLike, count: int) -> Float64:
    """Return the normal scores of sums of squares of `count` independent N(0, 1): themselves N(0, 1).

    >>> round(float(chi_square_scores(3.841459, 1)), 4)  # the 95 % point of both
    1.6449
    """
    sums = np.asarray(sums_of_squares, np.float64)
    lower, upper = (np.maximum(tail, 1e-300) for tail in (chdtr(count, sums), chdtrc(count, sums)))
    return np.asarray(np.where(lower < upper, ndtri(lower), -ndtri(upper)))


def binomial(successes: npt.ArrayLike, trials: int, probability: float) -> Float64:
    """Return the p-values of counts that are Binomial(`trials`, `probability`).

    >>> round(float(binomial(0, 10, 0.5)), 6)  # 2 / 2^10
    0.001953
    """
    counts = np.asarray(successes, np.float64)
    upper = np.where(counts > 0, bdtrc(counts - 1, trials, probability), 1.0)
    return two_sided(bdtr(counts, trials, probability), upper)


def correlation(cosine: npt.ArrayLike, count: int) -> Float64:
    """Return the p-values of cosines of two independent vectors of `count` independent N(0, s^2), any s.

    The squared cosine is Beta(1/2, (count - 1)/2). No mean is subtracted, and the scale does not matter.
    """
    squared = np.clip(np.square(cosine), 0.0, 1.0)
    return np.asarray(
        betainc((count - 1) / 2, 0.5, 1 - squared)
    )  # the upper tail, without a subtraction from 1

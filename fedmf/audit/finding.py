"""The outcome of one kind of test, and the exact p-values behind it.

The p-values are two-sided, twice the smaller tail and at most 1, and hold for every sample size. A p-value of 0 stands for one
below what float64 can hold.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import bdtr, bdtrc, betainc, chdtr, chdtrc, ndtri

from fedmf.mechanisms.workload import Float64

Part = tuple[float, str, int]
"""The smallest p-value of several tests, where it was found, and how many tests there were."""


@dataclass(frozen=True)
class Finding:
    """The outcome of a test. `quantity` names the unit of `observed` and `limit`.

    "ratio": a length over what is accounted. Arithmetic: a ratio above its limit refutes with certainty.
    "p": the smallest p-value of `tests` exact tests times their number (Bonferroni). The limit is the probability with
    which all of them together accuse an honest stream; a p-value at or below it refutes.
    "epsilon": a lower bound from an attack. A bound above the limit, which is the stated epsilon, refutes.

    `where` is the round, coordinate or pair behind `observed`, all counted from 0. `is_inconclusive`: there was nothing to look at.
    """

    test: str
    observed: float
    limit: float
    refutes: bool
    quantity: str = "ratio"
    where: str = ""
    tests: int = 1
    is_inconclusive: bool = False

    @property
    def verdict(self) -> str:
        """The outcome in words."""
        return "inconclusive" if self.is_inconclusive else "refuted" if self.refutes else "nothing found"

    @property
    def sentence(self) -> str:
        """The finding in one line."""
        count = f" of {self.tests} tests" if self.tests > 1 else ""
        place = f" at {self.where}" if self.where else ""
        return f"{self.test}: {self.quantity} {self.observed:.4g}{count}{place}, limit {self.limit:.6g}: {self.verdict}"


def least(p_values: Float64, *axes: str) -> Part:
    """Return the smallest of `p_values` as a part; `axes` names the axes of the array.

    >>> least(np.array([[0.5, 0.1]]), "epoch", "round")
    (0.1, 'epoch 0, round 1', 2)
    """
    place = np.unravel_index(int(np.argmin(p_values)), p_values.shape)
    where = ", ".join(f"{axis} {index}" for axis, index in zip(axes, place, strict=True))
    return float(p_values.min()), where, p_values.size


def smallest(test: str, level: float, parts: Sequence[Part]) -> Finding:
    """Return the finding of all `parts`, which together accuse an honest stream with probability at most `level`."""
    p_value, where, _ = min(parts)
    count = sum(tests for _, _, tests in parts)
    corrected = min(1.0, count * p_value)
    return Finding(test, corrected, level, corrected <= level, "p", where, count)


def two_sided(lower: npt.ArrayLike, upper: npt.ArrayLike) -> Float64:
    """Return twice the smaller of two tail probabilities, at most 1."""
    return np.asarray(np.minimum(1.0, 2 * np.minimum(lower, upper)))


def chi_square_p(sums_of_squares: npt.ArrayLike, count: int) -> Float64:
    """Return the p-values of sums of squares of `count` independent N(0, 1).

    >>> round(float(chi_square_p(3.841459, 1)), 4)  # the 95 % point, and two-sided
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


def binomial_p(successes: npt.ArrayLike, trials: int, probability: float) -> Float64:
    """Return the p-values of counts that are Binomial(`trials`, `probability`).

    >>> round(float(binomial_p(0, 10, 0.5)), 6)  # 2 / 2^10
    0.001953
    """
    counts = np.asarray(successes, np.float64)
    upper = np.where(counts > 0, bdtrc(counts - 1, trials, probability), 1.0)
    return two_sided(bdtr(counts, trials, probability), upper)


def cosine_p(cosine: npt.ArrayLike, count: int) -> Float64:
    """Return the p-values of cosines of two independent vectors of `count` independent N(0, s^2), any s.

    The squared cosine is Beta(1/2, (count - 1)/2). No mean is subtracted, and the scale does not matter.
    """
    squared = np.clip(np.square(cosine), 0.0, 1.0)
    return np.asarray(betainc((count - 1) / 2, 0.5, 1 - squared))  # the upper tail, not 1 minus the lower

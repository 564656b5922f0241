"""P-values of values that are known to an error only: the largest one that any values within it would have.

Each of n values x is known as x' with |x' - x| <= r, and what the error hangs on is not known: it may be the rounding of x
itself, or the same in all. Each function gives the p-value of a statistic of x, maximised over the errors, or more. So it
is at most uniform whatever they are, and with r = 0 the exact one.

    lengths     | ||x'|| - ||x|| | <= r sqrt(n)
    sums        | sum x' - sum x | <= r n
    cosines     the angle of x and x' has a sine of at most e = r sqrt(n)/||x'||, so that x/||x|| moves by sqrt(2) e at most,
                and the cosine of two rows by the sum of both
    counts      a value within r of a limit may be on either side of it
"""

import numpy as np
import numpy.typing as npt
from scipy.special import bdtr, bdtrc, chdtr, chdtrc, ndtr

from fedmf.audit import exact
from fedmf.mechanisms.arrays import Float64


def chi_square(sums_of_squares: npt.ArrayLike, count: int, resolution: float) -> Float64:
    """Return the p-values of sums of squares of `count` independent N(0, 1), each known to `resolution`.

    >>> round(float(chi_square(3.841459, 1, 0.0)), 4)
    0.1
    >>> bool(chi_square(3.841459, 1, 0.1) == exact.chi_square((3.841459**0.5 - 0.1) ** 2, 1))
    True
    """
    low, high = _squares(sums_of_squares, count, resolution)
    return exact.two_sided(chdtr(count, high), chdtrc(count, low))


def _squares(sums_of_squares: npt.ArrayLike, count: int, resolution: float) -> tuple[Float64, Float64]:
    """Return the least and the largest that sums of `count` squares may be."""
    sums = np.asarray(sums_of_squares, np.float64)
    if resolution == 0:
        return sums, sums
    lengths, slack = np.sqrt(sums), resolution * count**0.5
    return np.maximum(lengths - slack, 0) ** 2, (lengths + slack) ** 2


def spread(sums_of_squares: npt.ArrayLike, count: int, resolution: float) -> Float64:
    """Return the p-value of how far apart sums of `count` squares are: of the sum of squares of their normal scores."""
    low, high = (
        exact.chi_square_scores(sums, count) for sums in _squares(sums_of_squares, count, resolution)
    )
    least = np.maximum(0, np.maximum(low, -high))  # in magnitude; 0 where the sign is not known
    most = np.maximum(np.abs(low), np.abs(high))
    return exact.two_sided(chdtr(len(low), most @ most), chdtrc(len(low), least @ least))


def mean(sums: npt.ArrayLike, count: int, resolution: float) -> Float64:
    """Return the p-values of sums of `count` independent N(0, 1), each known to `resolution`."""
    return normal(np.asarray(sums) / count**0.5, resolution * count**0.5)


def normal(z: npt.ArrayLike, error: float) -> Float64:
    """Return the p-value of a value that is N(0, 1), known to `error`."""
    return exact.normal(np.maximum(np.abs(z) - error, 0))


def turned(lengths: npt.ArrayLike, count: int, resolution: float) -> Float64:
    """Return by how much the directions of rows of `count` values may be wrong, at most 1; `lengths` are theirs."""
    error = 2**0.5 * resolution * count**0.5
    return np.asarray(error / np.maximum(lengths, max(error, np.finfo(np.float64).tiny)))


def binomial(fewest: npt.ArrayLike, most: npt.ArrayLike, trials: int, probability: float) -> Float64:
    """Return the p-value of a count that is Binomial(`trials`, `probability`) and lies in fewest .. most."""
    low = np.asarray(fewest, np.float64)
    return exact.two_sided(
        bdtr(np.asarray(most, np.float64), trials, probability),
        np.where(low > 0, bdtrc(low - 1, trials, probability), 1.0),
    )


def beyond(sizes: Float64, limit: float, resolution: float) -> float:
    """Return the p-value of how many of |N(0, 1)| lie beyond `limit`, each known to `resolution`."""
    fewest = np.count_nonzero(sizes > limit + resolution)
    most = np.count_nonzero(sizes > limit - resolution)
    return float(binomial(fewest, most, sizes.size, 2 * float(ndtr(-limit))))


def sides(values: Float64, limit: float, resolution: float) -> npt.NDArray[np.int8]:
    """Return 1 for values of a magnitude beyond `limit`, -1 for those within, 0 where that is not known."""
    sizes = np.abs(values)
    return (sizes > limit + resolution).astype(np.int8) - (sizes <= limit - resolution).astype(np.int8)


def same_side(ours: npt.NDArray[np.int8], others: npt.NDArray[np.int8]) -> float:
    """Return the p-value of how often two `sides` of an even chance are the same: half of the time."""
    product = ours * others
    fewest, most = np.count_nonzero(product == 1), ours.size - np.count_nonzero(product == -1)
    return float(binomial(fewest, most, ours.size, 0.5))

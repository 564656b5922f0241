"""Directions: the covariance of the noise as a whole, which sees what no variance and no pair of coordinates shows.

Noise that is missing along one public direction leaves every coordinate its variance, nearly, and every two coordinates
uncorrelated, nearly; whoever knows the direction reads the sum along it. Rows that are public linear maps of each other,
such as a permuted or rotated one, are of that kind too, in the coordinates of both together. Under the statement a matrix
X of N rows, p coordinates each, has iid N(0, 1) entries, and the eigenvalues of X^T X tell. Three tests, whose p-values are
at most uniform for every N >= p:

The smallest eigenvalue. Its density is K prod_i l_i^a e^(-l_i/2) prod_(i<j) (l_i - l_j), a = (N - p - 1)/2, over ordered
eigenvalues, integrated over all but the smallest one l. There (l_i - l) <= l_i, and letting l_i reach down to 0 adds only:
what is left is the same density of p - 1 coordinates and N + 1 rows. So the density is at most K(p, N)/K(p - 1, N + 1) l^a
e^(-l/2), and

    P[smallest <= x] <= sqrt(pi) G((N + 1)/2) / (G(p/2) G((N - p + 2)/2)) P[chi-square of N - p + 1 degrees <= x],

G the gamma function; an equality for p = 1. Sharp near 0. For N far above p that of Davidson and Szarek is better, by
Gordon's theorem and the concentration of a Lipschitz function of Gaussians: P[s_min <= sqrt(N) - sqrt(p) - t] <= e^(-t^2/2).
Both are increasing in x, so that the smaller of them is a bound on the p-value.

The largest eigenvalue: P[s_max >= sqrt(N) + sqrt(p) + t] <= e^(-t^2/2).

The volume. X = Q R with R_ii^2 independent chi-squares of N - i + 1 degrees (Bartlett). Their normal scores, added with
weights (N - i + 1)^(-1/2), in which log det is nearly linear, are exactly normal. Sees many directions with a little less
noise each.

Of entries known to an error, X' = X + E with ||E|| <= e, singular values are known to e, and pivots to e/s_min(X') of
themselves: R_ii is the least ||X_i (c, 1)|| over all c, X_i the first i columns, and the c of one of both matrices gives a
vector whose length in the other differs by at most e ||(c, 1)|| <= e ||X'_i (c, 1)||/s_min(X').

Where N is too small for all coordinates together, blocks of neighbouring ones are looked at, as many as rows allow, and
their volumes added: rows that are rotations of each other lose a little in every block. A single direction that is
spread over more coordinates than there are rows is not seen; it is nearly orthogonal to every block.
"""

import math

import numpy as np
import numpy.typing as npt
from scipy.special import chdtr, gammaln, ndtr

from fedmf.audit import exact
from fedmf.mechanisms.arrays import Float64

SPARE = 8  # rows beyond the coordinates, below which blocks are looked at
_ROUNDING = 2.0**-40  # of the largest singular value: far above what float64 makes of the smallest


def direction_tests(
    values: Float64, resolution: float, looked_at: npt.NDArray[np.integer] | None = None
) -> list[tuple[float, str, int]]:
    """Return p-values with their names and of how many tests each is the smallest, for values (runs, epochs, T, d).

    Coordinates by themselves, of which every round of every epoch of every run is a row; stacked over the rounds of an
    epoch, over epochs at the same step, and over the whole run, of which each run is one row. `resolution` is the error of
    a value, `looked_at` the numbers of the coordinates, 0 .. d - 1 unless given.
    """
    looked_at = np.arange(values.shape[-1]) if looked_at is None else looked_at
    runs, epochs, rounds, d = values.shape
    by_coordinate = values.transpose(3, 0, 1, 2)  # d, runs, epochs, T
    found = []
    for name, samples, stacked in (
        ("coordinates", (1, 2, 3), ()),
        ("coordinates of all rounds", (1, 2), (3,)),
        ("coordinates of all epochs", (1, 3), (2,)),
        ("coordinates of the whole run", (1,), (2, 3)),
    ):
        deep = [by_coordinate.shape[axis] for axis in stacked]
        if 1 in deep:
            continue  # the arrangement is one of those before
        height = math.prod(deep)
        count = runs * epochs * rounds // height
        columns = by_coordinate.transpose(0, *stacked, *samples).reshape(d * height, count)
        width = d * height if count >= d * height + SPARE else count // 2 // height * height
        if width:
            found += _of_blocks(name, columns, width, np.repeat(looked_at, height), resolution)
    return found


def _of_blocks(
    name: str, columns: Float64, width: int, numbers: npt.NDArray[np.integer], resolution: float
) -> list[tuple[float, str, int]]:
    """Return the tests of columns (k, N), `width` of them at a time, of the coordinates of these `numbers` (k,)."""
    whole = len(columns) // width * width
    blocks = [columns[:whole].reshape(-1, width, columns.shape[1])]
    if whole < len(columns):
        blocks.append(columns[whole:][None])
    low, high, weights = [], [], []
    scores: tuple[list[float], list[float]] = ([], [])
    for stack in blocks:
        p, rows = stack.shape[1:]
        upper = np.linalg.qr(stack.transpose(0, 2, 1), mode="r")
        sizes = np.linalg.svd(upper, compute_uv=False)
        error = resolution * (rows * p) ** 0.5
        slack = error + _ROUNDING * sizes[:, 0]
        doubt = error / np.maximum(
            sizes[:, -1], max(error, np.finfo(np.float64).tiny)
        )  # of pivots, at most 1
        low.append(smallest_eigenvalue((sizes[:, -1] + slack) ** 2, rows, p))
        high.append(largest_eigenvalue(np.maximum(sizes[:, 0] - slack, 0) ** 2, rows, p))
        for place, pivots in enumerate(np.diagonal(upper, axis1=1, axis2=2).T):
            for factor, found in zip((1 - doubt, 1 + doubt), scores, strict=True):
                score = exact.chi_square_scores((factor * pivots) ** 2, rows - place).sum()
                found.append(float(score) / (rows - place) ** 0.5)
            weights.append(len(pivots) / (rows - place))
    lowest, highest = np.concatenate(low), np.concatenate(high)
    least, most = (sum(found) / sum(weights) ** 0.5 for found in scores)
    volume = float(exact.two_sided(ndtr(most), ndtr(-least)))

    def named(p_values: Float64, which: str) -> tuple[float, str, int]:
        place = int(p_values.argmin())
        first, last = numbers[place * width], numbers[min((place + 1) * width, len(columns)) - 1]
        return float(p_values[place]), f"{name} {first} to {last}, {which}", len(p_values)

    return [
        named(lowest, "the direction with the least noise"),
        named(highest, "the direction with the most noise"),
        (volume, f"{name}, the volume of their noise", 1),
    ]


def smallest_eigenvalue(eigenvalue: Float64, rows: int, coordinates: int) -> Float64:
    """Return a bound on the p-values of the smallest eigenvalues of X^T X, X (rows, coordinates) iid N(0, 1).

    >>> round(float(smallest_eigenvalue(np.array([0.3]), 5, 1)[0]), 4)  # chi-square itself
    0.0024
    """
    degrees = rows - coordinates + 1
    factor = (
        0.5 * np.log(np.pi) + gammaln((rows + 1) / 2) - gammaln(coordinates / 2) - gammaln((degrees + 1) / 2)
    )
    with np.errstate(divide="ignore"):
        near_zero = factor + np.log(chdtr(degrees, eigenvalue))
    short = np.maximum(rows**0.5 - coordinates**0.5 - np.sqrt(eigenvalue), 0)
    return np.asarray(np.exp(np.minimum(0.0, np.minimum(near_zero, -(short**2) / 2))))


def largest_eigenvalue(eigenvalue: Float64, rows: int, coordinates: int) -> Float64:
    """Return a bound on the p-values of the largest eigenvalues of X^T X, X (rows, coordinates) iid N(0, 1)."""
    beyond = np.maximum(np.sqrt(eigenvalue) - rows**0.5 - coordinates**0.5, 0)
    return np.asarray(np.exp(-(beyond**2) / 2))

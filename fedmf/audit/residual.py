"""Residuals: what is left of releases when the clients' known part is taken away must be the stated noise, exactly.

The statement under test. What remains, whitened by W / sigma (see `fedmf.audit.stated`), is iid N(0, 1) over runs, epochs,
rounds and coordinates. Every test is exact for every sample size, so that all of them together accuse an honest stream with
probability at most `false_alarm`: each kind has an equal share of it, and within a kind each test an equal share of that.

    variance          sums of squares together and along every axis: chi-square; and whether they are as far apart as they should be
    correlation       the largest cosine of two rounds, two runs, two coordinates, two numbers of a run: beta
    directions        smallest and largest eigenvalue of the covariance of all coordinates, and of all numbers of a run
    repeated rows     the largest cosine of any two rows, also moved by any number of coordinates or read backwards, and
                      of the two halves of a row: beta
    tails             how many values are beyond each of several limits: binomial; and the largest one: normal
    grid              how many values have no more bits than float16 or bfloat16 has: binomial
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import scipy.fft
from scipy.special import bdtrc, chdtr, gammaln, ndtr

from fedmf.audit.finding import (
    Finding,
    Part,
    binomial_p,
    chi_square_p,
    chi_square_scores,
    cosine_p,
    least,
    smallest,
)
from fedmf.audit.stated import Stated
from fedmf.checks import check_open_unit
from fedmf.mechanisms.workload import Float64

VARIANCE = "residual variance"
CORRELATION = "residual correlation"
DIRECTIONS = "residual directions"
REPEATED = "residual repeated rows"
TAILS = "residual tails"
GRID = "residual grid"
TESTS = (VARIANCE, CORRELATION, DIRECTIONS, REPEATED, TAILS, GRID)
FALSE_ALARM = 1e-6
AXES = ("run", "epoch", "round", "coordinate")
LIMITS = (0.0125, 0.125, 0.6744898, 1.6448536, 2.5758293, 3.2905267, 3.8905919)  # of |N(0, 1)|
MOST_VECTORS = 4096  # numbers of a run up to which every two of them are compared
_SPARE = 8  # rows beyond the columns that the eigenvalues need
_HUGE = 1e100  # larger values are clipped to it, so that sums of their squares are finite
_BITS = (8, 11)
# A quarter of smooth numbers are within an eighth of a unit of a whole one; tested against more.
_CLOSE = 0.28


def residuals(
    releases: npt.ArrayLike, stated: Stated, *, known: npt.ArrayLike = 0.0, false_alarm: float = FALSE_ALARM
) -> tuple[Finding, ...]:
    """Return one finding for each kind of test that the runs allow.

    `releases` are the noisy sums (runs, epochs, T, d) of runs with unrelated secrets; `known` what the clients' updates
    add to them. A number that is not finite refutes. Raises `SettingError` for shapes that do not fit and a stated sigma of 0.
    """
    check_open_unit("false_alarm", false_alarm)
    given = np.asarray(releases, np.float64)
    stated.check_shape("the releases", given, 4)
    with np.errstate(over="ignore", invalid="ignore"):
        noise = np.nan_to_num(
            given - np.broadcast_to(known, given.shape), nan=_HUGE, posinf=_HUGE, neginf=-_HUGE
        )
        values = stated.whitened(noise)
    values = np.clip(np.nan_to_num(values, nan=_HUGE, posinf=_HUGE, neginf=-_HUGE), -_HUGE, _HUGE)
    views = {"whitened": values, "in units of sigma": noise / stated.sigmas, "as released": noise}
    parts = (
        _variance(values),
        _correlation(values),
        _directions(values),
        _repeated(values.reshape(-1, values.shape[-1])),
        _tails(values),
        [part for name, view in views.items() for part in _grid(name, view)],
    )
    level = false_alarm / len(TESTS)
    return tuple(
        smallest(test, level, found) for test, found in zip(TESTS, map(list, parts), strict=True) if found
    )


def _variance(values: Float64) -> Iterator[Part]:
    """Yield whether sums of squares are chi-square along every axis, and as far apart as chi-squares are."""
    squares = values**2
    for kept in ((), (0,), (1,), (1, 2), (3,), (1, 2, 3)):
        sums = squares.sum(axis=tuple(axis for axis in range(4) if axis not in kept))
        count, names = values.size // sums.size, [AXES[axis] for axis in kept]
        yield least(chi_square_p(sums, count), *names)
        scores = chi_square_scores(sums, count).ravel()
        yield float(chi_square_p(scores @ scores, scores.size)), f"spread over {' and '.join(names)}", 1


def _correlation(values: Float64) -> Iterator[Part]:
    """Yield whether rounds, runs, coordinates, and any two numbers of a run are uncorrelated."""
    runs, epochs, rounds, d = values.shape
    vectors = {
        "rounds": values.transpose(1, 2, 0, 3).reshape(epochs * rounds, -1),
        "runs": values.reshape(runs, -1),
        "coordinates": values.reshape(-1, d).T,
        "numbers of a run": values.reshape(runs, -1).T,
    }
    for name, rows in vectors.items():
        if len(rows) <= MOST_VECTORS and min(rows.shape) > 1:
            yield _closest(rows, name)


def _closest(rows: Float64, name: str) -> Part:
    """Return the largest cosine of two of all `rows` (k, n) as a part."""
    unit = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-300)
    found = []
    for first in range(len(unit) - 1):
        cosines = np.abs(unit[first + 1 :] @ unit[first])
        second = int(cosines.argmax())
        found.append((float(cosines[second]), f"{name} {first} and {first + 1 + second}"))
    cosine, where = max(found)
    return float(cosine_p(cosine, rows.shape[1])), where, len(rows) * (len(rows) - 1) // 2


def _directions(values: Float64) -> Iterator[Part]:
    """Yield bounds on the p-values of the extreme eigenvalues of X^T X, X (N, p) iid N(0, 1) if the statement is true.

    Noise that is missing along one public direction hides in no coordinate and in no pair of them. The density of the
    smallest eigenvalue l is at most K l^((N-p-1)/2) e^(-l/2), because (l_i - l) <= l_i for all others; sharp near 0. For N
    far above p, and for the largest, the bounds of Davidson and Szarek (Gordon's theorem, concentration of measure).
    """
    runs, _, _, d = values.shape
    for name, matrix in (
        ("all coordinates", values.reshape(-1, d)),
        ("a whole run", values.reshape(runs, -1)),
    ):
        n, p = matrix.shape
        if p > MOST_VECTORS // 4 or n < p + _SPARE:
            continue
        sizes = np.linalg.svd(matrix, compute_uv=False)
        low, high = float(sizes[-1]), float(sizes[0])
        factor = 0.5 * np.log(np.pi) + gammaln((n + 1) / 2) - gammaln(p / 2) - gammaln((n - p + 2) / 2)
        near_zero = factor + np.log(max(float(chdtr(n - p + 1, low**2)), 1e-300))
        short = max(n**0.5 - p**0.5 - low, 0.0)
        yield (
            float(np.exp(min(0.0, near_zero, -(short**2) / 2))),
            f"the direction with the least noise of {name}",
            1,
        )
        beyond = max(high - n**0.5 - p**0.5, 0.0)
        yield float(np.exp(-(beyond**2) / 2)), f"the direction with the most noise of {name}", 1


def _repeated(rows: Float64) -> Iterator[Part]:
    """Yield the largest cosine of two rows (k, d), at every cyclic shift and read backwards, and of a row's two halves."""
    count, d = rows.shape
    if count < 2 or d < 2:
        return
    unit = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-300)
    spectra = scipy.fft.rfft(unit, axis=1)
    found = [
        (*_at_shifts(spectra[i], spectra[i + 1 :], d), f"row {i} and a later one") for i in range(count - 1)
    ]
    cosine, how, which = max(found)
    yield float(cosine_p(cosine, d)), f"{which}, {how}", count * (count - 1) * d
    half = d // 2
    if half > 1:
        parts = (unit[:, :half], unit[:, half : 2 * half])
        ours, theirs = (
            scipy.fft.rfft(part / np.maximum(np.linalg.norm(part, axis=1, keepdims=True), 1e-300), axis=1)
            for part in parts
        )
        cosine, how = _at_shifts(ours, theirs, half)
        yield float(cosine_p(cosine, half)), f"two halves of a row, {how}", 2 * count * half


def _at_shifts(
    ours: npt.NDArray[np.complex128], theirs: npt.NDArray[np.complex128], d: int
) -> tuple[float, str]:
    """Return the largest cosine at any shift of rows with these spectra, and how one of the two was moved."""
    found = []
    for how, turned in (("moved", np.conj(ours)), ("read backwards, moved", ours)):
        cosines = np.abs(scipy.fft.irfft(turned * theirs, d, axis=-1))
        found.append((float(cosines.max()), f"{how} by {int(cosines.argmax()) % d}"))
    return max(found)


def _tails(values: Float64) -> Iterator[Part]:
    """Yield whether as many magnitudes are beyond each limit as should be, and the largest of them."""
    for limit in LIMITS:
        beyond = np.count_nonzero(np.abs(values) > limit)
        yield (
            float(binomial_p(beyond, values.size, 2 * float(ndtr(-limit)))),
            f"beyond {limit:.3g} sigma",
            1,
        )
    yield least(2 * ndtr(-np.abs(values)), *AXES)


def _grid(name: str, values: Float64) -> Iterator[Part]:
    """Yield how many values are whole multiples of their unit in the last place, were they rounded to few bits.

    Digits that the noise does not have would show the sum that it is added to.
    """
    _, exponents = np.frexp(values)
    for bits in _BITS:
        scaled = np.ldexp(values, bits - exponents)
        near = np.count_nonzero(np.abs(scaled - np.rint(scaled)) <= 1 / 8)
        yield (float(bdtrc(near - 1, values.size, _CLOSE)) if near else 1.0), f"{bits} bits, {name}", 1

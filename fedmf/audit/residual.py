"""Residuals: what is left of releases when the clients' known part is taken away must be the stated noise, exactly.

The statement under test. What remains, whitened by W / sigma (see `fedmf.audit.stated`), is iid N(0, 1) over runs, epochs,
rounds and coordinates. Every test is exact for every sample size (`fedmf.audit.exact`), so that the false alarm of all of
them together is at most `false_alarm`, by Bonferroni: each kind of test has an equal share of it, and within a kind
each test an equal share of that.

    variance                      sums of squares: chi-square, all together, by run, by round, by coordinate, by both
    mean                          sums: normal, all together, by round, by coordinate
    rounds, epochs, runs          cosines of the rows of two rounds of one epoch, of two epochs, of two runs: beta
    coordinates                   cosines of all coordinates with those at a distance: beta
    pairs of coordinates          the largest cosine of any two of up to 1024 coordinates: beta
    repeated rows                 the largest cosine of any two rows whatsoever: beta
    magnitudes                    how often two values are both large or both small: binomial; sees a dependence without
                                  correlation, such as one row that returns with other signs
    tails                         how many values lie beyond each of several limits: binomial; the largest, the smallest

Cosines do not change with the scale, so that a factor in the noise is a matter of the variances alone, and a dependence
that of the others. `fedmf.audit.detection` says which factor is found how surely.
"""

from collections.abc import Iterator
from itertools import combinations

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

from fedmf.audit import exact
from fedmf.audit.finding import Finding, smallest
from fedmf.audit.stated import Stated
from fedmf.checks import check_open_unit
from fedmf.errors import SettingError
from fedmf.mechanisms.arrays import Float64

VARIANCE = "residual variance"
BY_RUN = "residual variance by run"
BY_ROUND = "residual variance by round"
BY_COORDINATE = "residual variance by coordinate"
BY_ENTRY = "residual variance by coordinate and round"
MEAN = "residual mean"
ROUNDS = "residual correlation of rounds"
EPOCHS = "residual correlation of epochs"
RUNS = "residual correlation of runs"
COORDINATES = "residual correlation of coordinates"
PAIRS = "residual correlation of pairs of coordinates"
REPEATED = "residual repeated rows"
MAGNITUDES = "residual magnitudes"
TAILS = "residual tails"
TESTS = (
    VARIANCE, BY_RUN, BY_ROUND, BY_COORDINATE, BY_ENTRY, MEAN, ROUNDS, EPOCHS, RUNS, COORDINATES, PAIRS, REPEATED,
    MAGNITUDES, TAILS,
)  # fmt: skip

FALSE_ALARM = 1e-6
MEDIAN = 0.6744897501960817  # of |N(0, 1)|
LIMITS = (
    0.0125,
    0.125,
    0.6744897501960817,
    1.6448536,
    2.5758293,
    3.2905267,
    3.8905919,
)  # of |N(0, 1)|, for the tails
_ALL_PAIRS = 1024  # coordinates up to which all pairs are looked at
_BLOCK = 512  # rows of cosines held at once


def residuals(
    releases: Float64,
    stated: Stated,
    *,
    known: Float64 | float = 0.0,
    coordinates: npt.NDArray[np.integer] | slice = slice(None),
    false_alarm: float = FALSE_ALARM,
    resolution: float = 0.0,
) -> tuple[Finding, ...]:
    """Return one finding for each kind of test that the runs allow.

    `releases` are the noisy sums (runs, epochs, T, d) of runs with unrelated secrets; `known` what the clients' updates
    add to them (anything that broadcasts to them); `coordinates` which of the d are looked at, where only in some
    that part is known. `resolution`, in units of sigma, is the error to which whitened values are known: a smaller
    one counts as that, because values are recovered from float32 numbers. All tests together accuse an honest stream
    with probability at most `false_alarm`. Raises `SettingError` for shapes that do not fit, a number that is not
    finite, and a stated sigma of 0.
    """
    check_open_unit("false_alarm", false_alarm)
    if releases.ndim != 4:
        raise SettingError(
            f"the releases have shape {releases.shape}; they must be (runs, epochs, T, d); for one run add an axis."
        )
    noise = (np.asarray(releases, np.float64) - known)[..., coordinates]
    if not np.isfinite(noise).all():
        raise SettingError("the releases hold a number that is not finite; their noise cannot be looked at.")
    values = stated.whitened(noise)
    level = false_alarm / len(TESTS)
    return tuple(
        finding
        for kind in (_variances, _means, _dependences, _coordinates, _tails)
        for finding in kind(values, level, resolution)
    )


def _variances(values: Float64, level: float, resolution: float) -> Iterator[Finding]:
    """Yield whether sums of squares are chi-square, in every direction in which they can be added."""
    runs, epochs, rounds, d = values.shape
    squares = values**2
    total, of_run = squares.sum(), squares.sum(axis=(1, 2, 3))
    of_round, of_coordinate = squares.sum(axis=(0, 3)).ravel(), squares.sum(axis=(0, 1, 2))
    of_entry = squares.sum(axis=0).ravel()
    per_run = epochs * rounds * d
    yield smallest(VARIANCE, exact.chi_square(total, runs * per_run)[None], ["all values"], level)
    names = [f"run {run + 1}" for run in range(runs)]
    yield smallest(BY_RUN, exact.chi_square(of_run, per_run), names, level)
    names = [_round(epoch, step) for epoch in range(epochs) for step in range(rounds)]
    yield smallest(BY_ROUND, exact.chi_square(of_round, runs * d), names, level)
    p_values = exact.chi_square(of_coordinate, runs * epochs * rounds)
    place = int(p_values.argmin())
    yield smallest(BY_COORDINATE, p_values[[place]], [f"coordinate {place}"], level, tests=d)
    p_values = exact.chi_square(of_entry, runs)
    where, place = divmod(int(p_values.argmin()), d)
    name = f"{_round(*divmod(where, rounds))}, coordinate {place}"
    yield smallest(BY_ENTRY, p_values[[where * d + place]], [name], level, tests=p_values.size)


def _means(values: Float64, level: float, resolution: float) -> Iterator[Finding]:
    """Yield whether sums are normal: all together, by round, by coordinate."""
    runs, epochs, rounds, d = values.shape
    sums = [
        values.sum()[None] / np.sqrt(values.size),
        values.sum(axis=(0, 3)).ravel() / np.sqrt(runs * d),
        values.sum(axis=(0, 1, 2)) / np.sqrt(runs * epochs * rounds),
    ]
    names = ["all values", *(_round(*divmod(place, rounds)) for place in range(epochs * rounds))]
    names += [f"coordinate {place}" for place in range(d)]
    yield smallest(MEAN, exact.normal(np.concatenate(sums)), names, level)


def _dependences(values: Float64, level: float, resolution: float) -> Iterator[Finding]:
    """Yield whether rows of noise are independent of each other."""
    runs, epochs, rounds, d = values.shape
    by_round = values.transpose(1, 2, 0, 3).reshape(epochs * rounds, runs * d)
    pairs = list(combinations(range(epochs * rounds), 2))
    cosines = _cosines(by_round, by_round)
    for test, is_one_epoch in ((ROUNDS, True), (EPOCHS, False)):
        chosen = [(a, b) for a, b in pairs if (a // rounds == b // rounds) is is_one_epoch]
        if chosen and runs * d > 1:
            first, second = np.array(chosen).T
            p_values = exact.correlation(cosines[first, second], runs * d)
            names = [f"{_round(*divmod(a, rounds))} and {_round(*divmod(b, rounds))}" for a, b in chosen]
            yield smallest(test, p_values, names, level)
    if runs > 1:
        yield _closest_rows(RUNS, values.reshape(runs, -1), [f"run {run + 1}" for run in range(runs)], level)
    if d > 1 and runs * epochs * rounds > 1:
        names = [
            f"run {run + 1}, {_round(epoch, step)}" for run, epoch, step in np.ndindex(runs, epochs, rounds)
        ]
        yield _closest_rows(REPEATED, values.reshape(-1, d), names, level)


def _coordinates(values: Float64, level: float, resolution: float) -> Iterator[Finding]:
    """Yield whether coordinates are independent of each other, linearly and in their magnitudes."""
    d, columns = values.shape[-1], values.reshape(-1, values.shape[-1])
    linear: list[tuple[float, str]] = []
    magnitudes: list[tuple[float, str]] = []
    for distance in distances(d):
        left = np.flatnonzero((np.arange(d - distance) // distance) % 2 == 0)  # no coordinate in two pairs
        ours, others, name = columns[:, left], columns[:, left + distance], f"coordinates {distance} apart"
        magnitudes.append((_same_side(ours, others), name))
        if ours.size > 1:
            cosine = _cosines(ours.reshape(1, -1), others.reshape(1, -1))
            linear.append((float(exact.correlation(cosine[0, 0], ours.size)), name))
    for axis, name in ((2, "consecutive rounds"), (1, "consecutive epochs"), (0, "consecutive runs")):
        if half := values.shape[axis] // 2:
            paired = np.moveaxis(values, axis, 0)[: 2 * half]
            magnitudes.append((_same_side(paired[0::2], paired[1::2]), name))
    if linear:
        yield smallest(COORDINATES, *_columns(linear), level)
    if 1 < d <= _ALL_PAIRS and len(columns) > 1:
        yield _closest_rows(PAIRS, columns.T, [f"coordinate {place}" for place in range(d)], level)
    if magnitudes:
        yield smallest(MAGNITUDES, *_columns(magnitudes), level)


def _tails(values: Float64, level: float, resolution: float) -> Iterator[Finding]:
    """Yield whether as many values lie beyond certain limits as should, and the largest and smallest where they should."""
    sizes = np.abs(values).ravel()
    p_values = [
        float(exact.binomial(np.count_nonzero(sizes > limit), sizes.size, 2 * float(ndtr(-limit))))
        for limit in LIMITS
    ]
    p_values.append(exact.largest(float(sizes.max()), sizes.size))
    p_values.append(exact.least(max(float(sizes.min()), resolution), sizes.size))
    names = [f"beyond {limit:.3g} sigma" for limit in LIMITS] + ["the largest value", "the smallest value"]
    yield smallest(TAILS, np.array(p_values), names, level)


def distances(d: int) -> list[int]:
    """Return the distances at which coordinates are compared: powers of two, among them the block of `gaussian_row`.

    >>> distances(9)
    [1, 2, 4, 8]
    """
    return [1 << place for place in range(max(d - 1, 0).bit_length())]


def _columns(tests: list[tuple[float, str]]) -> tuple[Float64, list[str]]:
    return np.array([p for p, _ in tests]), [name for _, name in tests]


def _same_side(ours: Float64, others: Float64) -> float:
    """Return the p-value of how often two values lie on the same side of the median of |N(0, 1)|: half of the time."""
    same = np.count_nonzero((np.abs(ours) > MEDIAN) == (np.abs(others) > MEDIAN))
    return float(exact.binomial(same, ours.size, 0.5))


def _closest_rows(test: str, rows: Float64, names: list[str], level: float) -> Finding:
    """Return the finding of the two of all rows (k, n) with the largest cosine, among k (k - 1)/2 pairs."""
    most, pair = -1.0, (0, 1)
    for start in range(0, len(rows), _BLOCK):
        block = np.abs(_cosines(rows[start : start + _BLOCK], rows[start:]))
        block[np.tril_indices(block.shape[0], 0, block.shape[1])] = -1.0  # each pair once, none with itself
        place = int(block.argmax())
        if block.flat[place] > most:
            most = float(block.flat[place])
            pair = (start + place // block.shape[1], start + place % block.shape[1])
    p_value = exact.correlation(np.array([most]), rows.shape[1])
    count = len(rows) * (len(rows) - 1) // 2
    return smallest(test, p_value, [f"{names[pair[0]]} and {names[pair[1]]}"], level, tests=count)


def _cosines(rows: Float64, others: Float64) -> Float64:
    """Return the cosines of all rows (k, n) with all `others` (l, n), (k, l); 0 where a row is 0."""
    lengths = np.linalg.norm(rows, axis=1)[:, None] * np.linalg.norm(others, axis=1)
    return np.asarray(rows @ others.T / np.where(lengths > 0, lengths, 1.0))


def _round(epoch: int, step: int) -> str:
    return f"epoch {epoch + 1}, round {step + 1}"

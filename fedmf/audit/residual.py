"""Residuals: what is left of releases when the clients' known part is taken away must be the stated noise, exactly.

The statement under test. What remains, whitened by W / sigma (see `fedmf.audit.stated`), is iid N(0, 1) over runs, epochs,
rounds and coordinates. Every test is exact for every sample size (`fedmf.audit.exact`), so that the false alarm of all of
them together is at most `false_alarm`, by Bonferroni: each kind of test has an equal share of it, and within a kind
each test an equal share of that.

    variance                      sums of squares: chi-square, all together, by run, by round, by coordinate, by both
    variance, spread              those sums by coordinate, run, round and both are as far apart as chi-squares are, neither
                                  more nor less: their normal scores' sum of squares is chi-square
    mean                          sums: normal, all together, by round, by coordinate
    rounds, epochs, runs          cosines of the rows of two rounds of one epoch, of two epochs, of two runs: beta
    rounds in a coordinate        cosines of two rounds' noise in one coordinate over the runs: beta
    coordinates                   cosines of all coordinates with those at a distance: beta
    pairs of coordinates          the largest cosine of any two of up to 1024 coordinates: beta
    directions                    smallest and largest eigenvalue and volume of the covariance of all coordinates, and of
                                  coordinates of several rounds and epochs together (`fedmf.audit.spectrum`)
    repeated rows                 the largest cosine of any two rows whatsoever: beta
    rows at a shift               the same at every cyclic shift, also read backwards, and of each row with itself: beta,
                                  and a bound (`fedmf.audit.shifts`)
    magnitudes                    how often two values are both large or both small: binomial; sees a dependence without
                                  correlation, such as one row that returns with other signs
    tails                         how many values lie beyond each of several limits: binomial; the largest, the smallest
    grid                          how many values have no more bits than float16 or bfloat16 has: binomial
                                  (`fedmf.audit.grid`)

Cosines do not change with the scale, so that a factor in the noise is a matter of the variances alone, and a dependence
that of the others. `fedmf.audit.detection` says which factor is found how surely.
"""

from collections.abc import Iterator
from itertools import combinations

import numpy as np
import numpy.typing as npt

from fedmf.audit import exact, resolution as within
from fedmf.audit.finding import Finding, at_round, smallest
from fedmf.audit.grid import grid_tests
from fedmf.audit.shifts import closest_shift
from fedmf.audit.spectrum import direction_tests
from fedmf.audit.stated import Stated, numbers, spread
from fedmf.checks import check_non_negative, check_open_unit
from fedmf.errors import SettingError
from fedmf.mechanisms.arrays import Float64

VARIANCE = "residual variance"
BY_RUN = "residual variance by run"
BY_ROUND = "residual variance by round"
BY_COORDINATE = "residual variance by coordinate"
BY_ENTRY = "residual variance by coordinate and round"
SPREAD = "residual variance, spread"
MEAN = "residual mean"
ROUNDS = "residual correlation of rounds"
EPOCHS = "residual correlation of epochs"
RUNS = "residual correlation of runs"
COORDINATES = "residual correlation of coordinates"
PAIRS = "residual correlation of pairs of coordinates"
DIRECTIONS = "residual directions"
IN_COORDINATE = "residual correlation of rounds in a coordinate"
REPEATED = "residual repeated rows"
SHIFTED = "residual repeated rows at a shift"
MAGNITUDES = "residual magnitudes"
TAILS = "residual tails"
GRID = "residual grid"
TESTS = (
    VARIANCE, BY_RUN, BY_ROUND, BY_COORDINATE, BY_ENTRY, SPREAD, MEAN, ROUNDS, EPOCHS, RUNS, IN_COORDINATE, COORDINATES,
    PAIRS, DIRECTIONS, REPEATED, SHIFTED, MAGNITUDES, TAILS, GRID,
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
_HUGE = 1e100  # sigma; larger values are clipped to it
_BLOCK = 512  # rows of cosines held at once


def residuals(
    releases: npt.ArrayLike,
    stated: Stated,
    *,
    known: npt.ArrayLike = 0.0,
    coordinates: npt.NDArray[np.integer] | slice = slice(None),
    false_alarm: float = FALSE_ALARM,
    resolution: float = 0.0,
) -> tuple[Finding, ...]:
    """Return one finding for each kind of test that the runs allow.

    `releases` are the noisy sums (runs, epochs, T, d) of runs with unrelated secrets; `known` what the clients' updates
    add to them (anything that broadcasts to them); `coordinates` which of the d are looked at, where only in some
    that part is known. `resolution`, in units of sigma, bounds the error of each number of releases and `known` together,
    which may be anything within it: whatever an honest stream was rounded to, all tests together accuse it with
    probability at most `false_alarm` (`fedmf.audit.resolution`). Raises `SettingError` for shapes that do not fit, a number that is not
    finite, and a stated sigma of 0.
    """
    check_open_unit("false_alarm", false_alarm)
    check_non_negative("resolution", resolution)
    releases = numbers("the releases", releases)
    if releases.ndim != 4:
        raise SettingError(
            f"the releases have shape {releases.shape}; they must be (runs, epochs, T, d); for one run add an axis."
        )
    stated.check_shape("the releases", releases)
    looked_at = _looked_at(coordinates, releases.shape[-1])
    with np.errstate(over="ignore", invalid="ignore"):
        noise = (releases - spread("known", known, releases.shape))[..., looked_at]
    if not np.isfinite(noise).all():
        raise SettingError("the releases hold a number that is not finite; their noise cannot be looked at.")
    with np.errstate(over="ignore", invalid="ignore"):
        values = stated.whitened(noise)
    # What overflows, or cancels what does, is as far beyond any noise as these; sums of their squares are finite.
    values = np.clip(np.nan_to_num(values, nan=_HUGE, posinf=_HUGE, neginf=-_HUGE), -_HUGE, _HUGE)
    level = false_alarm / len(TESTS)
    gains = np.stack([np.abs(epoch.whitening).sum(axis=1) for epoch in stated.epochs])[..., None]
    found = [
        finding
        for kind in (_variances, _means, _dependences, _coordinates, _tails)
        for finding in kind(values, level, float(resolution * gains.max()), looked_at)
    ]
    sigmas = np.array([epoch.sigma for epoch in stated.epochs])[:, None, None]
    with np.errstate(over="ignore", invalid="ignore"):
        size = np.abs(releases[..., looked_at]).max()
        error = np.maximum(resolution, size * 2.0**-23 / sigmas)  # they may have been float32 numbers
        tests = [
            *grid_tests("whitened values", values, np.broadcast_to(error * gains, values.shape)),
            *grid_tests("noise in units of sigma", noise / sigmas, np.broadcast_to(error, values.shape)),
            *grid_tests("noise as released", noise, np.broadcast_to(error * sigmas, values.shape)),
        ]
    return (*found, smallest(GRID, *_columns(tests), level))


def _looked_at(coordinates: npt.NDArray[np.integer] | slice, d: int) -> npt.NDArray[np.integer]:
    """Return the numbers of the coordinates. Raises `SettingError` where they are none of 0 .. d - 1, each once."""
    try:
        found = np.asarray(np.arange(d)[coordinates])
    except (IndexError, TypeError) as error:
        raise SettingError(
            f"coordinates cannot be looked at ({error}); they are whole numbers below {d}."
        ) from error
    if found.ndim != 1 or not found.size or len(np.unique(found)) < found.size:
        raise SettingError("coordinates must name one coordinate at least, and none twice.")
    return found


def _variances(
    values: Float64, level: float, resolution: float, looked_at: npt.NDArray[np.integer]
) -> Iterator[Finding]:
    """Yield whether sums of squares are chi-square, in every direction in which they can be added."""
    runs, epochs, rounds, d = values.shape
    squares = values**2
    total, of_run = squares.sum(), squares.sum(axis=(1, 2, 3))
    of_round, of_coordinate = squares.sum(axis=(0, 3)).ravel(), squares.sum(axis=(0, 1, 2))
    of_entry = squares.sum(axis=0).ravel()
    per_run = epochs * rounds * d
    yield smallest(
        VARIANCE, within.chi_square(total, runs * per_run, resolution)[None], ["all values"], level
    )
    names = [f"run {run + 1}" for run in range(runs)]
    yield smallest(BY_RUN, within.chi_square(of_run, per_run, resolution), names, level)
    names = [at_round(epoch, step) for epoch in range(epochs) for step in range(rounds)]
    yield smallest(BY_ROUND, within.chi_square(of_round, runs * d, resolution), names, level)
    p_values = within.chi_square(of_coordinate, runs * epochs * rounds, resolution)
    place = int(p_values.argmin())
    yield smallest(BY_COORDINATE, p_values[[place]], [f"coordinate {looked_at[place]}"], level, tests=d)
    p_values = within.chi_square(of_entry, runs, resolution)
    where, place = divmod(int(p_values.argmin()), d)
    name = f"{at_round(*divmod(where, rounds))}, coordinate {looked_at[place]}"
    yield smallest(BY_ENTRY, p_values[[where * d + place]], [name], level, tests=p_values.size)
    spreads = {
        "coordinates": (of_coordinate, runs * epochs * rounds),
        "runs": (of_run, per_run),
        "rounds": (of_round, runs * d),
        "coordinates and rounds": (of_entry, runs),
    }
    apart = [within.spread(sums, n, resolution) for sums, n in spreads.values()]
    yield smallest(SPREAD, np.array(apart), [f"{name} together" for name in spreads], level)


def _means(
    values: Float64, level: float, resolution: float, looked_at: npt.NDArray[np.integer]
) -> Iterator[Finding]:
    """Yield whether sums are normal: all together, by round, by coordinate."""
    runs, epochs, rounds, d = values.shape
    p_values = [
        within.mean(values.sum()[None], values.size, resolution),
        within.mean(values.sum(axis=(0, 3)).ravel(), runs * d, resolution),
        within.mean(values.sum(axis=(0, 1, 2)), runs * epochs * rounds, resolution),
    ]
    names = ["all values", *(at_round(*divmod(place, rounds)) for place in range(epochs * rounds))]
    names += [f"coordinate {place}" for place in looked_at]
    yield smallest(MEAN, np.concatenate(p_values), names, level)


def _dependences(
    values: Float64, level: float, resolution: float, looked_at: npt.NDArray[np.integer]
) -> Iterator[Finding]:
    """Yield whether rows of noise are independent of each other."""
    runs, epochs, rounds, d = values.shape
    by_round = values.transpose(1, 2, 0, 3).reshape(epochs * rounds, runs * d)
    pairs = list(combinations(range(epochs * rounds), 2))
    cosines = _cosines(by_round, by_round, resolution)
    for test, is_one_epoch in ((ROUNDS, True), (EPOCHS, False)):
        chosen = [(a, b) for a, b in pairs if (a // rounds == b // rounds) is is_one_epoch]
        if chosen and runs * d > 1:
            first, second = np.array(chosen).T
            p_values = exact.correlation(cosines[first, second], runs * d)
            names = [f"{at_round(*divmod(a, rounds))} and {at_round(*divmod(b, rounds))}" for a, b in chosen]
            yield smallest(test, p_values, names, level)
    if runs > 1 and pairs:
        rows = by_round.reshape(epochs * rounds, runs, d)
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)
        rows, turns = (
            rows / np.maximum(lengths, np.finfo(np.float64).tiny),
            within.turned(lengths[:, 0], runs, resolution),
        )
        most = np.array(
            [np.abs(np.einsum("rd,rd->d", rows[a], rows[b])) - turns[a] - turns[b] for a, b in pairs]
        ).clip(min=0)
        (first, second), place = pairs[int(most.argmax()) // d], int(most.argmax()) % d
        p_value = exact.correlation(most.max(keepdims=True).ravel(), runs)
        name = (
            f"{at_round(*divmod(first, rounds))} and {at_round(*divmod(second, rounds))}, "
            f"coordinate {looked_at[place]}"
        )
        yield smallest(IN_COORDINATE, p_value, [name], level, tests=most.size)
    if runs > 1:
        yield _closest_rows(
            RUNS, values.reshape(runs, -1), [f"run {run + 1}" for run in range(runs)], level, resolution
        )
    if d > 1 and runs * epochs * rounds > 1:
        names = [
            f"run {run + 1}, {at_round(epoch, step)}" for run, epoch, step in np.ndindex(runs, epochs, rounds)
        ]
        yield _closest_rows(REPEATED, values.reshape(-1, d), names, level, resolution)
        single, tests, shift, (one, other) = closest_shift(values.reshape(-1, d), resolution)
        yield smallest(
            SHIFTED,
            np.array([single]),
            [f"{names[one]} and {names[other]}, {shift}{_among(looked_at)}"],
            level,
            tests=tests,
        )


def _coordinates(
    values: Float64, level: float, resolution: float, looked_at: npt.NDArray[np.integer]
) -> Iterator[Finding]:
    """Yield whether coordinates are independent of each other, linearly and in their magnitudes."""
    d, columns = values.shape[-1], values.reshape(-1, values.shape[-1])
    sides = within.sides(values, MEDIAN, resolution)
    columns_sides = sides.reshape(-1, d)
    linear: list[tuple[float, str]] = []
    magnitudes: list[tuple[float, str]] = []
    for distance, left in pairs_at_distances(d):
        ours, others = columns[:, left], columns[:, left + distance]
        name = f"coordinates {distance} apart{_among(looked_at)}"
        magnitudes.append((within.same_side(columns_sides[:, left], columns_sides[:, left + distance]), name))
        if ours.size > 1:
            cosine = _cosines(ours.reshape(1, -1), others.reshape(1, -1), resolution)
            linear.append((float(exact.correlation(cosine[0, 0], ours.size)), name))
    runs, epochs, rounds, _ = values.shape
    for a, b in combinations(range(epochs * rounds), 2):
        (e, s), (f, t) = divmod(a, rounds), divmod(b, rounds)
        magnitudes.append(
            (within.same_side(sides[:, e, s], sides[:, f, t]), f"{at_round(e, s)} and {at_round(f, t)}")
        )
    if half := runs // 2:
        magnitudes.append(
            (within.same_side(sides[: 2 * half : 2], sides[1 : 2 * half : 2]), "consecutive runs")
        )
    if linear:
        yield smallest(COORDINATES, *_columns(linear), level)
    if 1 < d <= _ALL_PAIRS and len(columns) > 1:
        yield _closest_rows(
            PAIRS, columns.T, [f"coordinate {place}" for place in looked_at], level, resolution
        )
    if directions := direction_tests(values, resolution, looked_at):
        p_value, name, _ = min(directions)
        tests = sum(count for _, _, count in directions)
        yield smallest(DIRECTIONS, np.array([p_value]), [name + _among(looked_at)], level, tests=tests)
    if magnitudes:
        yield smallest(MAGNITUDES, *_columns(magnitudes), level)


def _tails(
    values: Float64, level: float, resolution: float, looked_at: npt.NDArray[np.integer]
) -> Iterator[Finding]:
    """Yield whether as many values lie beyond certain limits as should, and the largest and smallest where they should."""
    sizes = np.abs(values).ravel()
    p_values = [within.beyond(sizes, limit, resolution) for limit in LIMITS]
    p_values.append(exact.largest(float(sizes.max()), sizes.size, resolution))
    p_values.append(exact.least(float(sizes.min()), sizes.size, resolution))
    names = [f"beyond {limit:.3g} sigma" for limit in LIMITS] + ["the largest value", "the smallest value"]
    yield smallest(TAILS, np.array(p_values), names, level)


def pairs_at_distances(d: int) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    """Yield distances at which d coordinates are compared, and of the pairs each first one; none is in two of them.

    Powers of two, among them the block of `gaussian_row`.

    >>> [(distance, left.tolist()) for distance, left in pairs_at_distances(5)]
    [(1, [0, 2]), (2, [0, 1]), (4, [0])]
    """
    for distance in (1 << place for place in range(max(d - 1, 0).bit_length())):
        yield distance, np.flatnonzero((np.arange(d - distance) // distance) % 2 == 0)


def _columns(tests: list[tuple[float, str]]) -> tuple[Float64, list[str]]:
    return np.array([p for p, _ in tests]), [name for _, name in tests]


def _among(looked_at: npt.NDArray[np.integer]) -> str:
    """Return what to add to a distance in coordinates that are not all there are between the first and the last."""
    return "" if np.all(np.diff(looked_at) == 1) else " among those looked at"


def _closest_rows(test: str, rows: Float64, names: list[str], level: float, resolution: float) -> Finding:
    """Return the finding of the two of all rows (k, n) with the largest cosine, among k (k - 1)/2 pairs."""
    most, pair = -1.0, (0, 1)
    for start in range(0, len(rows), _BLOCK):
        block = _cosines(rows[start : start + _BLOCK], rows[start:], resolution)
        block[np.tril_indices(block.shape[0], 0, block.shape[1])] = -1.0  # each pair once, none with itself
        place = int(block.argmax())
        if block.flat[place] > most:
            most = float(block.flat[place])
            pair = (start + place // block.shape[1], start + place % block.shape[1])
    p_value = exact.correlation(np.array([most]), rows.shape[1])
    count = len(rows) * (len(rows) - 1) // 2
    return smallest(test, p_value, [f"{names[pair[0]]} and {names[pair[1]]}"], level, tests=count)


def _cosines(rows: Float64, others: Float64, resolution: float) -> Float64:
    """Return the least magnitudes of the cosines of all rows (k, n) with all `others` (l, n), (k, l); 0 where a row is 0."""
    ours, theirs = (np.linalg.norm(array, axis=1) for array in (rows, others))
    lengths = ours[:, None] * theirs
    sizes = np.abs(rows @ others.T / np.where(lengths > 0, lengths, 1.0))
    turns = (within.turned(found, rows.shape[1], resolution) for found in (ours, theirs))
    return np.asarray(np.maximum(sizes - np.add.outer(*turns), 0))

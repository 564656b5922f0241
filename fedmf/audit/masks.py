"""Masks, as releases show them, against their law: iid Bernoulli(gamma) over coordinates, clients, rounds, epochs, runs.

How they become visible: `digits` gives each client of a cohort a power of two of one unit, in every coordinate. Of two runs
with the same secrets, one with these vectors and one with zeros, the noise cancels, and the difference of a round is in
each coordinate the sum of the units that masks kept: its binary digits are the masks of all clients (`unmixed`).

`mask_laws` then counts. A mask shared by two clients, or by two rounds or epochs or runs, voids the amplification that
the accountant claims, and so does one of a fixed number of coordinates. Every count is binomial, exactly: a share of
kept coordinates, and for two masks that should be unrelated how often both kept, with probability gamma^2. So it is where
one of the two is moved by any number of coordinates, or read backwards: each coordinate of either is in one pair only.
"""

from collections.abc import Iterator
from itertools import combinations, product

import numpy as np
import numpy.typing as npt
import scipy.fft
from scipy.stats import binom

from fedmf.audit import exact
from fedmf.audit.finding import Finding, at_round, smallest
from fedmf.audit.residual import FALSE_ALARM, pairs_at_distances
from fedmf.audit.shifts import BACKWARDS
from fedmf.audit.stated import numbers
from fedmf.checks import check_at_least, check_non_negative, check_open_unit, check_positive
from fedmf.errors import SettingError
from fedmf.mechanisms.arrays import Float64

SHARE = "mask share"
SIZES = "mask sizes"
CLIENTS = "mask correlation of clients"
ROUNDS = "mask correlation of rounds"
EPOCHS = "mask correlation of epochs"
RUNS = "mask correlation of runs"
COORDINATES = "mask correlation of coordinates"
SHIFTED = "mask correlation at a shift"
TESTS = (SHARE, SIZES, CLIENTS, ROUNDS, EPOCHS, RUNS, COORDINATES, SHIFTED)

MOST_DIGITS = 52  # clients whose digits the sum of a coordinate holds exactly

Masks = npt.NDArray[np.bool_]


def digits(clients: int, *, l2_norm: float, linf_norm: float | None, dimension: int) -> Float64:
    """Return the entry of each client's constant vector, (clients,): within both bounds, each half of the one before.

    Raises `SettingError` for bounds that are not above 0, and for more clients than float64 has digits.

    >>> digits(3, l2_norm=1.0, linf_norm=0.25, dimension=4)
    array([0.25  , 0.125 , 0.0625])
    """
    check_at_least("clients", clients, 1)
    check_at_least("dimension", dimension, 1)
    check_positive("l2_norm", l2_norm)
    if linf_norm is not None:
        check_positive("linf_norm", linf_norm)
    if clients > MOST_DIGITS:
        raise SettingError(f"clients is {clients}; float64 tells the digits of at most {MOST_DIGITS} apart.")
    largest = min(l2_norm / np.sqrt(dimension), l2_norm if linf_norm is None else linf_norm)
    return np.asarray(largest * 0.5 ** np.arange(clients))


def unmixed(difference: npt.ArrayLike, entries: npt.ArrayLike, *, tolerance: float) -> Masks | None:
    """Return the masks (.., clients, D) that a difference of sums (.., D) shows, or None where it shows none.

    `entries` are those of `digits`. None: a value is further than `tolerance` from every sum of entries, so that the two
    runs differ by more than masks and the clients' vectors. Raises `SettingError` for entries of which one is not half of
    the one before, and for a tolerance that does not tell their sums apart.
    """
    difference, entries = numbers("the difference", difference), _halves(entries)
    unit = float(entries[-1])
    check_non_negative("tolerance", tolerance)
    if not tolerance < unit / 2:
        raise SettingError(
            f"tolerance is {tolerance}; it must be below half of the smallest entry, {unit / 2}."
        )
    if not difference.ndim:
        raise SettingError("the difference is a single number; it must be an array (.., D).")
    if not np.isfinite(difference).all():
        return None
    units = np.rint(difference / unit)
    is_sum = np.abs(difference - units * unit).max() <= tolerance
    if not is_sum or units.min() < 0 or units.max() >= 2 ** len(entries):
        return None
    place = np.arange(len(entries))[::-1]  # the first entry is the largest power of two
    return np.asarray((units[..., None, :].astype(np.int64) >> place[:, None]) & 1, bool)


def _halves(given: npt.ArrayLike) -> Float64:
    """Return the entries of `digits`. Raises `SettingError` for others, whose sums do not tell who is in them."""
    entries = numbers("the entries", given)
    if entries.ndim != 1 or len(entries) > MOST_DIGITS or not (np.isfinite(entries) & (entries > 0)).all():
        raise SettingError(
            f"the entries have shape {entries.shape} and begin {entries.ravel()[:3].tolist()}; they must be (clients,), of at "
            f"most {MOST_DIGITS} clients, finite and above 0."
        )
    if np.any(entries[1:] != entries[:-1] / 2):
        raise SettingError(
            f"the entries begin {entries[:3].tolist()}; each must be half of the one before, as `digits` makes them."
        )
    return entries


def mask_laws(
    masks: npt.ArrayLike,
    keep_probability: float,
    *,
    clients: npt.ArrayLike,
    false_alarm: float = FALSE_ALARM,
) -> tuple[Finding, ...]:
    """Return one finding for each kind of test on masks (runs, epochs, T, n, D) of runs with unrelated secrets.

    `clients` (epochs, T, n) names the client behind each mask, the same in all runs. All tests together accuse honest
    masks with probability at most `false_alarm`. Raises `SettingError` for shapes that do not fit, masks of anything but
    0 and 1, and clients that are no whole numbers.
    """
    check_open_unit("keep_probability", keep_probability)
    check_open_unit("false_alarm", false_alarm)
    masks, clients = _kept(masks), _clients_of(clients)
    if masks.ndim != 5 or clients.shape != masks.shape[1:4]:
        raise SettingError(
            f"the masks have shape {masks.shape} and the clients {clients.shape}; they must be (runs, epochs, T, n, D) "
            "and (epochs, T, n)."
        )
    level = false_alarm / len(TESTS)
    kinds = (_shares, _sizes, _clients, _rounds, _epochs, _runs, _coordinates, _shifted)
    found = (
        _finding(test, kind(masks, clients, keep_probability), level)
        for test, kind in zip(TESTS, kinds, strict=True)
    )
    return tuple(finding for finding in found if finding is not None)


def _kept(given: npt.ArrayLike) -> Masks:
    """Return masks as an array of bool. Raises `SettingError` for numbers other than 0 and 1."""
    found = numbers("the masks", given)
    if not np.isin(found, (0, 1)).all():
        raise SettingError("the masks hold a number other than 0 and 1; each coordinate is kept or is not.")
    return np.asarray(found, bool)


def _clients_of(given: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """Return clients as an array of whole numbers. Raises `SettingError` for others."""
    found = numbers("the clients", given)
    if not np.array_equal(found, np.rint(found)):
        raise SettingError("the clients hold a number that is not whole; they are the clients' numbers.")
    return np.asarray(found, np.int64)


Tests = Iterator[tuple[float, str] | tuple[float, str, int]]
"""P-value and what it is of; and of how many tests it is the smallest, where it is that of several."""


def _finding(test: str, tests: Tests, level: float) -> Finding | None:
    found = list(tests)
    if not found:
        return None
    count = sum(one[2] if len(one) == 3 else 1 for one in found)
    return smallest(test, np.array([one[0] for one in found]), [one[1] for one in found], level, tests=count)


def _shares(masks: Masks, clients: npt.NDArray[np.integer], gamma: float) -> Tests:
    """Yield how many coordinates were kept: all together, by run, by round and client, by coordinate."""
    runs, epochs, rounds, n, d = masks.shape
    yield float(exact.binomial(masks.sum(), masks.size, gamma)), "all masks"
    for place, p_value in enumerate(
        exact.binomial(masks.sum(axis=(1, 2, 3, 4)), epochs * rounds * n * d, gamma)
    ):
        yield float(p_value), f"run {place + 1}"
    of_place = exact.binomial(masks.sum(axis=(0, 4)), runs * d, gamma)
    for epoch, step, client in np.ndindex(epochs, rounds, n):
        yield (
            float(of_place[epoch, step, client]),
            f"{at_round(epoch, step)}, client {clients[epoch, step, client]}",
        )
    for place, p_value in enumerate(exact.binomial(masks.sum(axis=(0, 1, 2, 3)), masks.size // d, gamma)):
        yield float(p_value), f"coordinate {place}"


def _sizes(masks: Masks, clients: npt.NDArray[np.integer], gamma: float) -> Tests:
    """Yield how often the size of a mask lies in the middle half of its law: too often where sizes are fixed.

    Binomial, with the exact probability of that half.
    """
    d = masks.shape[-1]
    low, high = binom.ppf(0.25, d, gamma), binom.ppf(0.75, d, gamma)
    middle = float(binom.cdf(high, d, gamma) - binom.cdf(low - 1, d, gamma))
    sizes = masks.sum(axis=-1).ravel()
    inside = np.count_nonzero((sizes >= low) & (sizes <= high))
    if middle < 1:
        yield float(exact.binomial(inside, sizes.size, middle)), f"sizes from {low:g} to {high:g}"


def _clients(masks: Masks, clients: npt.NDArray[np.integer], gamma: float) -> Tests:
    """Yield how often two clients of a cohort both kept, for each pair of places."""
    for a, b in combinations(range(masks.shape[3]), 2):
        yield _both(masks[:, :, :, a], masks[:, :, :, b], gamma), f"clients at places {a + 1} and {b + 1}"


def _rounds(masks: Masks, clients: npt.NDArray[np.integer], gamma: float) -> Tests:
    """Yield how often clients of two rounds of an epoch both kept, for each pair of places."""
    places = range(masks.shape[3])
    for (s, t), (a, b) in product(combinations(range(masks.shape[2]), 2), product(places, places)):
        name = f"round {s + 1}, place {a + 1} and round {t + 1}, place {b + 1}"
        yield _both(masks[:, :, s, a], masks[:, :, t, b], gamma), name


def _epochs(masks: Masks, clients: npt.NDArray[np.integer], gamma: float) -> Tests:
    """Yield how often masks of two epochs both kept: those of one client, of one round and place, and of any two places."""
    runs, epochs, rounds, n, d = masks.shape
    flat = masks.reshape(runs, epochs, -1, d)
    columns = flat.transpose(1, 2, 0, 3).reshape(epochs, rounds * n, runs * d).astype(np.float64)
    for s, t in combinations(range(epochs), 2):
        yield _both(flat[:, s], flat[:, t], gamma), f"epochs {s + 1} and {t + 1}, the same round and place"
        _, ours, theirs = np.intersect1d(clients[s], clients[t], return_indices=True)
        if len(ours):
            yield (
                _both(flat[:, s, ours], flat[:, t, theirs], gamma),
                f"epochs {s + 1} and {t + 1}, the same client",
            )
        p_values = exact.binomial(columns[s] @ columns[t].T, runs * d, gamma**2)
        one, other = np.unravel_index(int(p_values.argmin()), p_values.shape)
        names = (_at_place(epoch, int(where), n) for epoch, where in ((s, one), (t, other)))
        yield float(p_values.min()), " and ".join(names), p_values.size


def _runs(masks: Masks, clients: npt.NDArray[np.integer], gamma: float) -> Tests:
    """Yield how often masks of two runs both kept: for each pair of runs, and for any two places of two runs.

    Masks that nobody's secret decides agree.
    """
    runs, _, rounds, n, d = masks.shape
    for s, t in combinations(range(runs), 2):
        yield _both(masks[s], masks[t], gamma), f"runs {s + 1} and {t + 1}"
    flat = masks.reshape(runs, -1, d).astype(np.float64)  # whose products are counts, exactly
    for s in range(runs - 1):
        counts = flat[s] @ flat[s + 1 :].reshape(-1, d).T
        p_value, (ours, theirs) = _extreme(counts, d, gamma)
        other, theirs = s + 1 + theirs // flat.shape[1], theirs % flat.shape[1]
        places = (
            f"run {run + 1}, {_at_place(where // (rounds * n), where % (rounds * n), n)}"
            for run, where in ((s, ours), (other, theirs))
        )
        yield p_value, " and ".join(places), counts.size


def _shifted(masks: Masks, clients: npt.NDArray[np.integer], gamma: float) -> Tests:
    """Yield how often two masks of a run both kept where one is moved by any number of coordinates, or read backwards.

    At one shift in all runs, which sees a little in each, and in each run by itself. A mask and itself are left to
    `_coordinates`: there the pairs at a shift hang together.
    """
    runs, _, rounds, n, d = masks.shape
    spectra = scipy.fft.rfft(
        masks.reshape(runs, -1, d).astype(np.float64), axis=-1
    )  # runs, places, frequencies
    total = spectra.shape[1]
    for words in ("moved", BACKWARDS):
        turned = np.conj(spectra) if words == "moved" else spectra
        for place in range(total - 1):
            counts = np.rint(scipy.fft.irfft(turned[:, place, None] * spectra[:, place + 1 :], d, axis=-1))
            for number, (size, found) in enumerate(((d, counts), (runs * d, counts.sum(axis=0)[None]))):
                p_value, (run, other, shift) = _extreme(found, size, gamma)
                where = f"run {run + 1}, " if number == 0 else ""
                names = (
                    _at_place(each // (rounds * n), each % (rounds * n), n)
                    for each in (place, place + 1 + other)
                )
                yield p_value, f"{where}{' and '.join(names)}, {words} by {shift} coordinates", found.size


def _at_place(epoch: int, where: int, n: int) -> str:
    """Return the name of a round and place, of which `where` counts the masks of an epoch."""
    return f"{at_round(epoch, where // n)}, place {where % n + 1}"


def _extreme(counts: Float64, size: int, gamma: float) -> tuple[float, tuple[int, ...]]:
    """Return the smallest p-value of counts of `size` pairs of coordinates, and where it is: of the largest or the smallest."""
    ends = [int(counts.argmax()), int(counts.argmin())]
    p_values = exact.binomial(counts.ravel()[ends], size, gamma**2)
    place = ends[int(p_values.argmin())]
    return float(p_values.min()), tuple(map(int, np.unravel_index(place, counts.shape)))


def _coordinates(masks: Masks, clients: npt.NDArray[np.integer], gamma: float) -> Tests:
    """Yield how often two coordinates at a distance were both kept; no coordinate is in two of the pairs."""
    d = masks.shape[-1]
    for distance, left in pairs_at_distances(d):
        yield _both(masks[..., left], masks[..., left + distance], gamma), f"coordinates {distance} apart"


def _both(ours: Masks, others: Masks, gamma: float) -> float:
    """Return the p-value of how often two masks of the same shape both kept: Binomial(size, gamma^2)."""
    return float(exact.binomial(np.count_nonzero(ours & others), ours.size, gamma**2))

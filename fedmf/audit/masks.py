"""Masks, as releases show them, against their law: iid Bernoulli(gamma) over coordinates, clients, rounds, epochs, runs.

How they become visible: each client of a cohort sends a constant vector, half of the one before. Of two runs
with the same secrets, one with these vectors and one with zeros, the noise cancels, and the difference of a round is in
each coordinate the sum of the units that masks kept: its binary digits are the masks of all clients (`unmixed`).

`mask_laws` then counts. A mask that two clients, rounds, epochs or runs share voids the amplification that the accountant
claims, and so does one of a fixed number of coordinates. Every count is binomial, exactly: kept coordinates, and for two
masks how often both kept, with probability gamma^2; also where one of the two is moved or read backwards.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import scipy.fft
from scipy.stats import binom

from fedmf.audit.finding import Finding, Part, binomial_p, least, smallest
from fedmf.audit.residual import FALSE_ALARM
from fedmf.checks import check_open_unit
from fedmf.errors import SettingError
from fedmf.mechanisms.workload import Float64

SHARE = "mask share"
CORRELATION = "mask correlation"
TESTS = (SHARE, CORRELATION)

Masks = npt.NDArray[np.bool_]


def unmixed(difference: npt.ArrayLike, entries: npt.ArrayLike, *, tolerance: float) -> Masks | None:
    """Return the masks (.., clients, D) that a difference of sums (.., D) shows, None where it shows none.

    `entries` are the clients' constants, each half of the one before, at most 52. None: a value is further than
    `tolerance` from every sum of entries, so that the two runs differ by more than masks and the clients' vectors.
    """
    sums, parts = np.asarray(difference, np.float64), np.asarray(entries, np.float64)
    unit = float(parts[-1])
    if not 0 <= tolerance < unit / 2 or np.any(parts[1:] != parts[:-1] / 2):
        raise SettingError(
            f"tolerance is {tolerance}; it must be below half of the last entry, {unit / 2}, and each entry half of the one before."
        )
    if not np.isfinite(sums).all():
        return None
    units = np.rint(sums / unit)
    if np.abs(sums - units * unit).max() > tolerance or units.min() < 0 or units.max() >= 2 ** len(parts):
        return None
    place = np.arange(len(parts))[::-1]  # the first entry is the largest power of two
    return np.asarray((units[..., None, :].astype(np.int64) >> place[:, None]) & 1, bool)


def mask_laws(
    masks: npt.ArrayLike, keep_probability: float, *, false_alarm: float = FALSE_ALARM
) -> tuple[Finding, ...]:
    """Return the findings on the shares and the correlations of masks (runs, epochs, T, n, D) of unrelated secrets.

    Both together accuse honest masks with probability at most `false_alarm`.
    """
    check_open_unit("keep_probability", keep_probability)
    check_open_unit("false_alarm", false_alarm)
    found = np.asarray(masks, np.float64)
    if found.ndim != 5 or not np.isin(found, (0, 1)).all():
        raise SettingError(
            f"the masks have shape {found.shape}; they must be 0 or 1, (runs, epochs, T, n, D)."
        )
    parts = (_shares(found, keep_probability), _pairs(found, keep_probability))
    return tuple(smallest(test, false_alarm / 2, list(part)) for test, part in zip(TESTS, parts, strict=True))


def _shares(masks: Float64, gamma: float) -> Iterator[Part]:
    """Yield how many coordinates were kept along every axis, and whether the sizes of masks differ as they should."""
    names = ("run", "epoch", "round", "place", "coordinate")
    for kept in ((), (0,), (1, 2, 3), (4,)):
        counts = masks.sum(axis=tuple(axis for axis in range(5) if axis not in kept))
        yield least(binomial_p(counts, masks.size // counts.size, gamma), *(names[axis] for axis in kept))
    d, sizes = masks.shape[-1], masks.sum(axis=-1)
    low, high = (float(binom.ppf(share, d, gamma)) for share in (0.25, 0.75))
    middle = float(binom.cdf(high, d, gamma) - binom.cdf(low - 1, d, gamma))
    inside = np.count_nonzero((sizes >= low) & (sizes <= high))
    yield float(binomial_p(inside, sizes.size, middle)), f"sizes from {low:g} to {high:g}", 1


def _pairs(masks: Float64, gamma: float) -> Iterator[Part]:
    """Yield how often two masks both kept: of a run at every shift, forwards and backwards, in each run and in all; of two runs."""
    runs, d = masks.shape[0], masks.shape[-1]
    flat = masks.reshape(runs, -1, d)
    spectra = scipy.fft.rfft(flat, axis=-1)
    for how, turned in (("moved", np.conj(spectra)), ("read backwards, moved", spectra)):
        for place in range(flat.shape[1] - 1):
            counts = np.rint(scipy.fft.irfft(turned[:, place, None] * spectra[:, place + 1 :], d, axis=-1))
            name = f"mask {place} of a run and a later one, {how}"
            yield _extreme(counts, d, gamma, name)
            yield _extreme(counts.sum(axis=0), runs * d, gamma, f"{name}, in all runs")
    for run in range(runs - 1):
        counts = flat[run] @ flat[run + 1 :].reshape(-1, d).T
        yield _extreme(counts, d, gamma, f"run {run} and a later one")


def _extreme(counts: Float64, pairs: int, gamma: float, where: str) -> Part:
    """Return the smaller p-value of the largest and the smallest count of `pairs` pairs of coordinates as a part."""
    p_values = binomial_p([counts.max(), counts.min()], pairs, gamma**2)
    return float(p_values.min()), where, counts.size

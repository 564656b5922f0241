"""Rows that return moved by some coordinates, forwards or backwards: a keystream that overlaps, a rolled row, tiles.

Rows are compared at every cyclic shift, by FFT, and so is each one with every other read backwards. Of two independent rows of N(0, s^2) one moved by any number of coordinates
is still independent of the other, so that each cosine has its exact law (`exact.correlation`). A row compared with itself
is another matter. With r = <x, x moved by k>/||x||^2, g = gcd(k, d), L = d/g and any 0 < z < 1,

    P[|r| >= c] <= 2 (1 - 2 c z + z^2)^(d/2) (1 - z^L)^(-g),

by Markov's inequality for exp(t (<x, A x> - c ||x||^2)), whose mean is prod_j (1 + 2 t c - 2 t cos(2 pi j k/d))^(-1/2);
the product over j is rho^d (1 - z^L)^(2 g) for rho (1 + z^2) = 1 + 2 t c and rho z = t. (For -r the last factor is at
most as large.) Conservative, within a small factor for all but the shortest rows. Of x and itself read backwards,
coordinate j beside k - j, r = (A - B)/(A + B) for the two eigenspaces, 1 and -1, of that exchange: with f coordinates that
stay where they are (2 j = k modulo d) A and B are independent chi-squares of (d + f)/2 and (d - f)/2 degrees, up to the same
scale, and (1 + r)/2 is beta.
"""

import numpy as np
import numpy.typing as npt
import scipy.fft
from scipy.special import betainc

from fedmf.audit import exact, resolution
from fedmf.mechanisms.arrays import Float64

BACKWARDS = "read backwards, moved"
_NUMBERS = 1 << 22  # of a block of cosines
_GRID = np.concatenate([np.geomspace(1e-3, 0.5, 60), 1 - np.geomspace(0.5, 1e-6, 60)])  # z


def closest_shift(rows: Float64, error: float = 0.0) -> tuple[float, int, str, tuple[int, int]]:
    """Return the smallest p-value of rows (k, d) at all shifts, of how many tests, and its shift and two rows.

    All pairs of rows at all d shifts, forwards and backwards; each row with itself at shifts 1 .. d/2, and at all
    backwards. `error` is that of each value (`fedmf.audit.resolution`).
    """
    count, d = rows.shape
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    turns = resolution.turned(lengths[:, 0], d, error)
    spectra = scipy.fft.rfft(rows / np.where(lengths > 0, lengths, 1.0), axis=1)
    tests = count * (count - 1) * d + count * (d // 2 + d)
    p_value, pair, shift = _with_itself(spectra, turns, d)
    words = "moved"
    backwards, row, turn = _with_itself_backwards(spectra, turns, d)
    if backwards < p_value:
        p_value, pair, shift, words = backwards, (row, row), turn, BACKWARDS
    most, where, how = -np.inf, (0, 0, 0), "moved"
    for first in range(count - 1):
        step = max(1, _NUMBERS // d)
        for start in range(first + 1, count, step):
            for spectrum, name in ((np.conj(spectra[first]), "moved"), (spectra[first], BACKWARDS)):
                cosines = scipy.fft.irfft(spectrum * spectra[start : start + step], d, axis=1)
                np.abs(cosines, out=cosines)
                cosines -= turns[first] + turns[start : start + step, None]
                place = int(cosines.argmax())
                if cosines.flat[place] > most:
                    most, where = float(cosines.flat[place]), (first, start + place // d, place % d)
                    how = name
    if count > 1 and (crossed := float(exact.correlation(np.array(max(most, 0.0)), d))) <= p_value:
        p_value, pair, shift, words = crossed, where[:2], where[2], how
    return p_value, tests, f"{words} by {shift} coordinates", pair


def _with_itself(
    spectra: npt.NDArray[np.complex128], turns: Float64, d: int
) -> tuple[float, tuple[int, int], int]:
    """Return the bound on the smallest p-value of a row and itself moved, the row twice, and the shift."""
    shifts = np.arange(1, d // 2 + 1)
    most, row = np.zeros(len(shifts)), np.zeros(len(shifts), np.int64)
    for place, spectrum in enumerate(spectra):
        cosines = np.abs(scipy.fft.irfft(np.abs(spectrum) ** 2, d)[1 : d // 2 + 1]) - 2 * turns[place]
        row[cosines > most] = place
        most = np.maximum(most, cosines)
    p_values = own_shift(most, shifts, d)
    place = int(p_values.argmin())
    return float(p_values[place]), (int(row[place]), int(row[place])), int(shifts[place])


def _with_itself_backwards(
    spectra: npt.NDArray[np.complex128], turns: Float64, d: int
) -> tuple[float, int, int]:
    """Return the smallest p-value of a row and itself backwards, the row, and the shift."""
    shifts = np.arange(d)
    best, found = 2.0, (0, 0)
    for row, spectrum in enumerate(spectra):
        p_values = own_reversal(scipy.fft.irfft(spectrum**2, d), shifts, d, 2 * turns[row])
        place = int(p_values.argmin())
        if p_values[place] < best:
            best, found = float(p_values[place]), (row, place)
    return (best, *found)


def own_reversal(cosine: Float64, shift: npt.ArrayLike, d: int, error: float = 0.0) -> Float64:
    """Return the p-values of the cosines of rows of d N(0, s^2) with themselves, coordinate j beside `shift` - j.

    Cosines are known to `error`.

    >>> own_reversal(np.array([1.0, 0.0]), 1, 2)  # x and y in turn: 2 x y/(x^2 + y^2) is symmetric about 0
    array([0., 1.])
    """
    fixed = np.full(np.shape(shift), 1) if d % 2 else np.where(np.asarray(shift) % 2, 0, 2)
    ours, others = (d + fixed) / 2, (d - fixed) / 2
    low, high = (np.clip((1 + np.asarray(cosine, np.float64) + slack) / 2, 0, 1) for slack in (-error, error))
    # of one coordinate, or two that stay, the exchange is the identity: the cosine is 1, whatever the row is
    law = exact.two_sided(
        betainc(ours / 2, np.maximum(others, 1) / 2, high),
        betainc(np.maximum(others, 1) / 2, ours / 2, 1 - low),
    )
    return np.asarray(np.where(others > 0, law, 1.0))


def own_shift(cosine: Float64, shift: npt.ArrayLike, d: int) -> Float64:
    """Return a bound on the p-values of the cosines of rows of d N(0, s^2) with themselves, each at its shift."""
    common = np.gcd(np.asarray(shift, np.int64), d)
    best = np.zeros(np.shape(cosine))
    for z in _GRID:
        power = np.log(np.maximum(1 - 2 * np.minimum(cosine, 1.0) * z + z * z, 1e-300)) * (d / 2)
        best = np.minimum(best, power - common * np.log1p(-(z ** (d / common))))
    return np.asarray(np.minimum(1.0, 2 * np.exp(best)))

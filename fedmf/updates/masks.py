"""Secret Bernoulli masks: which coordinates are kept follows from a key that one client and the server hold.

The amplification of the privacy theorem (Chen et al. 2024, Theorem 5.1, corrected in docs/theory.md, section 1) needs
masks that are iid Bernoulli(gamma) over coordinates, clients, rounds and epochs, secret, and independent of
data and noise. Fixed-size or top-k masks, a mask shared by two clients, or one that can be recomputed from
public values void it.

Kept coordinates are found by their gaps, which are geometric. A gap is looked up in an exact 64-bit integer
table, so that client and server pick the same coordinates whatever their libm, and the realised law is within
2^-63 per draw of the iid Bernoulli law in total variation. Compiled code (`fedmf.fast`) follows the same
table on the same words: the same coordinates, bit for bit.
"""

import math
from functools import lru_cache

import numpy as np

from fedmf.compiling import loops
from fedmf.randomness import SecretKey, uniform_words

_LONGEST_GAP = 1024  # longer gaps are drawn piecewise: the geometric law is memoryless
_GUARD_BITS = 128
_GUIDE_BITS = 16  # leading bits of a word that nearly always tell its gap


def coordinates(mask_key: SecretKey, dimension: int, keep_probability: float) -> np.typing.NDArray[np.int64]:
    """Return the coordinates that a reply under `mask_key` has, in increasing order, shape (k,), int64.

    Each of [0, dimension) is kept with `keep_probability` in (0, 1], independently. Takes O(gamma * dimension) time. The
    same arguments give the same coordinates on every platform.

    >>> coordinates(SecretKey.reproducible(0), 4, 1.0)
    array([0, 1, 2, 3])
    """
    if keep_probability == 1:
        return np.arange(dimension)
    pieces = [np.empty(0, np.int64)]
    position, drawn = -1, 0  # the last coordinate looked at, and how many words were used
    while position < dimension - 1:
        ahead = _draws_for(dimension - 1 - position, keep_probability)
        words = uniform_words(mask_key.derive("coordinates"), ahead, first=drawn)
        position, kept = _positions(words, keep_probability, position, dimension)
        drawn += ahead
        pieces.append(kept)
    return pieces[1] if len(pieces) == 2 else np.concatenate(pieces)


def _positions(
    words: np.typing.NDArray[np.uint64], keep_probability: float, position: int, dimension: int
) -> tuple[int, np.typing.NDArray[np.int64]]:
    """Return the last coordinate looked at, and those that `words` keep after `position` and below `dimension`.

    The compiled loop may stop at the first coordinate beyond `dimension`; the coordinates are the same integers.
    """
    table = gap_table(keep_probability)
    if (fast := loops()) is not None:
        kept, native = np.empty(len(words), np.int64), words.astype(np.uint64, copy=False)
        position, count = fast.positions(
            native, _gap_guide(keep_probability), table, position, dimension, kept
        )
        return position, kept[:count]
    gaps = np.searchsorted(table, words, side="right") + 1
    positions = position + np.cumsum(np.minimum(gaps, _LONGEST_GAP), dtype=np.int64)
    kept = positions[gaps <= _LONGEST_GAP]
    return int(positions[-1]), kept[: np.searchsorted(kept, dimension)]


@lru_cache(maxsize=8)
def gap_table(keep_probability: float) -> np.typing.NDArray[np.uint64]:
    """Return floor((1 - (1-gamma)^k) 2^64) for k = 1 .. 1024, uint64, exact; 0 < gamma < 1.

    A uniform 64-bit word u encodes the gap k (the next k-1 coordinates dropped, the k-th kept) when it
    is in [table[k-2], table[k-1]), and "none of the next 1024 is kept" when it is not below the last
    entry.
    """
    numerator, denominator = keep_probability.as_integer_ratio()
    scale = 1 << (64 + _GUARD_BITS)
    dropped = scale
    table = np.empty(_LONGEST_GAP, np.uint64)
    for k in range(_LONGEST_GAP):
        dropped = dropped * (denominator - numerator) // denominator
        table[k] = min((scale - dropped) >> _GUARD_BITS, 2**64 - 1)
    return table


@lru_cache(maxsize=8)
def _gap_guide(keep_probability: float) -> np.typing.NDArray[np.int16]:
    """Return the gap that the leading bits of a word tell, shape (2^_GUIDE_BITS,); where several share them, less the first."""
    table, low = gap_table(keep_probability), 64 - _GUIDE_BITS
    smallest = np.arange(1 << _GUIDE_BITS, dtype=np.uint64) << np.uint64(low)
    least = np.searchsorted(table, smallest, side="right")
    most = np.searchsorted(table, smallest | np.uint64((1 << low) - 1), side="right")
    return np.where(least == most, least + 1, -(least + 1)).astype(np.int16)


def _draws_for(coordinates: int, keep_probability: float) -> int:
    """Return how many words to draw so that one batch nearly always passes `coordinates` more coordinates."""
    expected = coordinates * keep_probability / -math.expm1(_LONGEST_GAP * math.log1p(-keep_probability))
    return int(expected + 4 * expected**0.5) + 8

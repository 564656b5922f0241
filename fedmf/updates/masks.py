"""Secret Bernoulli masks: each coordinate is kept with probability gamma, by a key that only one client and
the server hold.

The amplification of the privacy theorem (Chen et al. 2024, Theorem 5.1, corrected in docs/privacy.md) needs
masks that are iid Bernoulli(gamma) over coordinates, clients, rounds and epochs, secret, and independent of
data and noise. Fixed-size or top-k masks, a mask shared by two clients, or one that can be recomputed from
public values void it.

Kept coordinates are found by their gaps, which are geometric. A gap is looked up in an exact 64-bit integer
table, so that client and server pick the same coordinates whatever their libm, and the realised law is within
2^-63 per draw of the iid Bernoulli law in total variation.
"""

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from fedmf.checks import check_at_least, check_keep_probability
from fedmf.randomness import SecretKey, uniform_words

_LONGEST_GAP = 1024  # longer gaps are drawn piecewise: the geometric law is memoryless
_GUARD_BITS = 128


def kept_coordinates(key: SecretKey, dimension: int, keep_probability: float) -> npt.NDArray[np.int64]:
    """Return the kept coordinates in increasing order, shape (k,), int64, each in [0, dimension) kept with
    `keep_probability`.

    Takes O(gamma * dimension) time. The same arguments give the same coordinates on every platform.

    >>> kept_coordinates(SecretKey.reproducible(0), 4, 1.0)
    array([0, 1, 2, 3])
    """
    check_at_least("dimension", dimension, 0)
    check_keep_probability(keep_probability)
    if keep_probability == 1:
        return np.arange(dimension)
    table = gap_table(keep_probability)
    pieces: list[npt.NDArray[np.int64]] = []
    position, drawn = -1, 0  # the last coordinate looked at, and how many words were used
    while position < dimension - 1:
        ahead = _draws_for(dimension - 1 - position, keep_probability)
        gaps = np.searchsorted(table, uniform_words(key, ahead, first=drawn), side="right") + 1
        is_kept = gaps <= _LONGEST_GAP
        positions = position + np.cumsum(np.minimum(gaps, _LONGEST_GAP))
        pieces.append(positions[is_kept & (positions < dimension)])
        position, drawn = int(positions[-1]), drawn + ahead
    return np.concatenate(pieces) if pieces else np.empty(0, np.int64)


@lru_cache(maxsize=8)
def gap_table(keep_probability: float) -> npt.NDArray[np.uint64]:
    """Return floor((1 - (1-gamma)^k) 2^64) for k = 1 .. 1024, uint64, exact in integer arithmetic; 0 < gamma
    < 1.

    A uniform 64-bit word u stands for the gap k (the next k-1 coordinates dropped, the k-th kept) when it
    lies in [table[k-2], table[k-1]), and for "none of the next 1024 is kept" when it is not below the last
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


def _draws_for(coordinates: int, keep_probability: float) -> int:
    """Return how many words to draw so that one batch nearly always passes `coordinates` more coordinates."""
    expected = coordinates * (keep_probability + 1 / _LONGEST_GAP)
    return int(expected + 4 * expected**0.5) + 8

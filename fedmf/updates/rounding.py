"""Stochastic rounding of a client's rotated update to int8: a quarter of the bytes at a stated cost in radius.

It happens on the client, on the WHOLE rotated vector, before the mask (docs/privacy.md, section 5):
rounding can lengthen a vector, and the server, which sees masked values only, could not check. The grid is
-127 .. 127 times Delta_inf / 127.
"""

import numpy as np
import numpy.typing as npt

from fedmf.checks import check_positive
from fedmf.randomness import SecretKey, uniform_words
from fedmf.updates.clipping import l2_norm
from fedmf.updates.vectors import Vector

# A rounded vector is accepted up to (1 + TAU) Delta_2; the accountant is given that radius.
TAU = 0.002
_LEVELS = 127
_TRIES = 20

Levels = npt.NDArray[np.int8]


def round_to_levels(vector: Vector, *, l2_bound: float, linf_bound: float, key: SecretKey) -> Levels:
    """Return `vector`, (D,) within both bounds, rounded to levels (D,), int8.

    The norm of what the levels stand for is at most (1 + TAU) l2_bound. Unbiased up to the rejected draws: a draw
    that is too long is redrawn, and after 20 of them the vector is rounded toward zero, which never lengthens it.
    Draws come from `key`, on a purpose of their own, so that they are independent of the mask.
    """
    check_positive("the L-infinity bound", linf_bound)
    scaled = vector.astype(np.float64) * (_LEVELS / linf_bound)
    below = np.floor(scaled)
    fraction = scaled - below
    for attempt in range(_TRIES):
        words = uniform_words(key.derive("rounding", attempt), vector.size)
        levels: Levels = np.clip(below + (words * 2.0**-64 < fraction), -_LEVELS, _LEVELS).astype(np.int8)
        if l2_norm(dequantize(levels, linf_bound)) <= (1 + TAU) * l2_bound:
            return levels
    return np.asarray(np.trunc(scaled), np.int8)


def dequantize(levels: Levels, linf_bound: float) -> Vector:
    """Return the values that levels stand for: level times linf_bound / 127, float32, shape of `levels`."""
    return levels * np.float32(linf_bound / _LEVELS)

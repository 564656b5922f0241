"""Stochastic rounding of a client's rotated update to int8: a quarter of the bytes at a stated cost in radius.

It happens on the client, on the WHOLE rotated vector, before the mask (docs/privacy.md, section 5):
rounding can lengthen a vector, and the server, which sees masked values only, could not check. The grid is
-127 .. 127 times a step of Delta_inf / 127, which is rounded so that no level stands for more than Delta_inf.
"""

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from fedmf.checks import check_positive
from fedmf.randomness import SecretKey, uniform_words
from fedmf.updates.clipping import MARGIN, l2_norm
from fedmf.updates.vectors import Vector

# A rounded vector is accepted up to (1 + TAU) Delta_2; the accountant is given that radius.
TAU = 0.002
_LEVELS = 127
_TRIES = 20

Levels = npt.NDArray[np.int8]


def round_to_levels(vector: Vector, *, l2_bound: float, linf_bound: float, key: SecretKey) -> Levels:
    """Return `vector`, (D,) within both bounds, rounded to levels (D,), int8.

    What the levels stand for is in exact arithmetic at most (1 + TAU) l2_bound long and nowhere above linf_bound. A value's
    two levels are those of the step that `dequantize` multiplies by, so that rounding is unbiased up to the rejected draws (a
    draw that is too long is redrawn, and after 20 of them the vector is rounded toward zero, which never lengthens it), the
    float32 rounding of a level's value, and values above 127 steps, which are within 2^-22 of the bound and become 127.
    Draws come from `key`, on a purpose of their own, so that they are independent of the mask.
    """
    scaled = vector.astype(np.float64) / float(level_step(linf_bound))
    below = np.floor(scaled)
    fraction = scaled - below
    for attempt in range(_TRIES):
        words = uniform_words(key.derive("rounding", attempt), vector.size)
        levels: Levels = np.clip(below + (words * 2.0**-64 < fraction), -_LEVELS, _LEVELS).astype(np.int8)
        # The norm is computed: the margin is for what it rounds.
        if l2_norm(dequantize(levels, linf_bound)) <= (1 + TAU) * l2_bound * (1 - MARGIN):
            return levels
    return np.asarray(np.trunc(scaled), np.int8)


def dequantize(levels: Levels, linf_bound: float) -> Vector:
    """Return the values that levels stand for: level times `level_step`, float32, shape of `levels`; none above linf_bound.

    The client checks these values and the server adds them: both call this function.
    """
    return levels * level_step(linf_bound)


@lru_cache
def level_step(linf_bound: float) -> np.float32:
    """Return the distance of two levels: the largest float32 of which no level up to 127, in float32, exceeds linf_bound.

    The float32 next to linf_bound / 127 may do so: 127 times that of .3 is .30000001192.... Products are rounded in order,
    so that the last level decides for all.
    """
    check_positive("the L-infinity bound", linf_bound)
    down, up = np.float32(0), np.float32(np.inf)
    # The nearest to linf_bound / 127 may be above, or one below, what is looked for. They are compared as floats, as numpy
    # would round the bound to float32 first.
    step: np.float32 = np.nextafter(np.float32(linf_bound / _LEVELS), up)
    while float(np.float32(_LEVELS) * step) > linf_bound:
        step = np.nextafter(step, down)
    return step

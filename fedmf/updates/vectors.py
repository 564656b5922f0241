"""One client's update as a vector: its layout, the bounds that it is held to, and its rounding to int8.

The privacy theorem rests on the bounds ||g||_2 <= Delta_2 and ||g||_inf <= Delta_inf for the whole rotated vector g; the
client itself enforces them. Norms are taken in float64: the float32 norm of 1e30 overflows, and infinity times zero is NaN.

Stochastic rounding to int8 saves three quarters of the bytes at a stated cost in radius. The client rounds the WHOLE
rotated vector, before the mask (docs/theory.md, section 3): rounding can lengthen a vector, and the server, which sees
masked values only, could not check. The grid is -127 .. 127 times a step of Delta_inf / 127, which is rounded so that no
level stands for more than Delta_inf.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from fedmf.errors import SettingError
from fedmf.randomness import SecretKey, uniform_words

# A float32 product rounds by up to 2^-24 of its size, and the rotation by a few more: clipping to slightly
# less keeps the exact norm of what is sent at or below the bound that is accounted.
MARGIN = 2.0**-20

# Where the factor follows from the norm before the rotation, what that rounds is covered too: docs/theory.md, section 3,
# proves that a rotated vector is longer by less than 2^-14 of its length, for up to 2^32 coordinates.
ROTATION_MARGIN = 2.0**-14
LONGEST_ROTATED = 2.0**100  # a vector that is longer may overflow when it is rotated

# A rounded vector is accepted up to (1 + TAU) Delta_2; the accountant is given that radius.
TAU = 0.002
_LEVELS = 127
_TRIES = 20

Vector = np.typing.NDArray[np.float32]
Levels = np.typing.NDArray[np.int8]


@dataclass(frozen=True)
class Layout:
    """Names and shapes of a model's parameters, in their fixed order; `dimension` is d, their total size.

    >>> layout = Layout(("bias", "weight"), ((2,), (2, 3)))
    >>> layout.dimension, layout.split(np.arange(8, dtype=np.float32))["weight"].shape
    (8, (2, 3))
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @property
    def dimension(self) -> int:
        """The number of parameters d."""
        return sum(self._sizes())

    def split(self, vector: Vector) -> dict[str, Vector]:
        """Return the vector (d,) as named arrays: views, nothing is copied.

        Raises `SettingError` for another length.
        """
        if vector.shape != (self.dimension,):
            raise SettingError(
                f"the vector has shape {vector.shape}; the model has {self.dimension} parameters."
            )
        parts = np.split(vector, np.cumsum(self._sizes())[:-1])
        return {
            name: part.reshape(shape)
            for name, part, shape in zip(self.names, parts, self.shapes, strict=True)
        }

    def _sizes(self) -> list[int]:
        return [math.prod(shape) for shape in self.shapes]


def l2_norm(vector: np.typing.NDArray[np.floating]) -> float:
    """Return the Euclidean norm, accumulated in float64.

    >>> l2_norm(np.full(4, 1e30, np.float32)) < 2.1e30
    True
    """
    wide = vector.astype(np.float64, copy=False)
    return math.sqrt(float(np.dot(wide, wide)))


def clip_l2(update: Vector, bound: float, *, norm: float | None = None) -> Vector:
    """Return `update` scaled into the ball of radius `bound` (units of the update); never longer than `bound`.

    A vector within the ball less a rounding margin is returned as it is. With `norm`, `update` is any part of a rotated
    vector, and `norm` the length that the whole had before it was rotated, as `Rotation.turn` gives both: the whole, scaled
    by this, is never longer than `bound`. It must be at most `LONGEST_ROTATED`.
    """
    limit = bound * (1 - (MARGIN if norm is None else ROTATION_MARGIN))
    norm = l2_norm(update) if norm is None else norm
    if norm <= limit:
        return update
    factor = limit / norm
    if factor > 2.0**-100:  # a normal float32: factor and product round by 2^-24 each, well within the margin
        return update * np.float32(factor)
    return np.multiply(update, factor, dtype=np.float64).astype(np.float32)


def clip_linf(update: Vector, bound: float) -> Vector:
    """Return `update` with each coordinate clipped to [-bound, bound] (units of the update)."""
    limit = np.float32(bound)
    if float(limit) > bound:  # compared in float64: the nearest float32 may lie above the bound
        limit = np.nextafter(limit, np.float32(0))
    return np.clip(update, -limit, limit)


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

    The float32 next to linf_bound / 127 may do so: 127 times that of 0.3 is 0.30000001192.... Products are rounded in
    order, so that the last level decides for all.
    """
    # The nearest to linf_bound / 127 may be above, or one below, the step. They are compared as floats, as numpy would
    # round the bound to float32 first.
    step: np.float32 = np.nextafter(np.float32(linf_bound / _LEVELS), np.float32(np.inf))
    while float(np.float32(_LEVELS) * step) > linf_bound:
        step = np.nextafter(step, np.float32(0))
    return step

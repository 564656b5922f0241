"""The randomised Hadamard rotation: it spreads an update evenly, so that the L-infinity clip costs little.

x -> H (signs * pad(x)) with H orthonormal (entries +-1/sqrt(D)), D the next power of two. The signs are
public: the rotation is no secret, only the mask is. Rotating before the L-infinity clip is what makes the
clip a bound on what is sent.
"""

import math
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import TypeVar

import numpy as np

from fedmf.checks import check_at_least, check_choice
from fedmf.compiling import loops
from fedmf.errors import SettingError
from fedmf.randomness import PublicSeed
from fedmf.setting import ROTATIONS
from fedmf.updates.vectors import Vector

LARGEST_DIMENSION = 1 << 32  # up to which docs/theory.md, section 3, proves the margin of the clip
Real = TypeVar("Real", np.float32, np.float64)

_RADIX = 16  # one product by H_16 a pass: five passes for 2^20, each a matrix product near memory speed
_SWEPT = 1 << 14  # coordinates whose squares are added at once, in float64: they stay in the cache
_COLUMNS = 1 << 11  # at once: a block that is read with a stride and written without stays in the cache


def padded_dimension(dimension: int, rotation: str) -> int:
    """Return D: the next power of two for rotation "hadamard", the dimension itself for "identity".

    >>> padded_dimension(650, "hadamard"), padded_dimension(650, "identity")
    (1024, 650)
    """
    check_at_least("dimension", dimension, 1)
    check_choice("rotation", rotation, ROTATIONS)
    return 1 << (dimension - 1).bit_length() if rotation == "hadamard" else dimension


def hadamard(vector: np.typing.NDArray[Real], *, donate: bool = False) -> np.typing.NDArray[Real]:
    """Return H x for the orthonormal Sylvester-Hadamard matrix H; x has shape (D,), D a power of two.

    H is its own inverse. Computed in the dtype of x, float32 or float64. With `donate` x may be overwritten. Compiled where
    numba is there (`fedmf.fast`); the two agree to rounding (docs/theory.md, section 3).

    >>> hadamard(np.array([1, 0, 0, 0], np.float32))
    array([0.5, 0.5, 0.5, 0.5], dtype=float32)
    """
    size = vector.size
    assert vector.shape == (size,)
    assert size.bit_count() == 1
    fast = loops() if vector.dtype in (np.float32, np.float64) else None
    if fast is not None:
        given = np.require(vector, requirements=["C", "A", "W"])  # one kind of array: compiled once
        transformed = given if donate else np.empty(size, vector.dtype)
        fast.transform(given, vector.dtype.type(size**-0.5), transformed)
        return transformed
    return _hadamard_in_numpy(vector, donate)


def _hadamard_in_numpy(vector: np.typing.NDArray[Real], donate: bool = False) -> np.typing.NDArray[Real]:
    """Return H x by one product with H_16 a pass, over blocks of columns."""
    spare, remaining = vector if donate else np.empty_like(vector), vector.size
    target = np.empty_like(vector)
    while remaining > 1:
        radix = min(_RADIX, remaining)
        # Each pass transforms the slowest axis and makes it the fastest: at the end all are back in order.
        rows, out = vector.reshape(radix, -1), target.reshape(-1, radix)
        transform = _sylvester(radix).astype(vector.dtype)
        for start in range(0, rows.shape[1], _COLUMNS):
            block = slice(start, start + _COLUMNS)
            np.matmul(rows[:, block].T, transform, out=out[block])
        vector, target, spare = target, spare, target
        remaining //= radix
    return vector


@dataclass(frozen=True)
class Rotated:
    """A rotated update (D,), not clipped yet, with the L2 norm that the update had: not finite where an entry was not."""

    values: Vector
    norm: float


def zero_if_not_finite(rotated: Rotated) -> Rotated:
    """Return `rotated`, or the zero vector if any entry of the update was NaN or infinite."""
    return rotated if math.isfinite(rotated.norm) else Rotated(np.zeros_like(rotated.values), 0.0)


@dataclass(frozen=True)
class Rotation:
    """An orthonormal map from d model coordinates to D = `padded` sent ones and back, fixed by a public seed."""

    kind: str
    dimension: int
    seed: PublicSeed
    padded: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "padded", padded_dimension(self.dimension, self.kind))
        if self.padded > LARGEST_DIMENSION:
            raise SettingError(
                f"dimension is {self.dimension}; the margin for rounding is proved up to {LARGEST_DIMENSION}."
            )

    @cached_property
    def signs(self) -> np.typing.NDArray[np.int8]:
        """The public signs of the rotation, (D,)."""
        return self.seed.signs(self.padded, "rotation").astype(np.int8)  # kept for the whole run

    def turn(self, update: Vector, start: Vector | None = None) -> Rotated:
        """Return `update` (d,) less `start` (d,), if given, rotated to (D,), and the L2 norm of that difference.

        Rotating keeps the norm up to float32 rounding.
        The difference is that of float32; its norm is accumulated in float64, which no finite float32 values overflow.
        """
        fast = None if self.kind == "identity" else loops()
        if fast is None:
            return self._turn_in_numpy(update, start)
        parts = (update, update[:0] if start is None else start)
        given = [np.require(part, np.float32, ["C", "A", "W"]) for part in parts]  # one kind: compiled once
        values = np.empty(self.padded, np.float32)
        factor = np.float32(self.padded**-0.5)
        return Rotated(values, math.sqrt(fast.sweep(*given, self.signs, factor, values)))

    def _turn_in_numpy(self, update: Vector, start: Vector | None) -> Rotated:
        values, squares = np.zeros(self.padded, np.float32), 0.0
        difference = values[: self.dimension]
        with np.errstate(over="ignore", invalid="ignore"):
            np.subtract(update, 0 if start is None else start, out=difference)
            for first in range(0, self.dimension, _SWEPT):
                wide = difference[first : first + _SWEPT].astype(np.float64)
                squares += float(np.dot(wide, wide))
            if self.kind != "identity":
                difference *= self.signs[: self.dimension]
                values = hadamard(values, donate=True)
        return Rotated(values, math.sqrt(squares))

    def unrotate(self, rotated: np.typing.NDArray[Real], *, donate: bool = False) -> np.typing.NDArray[Real]:
        """Return the inverse of `turn` less the padding, (D,) -> (d,), in the dtype of `rotated`.

        With `donate` the memory of `rotated` may be overwritten, and that of the result.
        """
        if self.kind == "identity":
            return rotated
        unrotated = hadamard(rotated, donate=donate)[: self.dimension]
        is_ours = donate or not np.may_share_memory(unrotated, rotated)
        return np.multiply(unrotated, self.signs[: self.dimension], out=unrotated if is_ours else None)


@cache
def _sylvester(size: int) -> np.typing.NDArray[np.float64]:
    """Return the orthonormal Sylvester-Hadamard matrix of a power-of-two size."""
    matrix: np.typing.NDArray[np.float64] = np.ones((1, 1))
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return np.asarray(matrix / np.sqrt(size))

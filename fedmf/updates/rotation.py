"""The randomised Hadamard rotation: it spreads an update evenly, so that the L-infinity clip costs little.

x -> H (signs * pad(x)) with H orthonormal (entries +-1/sqrt(D)), D the next power of two. The signs are
public: the rotation is no secret, only the mask is. Rotating before the L-infinity clip is what makes the
clip a bound on what is sent.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from fedmf.checks import check_at_least, check_choice
from fedmf.choices import ROTATIONS
from fedmf.errors import SettingError
from fedmf.randomness import PublicSeed
from fedmf.updates.vectors import Vector

Real = TypeVar("Real", np.float32, np.float64)

_RADIX = 16  # one product by H_16 a pass: five passes for 2^20, each a matrix product near memory speed
_COLUMNS = 1 << 11  # at once: a block that is read with a stride and written without stays in the cache


def padded_dimension(dimension: int, rotation: str) -> int:
    """Return D: the next power of two for rotation "hadamard", the dimension itself for "identity".

    >>> padded_dimension(650, "hadamard"), padded_dimension(650, "identity")
    (1024, 650)
    """
    check_at_least("dimension", dimension, 1)
    check_choice("rotation", rotation, ROTATIONS)
    return 1 << (dimension - 1).bit_length() if rotation == "hadamard" else dimension


def hadamard(vector: npt.NDArray[Real], *, donate: bool = False) -> npt.NDArray[Real]:
    """Return H x for the orthonormal Sylvester-Hadamard matrix H; x has shape (D,), D a power of two.

    H is its own inverse. Computed in the dtype of x, float32 or float64. With `donate` x may be overwritten.

    >>> hadamard(np.array([1, 0, 0, 0], np.float32))
    array([0.5, 0.5, 0.5, 0.5], dtype=float32)
    """
    size = vector.size
    if vector.shape != (size,) or size == 0 or size & (size - 1):
        raise SettingError(f"the vector has shape {vector.shape}; a Hadamard transform needs a power of two.")
    spare, remaining = vector if donate else np.empty_like(vector), size
    target = np.empty_like(vector)
    while remaining > 1:
        radix = min(_RADIX, remaining)
        # Each pass transforms the slowest axis and makes it the fastest: at the end all are back in order.
        _transform_slowest(vector.reshape(radix, -1), out=target.reshape(-1, radix))
        vector, target, spare = target, spare, target
        remaining //= radix
    return vector


def _transform_slowest(matrix: npt.NDArray[Real], *, out: npt.NDArray[Real]) -> None:
    """Write (H matrix)^T into `out`, (columns, radix), for `matrix` of shape (radix, columns)."""
    radix, columns = matrix.shape
    transform = _SYLVESTER[radix].astype(matrix.dtype)
    for start in range(0, columns, _COLUMNS):
        block = slice(start, start + _COLUMNS)
        np.matmul(matrix[:, block].T, transform, out=out[block])


@dataclass(frozen=True)
class Rotation:
    """An orthonormal map from d model coordinates to D sent ones and back, fixed by a public seed."""

    kind: str
    dimension: int
    seed: PublicSeed

    def __post_init__(self) -> None:
        padded_dimension(self.dimension, self.kind)

    @property
    def padded(self) -> int:
        """D, the number of coordinates after padding."""
        return padded_dimension(self.dimension, self.kind)

    @cached_property
    def _signs(self) -> npt.NDArray[np.int8]:
        return self.seed.signs(self.padded, "rotation").astype(np.int8)  # kept for the whole run

    def rotate(self, update: Vector) -> Vector:
        """Return the rotated update, (d,) -> (D,), same Euclidean norm up to float32 rounding."""
        if self.kind == "identity":
            return update
        padded = np.empty(self.padded, np.float32)
        np.multiply(update, self._signs[: self.dimension], out=padded[: self.dimension])
        padded[self.dimension :] = 0
        return hadamard(padded)

    def unrotate(self, rotated: npt.NDArray[Real], *, donate: bool = False) -> npt.NDArray[Real]:
        """Return the inverse of `rotate` less the padding, (D,) -> (d,), in the dtype of `rotated`.

        With `donate` the memory of `rotated` may be overwritten, and that of the result.
        """
        if self.kind == "identity":
            return rotated
        unrotated = hadamard(rotated, donate=donate)[: self.dimension]
        is_ours = donate or not np.may_share_memory(unrotated, rotated)
        return np.multiply(unrotated, self._signs[: self.dimension], out=unrotated if is_ours else None)


def _sylvester(size: int) -> npt.NDArray[np.float64]:
    """Return the orthonormal Sylvester-Hadamard matrix of a power-of-two size."""
    matrix: npt.NDArray[np.float64] = np.ones((1, 1))
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return np.asarray(matrix / np.sqrt(size))


_SYLVESTER = {size: _sylvester(size) for size in (2, 4, 8, 16)}

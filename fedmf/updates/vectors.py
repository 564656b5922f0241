"""Named arrays of a model as one flat float32 vector, and back."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from fedmf.errors import SettingError

Vector = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Layout:
    """Names and shapes of a model's parameters, in their fixed order; `dimension` is d, their total size.

    >>> layout = Layout.of({"bias": np.zeros(2, np.float32), "weight": np.ones((2, 3), np.float32)})
    >>> layout.dimension, layout.flatten(layout.split(np.arange(8, dtype=np.float32)))[3]
    (8, np.float32(3.0))
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, arrays: Mapping[str, npt.NDArray[np.generic]]) -> Self:
        """Return the layout of named arrays, in their order."""
        return cls(tuple(arrays), tuple(tuple(array.shape) for array in arrays.values()))

    @property
    def dimension(self) -> int:
        """The number of parameters d."""
        return sum(self._sizes())

    def flatten(self, arrays: Mapping[str, npt.NDArray[np.generic]]) -> Vector:
        """Return all arrays as one vector (d,), float32.

        Raises `SettingError` when names or shapes differ.
        """
        if Layout.of(arrays) != self:
            raise SettingError(f"parameters are {Layout.of(arrays)}; the model has {self}.")
        return np.concatenate([np.asarray(array, np.float32).ravel() for array in arrays.values()])

    def split(self, vector: Vector) -> dict[str, Vector]:
        """Return the vector (d,) as named arrays: views, nothing is copied.

        Raises `SettingError` for another length.
        """
        if vector.shape != (self.dimension,):
            raise SettingError(
                f"the vector has shape {vector.shape}; the model has {self.dimension} parameters."
            )
        ends = np.cumsum(self._sizes())
        return {
            name: vector[end - size : end].reshape(shape)
            for name, shape, size, end in zip(self.names, self.shapes, self._sizes(), ends, strict=True)
        }

    def _sizes(self) -> list[int]:
        return [int(np.prod(shape)) for shape in self.shapes]

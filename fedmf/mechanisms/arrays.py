"""Array types of this package: float64 for mathematics, float32 for the tables of a stream, or either (`Floats`)."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmf.errors import SettingError

Float64 = NDArray[np.float64]
Float32 = NDArray[np.float32]
Floats = NDArray[np.floating[Any]]
Arrays = dict[str, NDArray[Any]]


def check_lower_triangular(name: str, matrix: Float64) -> None:
    """Raise `SettingError` unless `matrix` is square, finite, lower triangular and invertible."""
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or matrix.shape[0] < 1:
        raise SettingError(f"{name} has shape {matrix.shape}; it must be a square matrix.")
    if not np.all(np.isfinite(matrix)):
        raise SettingError(f"{name} holds a number that is not finite; every entry must be finite.")
    if np.any(np.triu(matrix, 1)):
        raise SettingError(f"{name} has entries above its diagonal; it must be lower triangular.")
    if np.any(np.diag(matrix) == 0):
        raise SettingError(f"{name} has a zero on its diagonal; it must be invertible.")

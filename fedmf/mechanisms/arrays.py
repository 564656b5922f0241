"""Array types of this package: float64 for mathematics, float32 for the tables of a stream, or either (`Floats`)."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]
Float32 = NDArray[np.float32]
Floats = NDArray[np.floating[Any]]

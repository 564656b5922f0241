"""The two array types of this package: float64 for mathematics, float32 for what a round moves."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]
Float32 = NDArray[np.float32]
Arrays = dict[str, NDArray[Any]]

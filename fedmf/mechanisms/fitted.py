"""What a family fits to a workload: the float32 numbers that are streamed, and what exactly these cost."""

from dataclasses import dataclass
from typing import Self

import numpy as np

from fedmf.mechanisms.arrays import Arrays, Float32, Float64


@dataclass(frozen=True, eq=False)
class Fitted:
    """A fit, as deployed: both figures hold for the rounded `tables`, not for the numbers before rounding.

    `sensitivity` is the largest column 2-norm of C; `per_round_error` (T,) float64 is sensitivity times the
    row norms of B; `tables` are the coefficients, weights or matrices, float32 of any shape, from which the
    family makes its stream; `left` (2, 2) float64 is squared sensitivity times the covariance of momentum and output
    that unit noise leaves after the last round, None where a family of one's own does not say; `seconds` is the CPU
    time of the fit.
    """

    sensitivity: float
    per_round_error: Float64
    tables: Float32
    left: Float64 | None = None
    seconds: float = 0.0

    def to_arrays(self) -> Arrays:
        """Return the fit as plain arrays, to be kept in a file."""
        return {
            "sensitivity": np.array(self.sensitivity),
            "per_round_error": self.per_round_error,
            "tables": self.tables,
            **({} if self.left is None else {"left": self.left}),
            "seconds": np.array(self.seconds),
        }

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> Self:
        """Return the fit that `to_arrays` made arrays of."""
        return cls(
            float(arrays["sensitivity"]),
            arrays["per_round_error"].astype(np.float64),
            arrays["tables"].astype(np.float32),
            arrays["left"].astype(np.float64) if "left" in arrays else None,
            float(arrays["seconds"]),
        )

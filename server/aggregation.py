"""The sum of a cohort's masked updates, the same bit for bit in whatever order the replies come.

Values are added as 64-bit fixed-point integers. The scale leaves room for n values at the bound. A value of 2^24
steps or more is a whole number of them; a smaller one is cut toward zero, so that it never gets longer, by less
than a step: bound * (n + 1) * 2^-61 at most, or 2^-100. Memory is one vector however large the cohort.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedmf.compiling import loops
from fedmf.mechanisms.streams.protocol import blocks
from fedmf.updates.vectors import Vector

# Without clipping nothing bounds a value; larger ones (a million times a usual weight) are clipped to this.
UNCLIPPED_BOUND = 2.0**20
_MOST_BITS = 100  # a float32 within the smallest bound there is, times 2^100, is still a float32


@dataclass(frozen=True)
class FixedPoint:
    """A grid of multiples of 2^-`bits` on which a sum of values within [-`bound`, `bound`] cannot overflow."""

    bits: int
    bound: float

    @classmethod
    def fit(cls, bound: float | None, terms: int) -> "FixedPoint":
        """Return the finest grid for `terms` values within [-bound, bound] (None: `UNCLIPPED_BOUND`).

        The sum of them fits into 63 bits.
        """
        bound = UNCLIPPED_BOUND if bound is None else bound
        return cls(min(62 - math.ceil(math.log2(bound * (terms + 1))), _MOST_BITS), bound)

    def zeros(self, dimension: int) -> npt.NDArray[np.int64]:
        """Return an empty sum, shape (dimension,), int64."""
        return np.zeros(dimension, np.int64)

    def add(self, total: npt.NDArray[np.int64], coordinates: npt.NDArray[np.int64], values: Vector) -> None:
        """Add `values` (k,) float32 at distinct `coordinates` to `total`, in place, each clipped to the bound."""
        if (fast := loops()) is not None:
            fast.add(total, coordinates, values, np.float32(self.bound), np.float32(2.0**self.bits))
            return
        scaled = np.clip(values, -self.bound, self.bound)
        scaled *= np.float32(2.0**self.bits)  # exact: a power of two
        np.add.at(total, coordinates, scaled.astype(np.int64))

    def value(self, total: npt.NDArray[np.int64], *, donate: bool = False) -> npt.NDArray[np.float64]:
        """Return the sum, shape of `total`; with `donate` in the memory of `total`, which is then spent.

        Float64, until the noise is on: rounding a sum of many values to float32 could lengthen one client's
        part beyond the bound that is accounted.
        """
        value = total.view(np.float64) if donate else np.empty(total.shape)
        for block in blocks(len(total), 4):  # so that no second vector of the model's size is needed
            np.multiply(total[block], 2.0**-self.bits, out=value[block])
        return value

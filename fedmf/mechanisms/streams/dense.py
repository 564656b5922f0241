"""A stream that multiplies by a dense matrix and needs all rows: for oracles, own matrices and small T.

Noise row t is a sum over all fresh rows up to t. They are kept, T - 1 rows of the model's length, where that is no more
than `KEPT_BYTES`; beyond it none is kept and a step draws all of them again from the epoch's key, which takes t times as
long and one row of memory. Both add in the same order, coordinate by coordinate, so that they give the same bits.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedmf.mechanisms import workload as workloads
from fedmf.mechanisms.arrays import Float64
from fedmf.mechanisms.streams.protocol import (
    ON_RELEASE,
    Draw,
    NoiseStream,
    StreamState,
    blocks,
    first_state,
)
from fedmf.mechanisms.workload import Workload
from fedmf.normals import UNIT

KEPT_BYTES = 1 << 30  # of fresh rows: a state is held in memory, and in a file between rounds
_SCRATCH = 4  # arrays of a block that are in use at once


@dataclass(frozen=True, eq=False)
class DenseStream(NoiseStream):
    """A noise stream that multiplies by its tables C^-1, (T, T) float32 lower triangular, row by row.

    The state holds all fresh rows in order, or none at all: then a step draws all of them again.
    """

    takes = "(T, T) and lower triangular with no zero on the diagonal"

    def _fits(self) -> bool:
        if self.tables.shape != (self.rounds, self.rounds):
            return False
        return not np.triu(self.tables, 1).any() and bool(np.diag(self.tables).all())

    @property
    def buffers(self) -> int:
        """T - 1: all fresh rows but the last, where they are kept."""
        return self.rounds - 1

    def own(self, step: int) -> float:
        """Return the diagonal entry of C^-1."""
        return float(self.tables[step, step])

    @cached_property
    def sensitivity(self) -> float:
        """The largest column norm of the dense C."""
        return float(np.linalg.norm(self.materialize_strategy(), axis=0).max())

    def errors(self, workload: Workload) -> tuple[Float64, Float64]:
        """Return the row norms of A C^-1 and what is left."""
        noising = self.materialize_noising()
        after = workloads.after_last(workload, noising)
        return np.linalg.norm(workloads.apply(workload, noising), axis=1), after @ after.T

    def init(self, dimension: int) -> StreamState:
        """Return T - 1 zero rows, or none where they would take more than `KEPT_BYTES`."""
        return first_state(self.buffers if 8 * self.buffers * dimension <= KEPT_BYTES else 0, dimension)

    def _kinds_of_state(self) -> tuple[int, ...]:
        return (self.buffers, 0)

    def _step(
        self, step: int, fresh: Float64, buffers: Float64, updated: Float64, mean: Float64, draw: Draw
    ) -> None:
        mean.fill(0)
        # Row after row, and not by a matrix product, whose order is the library's own: kept or drawn, the bits are the same.
        for number in range(step):
            row, weight = buffers[number] if len(buffers) else draw(number), float(self.tables[step, number])
            for block in blocks(len(mean), _SCRATCH):
                mean[block] += weight * row[block]
        if step < len(buffers):
            updated[step] = fresh

    def _kept(self, step: int) -> int:
        return step

    def rounding(self) -> float:
        """Return the bound; see `NoiseStream.rounding`. Row t adds t products, whose partial sums are normal numbers."""
        sizes, norms = np.abs(self.tables), np.linalg.norm(self.tables.astype(np.float64), axis=1)
        of_rows = sizes.sum(axis=1, dtype=np.float64) + (np.arange(self.rounds) + ON_RELEASE) * norms
        return float(self.sensitivity * UNIT * of_rows.sum())

    def materialize_noising(self) -> Float64:
        """Return the tables, (T, T) float64."""
        return self.tables.astype(np.float64)

"""A stream that multiplies by a dense matrix and needs all rows: for oracles, custom matrices and small T.

Noise row t is a sum over all fresh rows up to t. None is kept: a step draws the earlier ones again from the epoch's key,
one after another, in the time of t rows and the memory of two.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedmf.mechanisms import workload as workloads
from fedmf.mechanisms.streams.protocol import ON_RELEASE, Draw, NoiseStream, blocks
from fedmf.mechanisms.workload import Float64, Workload
from fedmf.normals import UNIT

_SCRATCH = 4  # arrays of a block that are in use at once


@dataclass(frozen=True, eq=False)
class DenseStream(NoiseStream):
    """A noise stream that multiplies by its tables C^-1, (T, T) float32 lower triangular, row by row; its state has no rows."""

    takes = "(T, T) and lower triangular with no zero on the diagonal"

    def _fits(self) -> bool:
        is_square = self.tables.shape == (self.rounds, self.rounds)
        return is_square and not np.triu(self.tables, 1).any() and bool(np.diag(self.tables).all())

    @property
    def buffers(self) -> int:
        return 0

    def own(self, step: int) -> float:
        return float(self.tables[step, step])

    @cached_property
    def sensitivity(self) -> float:
        return float(np.linalg.norm(self.materialize_strategy(), axis=0).max())

    def errors(self, workload: Workload) -> tuple[Float64, Float64]:
        noising = self.materialize_noising()
        after = workloads.after_last(workload, noising)
        return np.linalg.norm(workloads.apply(workload, noising), axis=1), after @ after.T

    def _step(self, step: int, fresh: Float64, buffers: Float64, mean: Float64, draw: Draw) -> None:
        mean.fill(0)
        # Row after row, and not by a matrix product, whose order is the library's own.
        for number in range(step):
            row, weight = draw(number), float(self.tables[step, number])
            for block in blocks(len(mean), _SCRATCH):
                mean[block] += weight * row[block]

    def rounding(self) -> float:
        """Return the bound; see `NoiseStream.rounding`. Row t adds t products, whose partial sums are normal numbers."""
        sizes, norms = np.abs(self.tables), np.linalg.norm(self.tables.astype(np.float64), axis=1)
        of_rows = sizes.sum(axis=1, dtype=np.float64) + (np.arange(self.rounds) + ON_RELEASE) * norms
        return float(self.sensitivity * UNIT * of_rows.sum())

    def materialize_noising(self) -> Float64:
        return self.tables.astype(np.float64)

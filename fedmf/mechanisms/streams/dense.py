"""Factorizations held as dense matrices, for oracles and small T: cost, and a stream that needs all rows.

Noise row t is a sum over all fresh rows up to t. They are kept, T - 1 rows of the model's length, where that is no more
than `KEPT_BYTES`; beyond it none is kept and a step draws all of them again from the epoch's key, which takes t times as
long and one row of memory. Both add in the same order, coordinate by coordinate, so that they give the same bits.
"""

from dataclasses import dataclass

import numpy as np
from scipy.linalg import solve_triangular

from fedmf.mechanisms import workload as workloads
from fedmf.mechanisms.arrays import Float32, Float64
from fedmf.mechanisms.fitted import Fitted
from fedmf.mechanisms.streams.protocol import (
    ON_RELEASE,
    BufferedStream,
    Draw,
    StreamState,
    blocks,
    first_state,
)
from fedmf.mechanisms.workload import Workload
from fedmf.normals import UNIT

KEPT_BYTES = 1 << 30  # of fresh rows: a state is held in memory, and in a file between rounds
_SCRATCH = 4  # arrays of a block that are in use at once


def rounded_with_cost(noising: Float64, workload: Workload) -> Fitted:
    """Return the lower triangular C^-1 as rounded to float32, with the cost of exactly these numbers."""
    rounded = np.tril(noising).astype(np.float32)
    sensitivity, per_round_error, left = cost(rounded.astype(np.float64), workload)
    return Fitted(sensitivity, per_round_error, rounded, left)


def cost(noising: Float64, workload: Workload) -> tuple[float, Float64, Float64]:
    """Return sensitivity, per-round error (T,) and what is left (2, 2) of the lower triangular C^-1, (T, T)."""
    sensitivity = float(np.linalg.norm(inverse(noising), axis=0).max())
    after = sensitivity * workloads.after_last(workload, noising)
    return (
        sensitivity,
        sensitivity * np.linalg.norm(workloads.apply(workload, noising), axis=1),
        after @ after.T,
    )


def inverse(lower: Float64) -> Float64:
    """Return the inverse of a lower triangular matrix, shape (T, T)."""
    result: Float64 = solve_triangular(lower, np.eye(len(lower)), lower=True)
    return result


@dataclass(frozen=True)
class DenseStream(BufferedStream):
    """A noise stream that multiplies by C^-1, (T, T) float32 lower triangular, row by row.

    The state holds all fresh rows in order, or none at all: then a step draws all of them again.
    """

    rounds: int
    noising: Float32

    @property
    def buffers(self) -> int:
        """T - 1: all fresh rows but the last, where they are kept."""
        return self.rounds - 1

    def own(self, step: int) -> float:
        """Return the diagonal entry of C^-1."""
        return float(self.noising[step, step])

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
            row, weight = buffers[number] if len(buffers) else draw(number), float(self.noising[step, number])
            for block in blocks(len(mean), _SCRATCH):
                mean[block] += weight * row[block]
        if step < len(buffers):
            updated[step] = fresh

    def _kept(self, step: int) -> int:
        return step

    def rounding(self, sensitivity: float) -> float:
        """Return the bound; see `NoiseStream.rounding`. Row t adds t products, whose partial sums are normal numbers."""
        sizes, norms = np.abs(self.noising), np.linalg.norm(self.noising.astype(np.float64), axis=1)
        of_rows = sizes.sum(axis=1, dtype=np.float64) + (np.arange(self.rounds) + ON_RELEASE) * norms
        return float(sensitivity * UNIT * of_rows.sum())

    def materialize_strategy(self) -> Float64:
        """Return the dense C, shape (T, T)."""
        return inverse(self.materialize_noising())

    def materialize_noising(self) -> Float64:
        """Return the dense C^-1, shape (T, T)."""
        return self.noising.astype(np.float64)

"""Factorizations held as dense matrices, for oracles and small T: cost, and a stream that keeps all rows."""

from dataclasses import dataclass

import numpy as np
from scipy.linalg import solve_triangular

from fedmf.mechanisms import workload as workloads
from fedmf.mechanisms.arrays import Float32, Float64
from fedmf.mechanisms.fitted import Fitted
from fedmf.mechanisms.streams.protocol import BufferedStream, SquareStream, blocks
from fedmf.mechanisms.workload import Workload


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
class DenseStream(SquareStream, BufferedStream):
    """A noise stream that multiplies by C^-1, (T, T) float32 lower triangular, row by row.

    The state holds all fresh rows in order.
    """

    rounds: int
    noising: Float32

    @property
    def buffers(self) -> int:
        """T - 1: all fresh rows but the last."""
        return self.rounds - 1

    def _step(self, step: int, fresh: Float32, buffers: Float32, updated: Float32, row: Float32) -> None:
        weights, history = self.noising[step, :step], buffers[:step]
        for block in blocks(len(row), step + 1):
            row[block] = self.noising[step, step] * fresh[0, block] + weights @ history[:, block]
        if step < self.buffers:
            updated[step] = fresh[0]

    def _kept(self, step: int) -> int:
        return step

    def materialize_strategy(self) -> Float64:
        """Return the dense C, shape (T, T)."""
        return inverse(self.materialize_noising())

    def materialize_noising(self) -> Float64:
        """Return the dense C^-1, shape (T, T)."""
        return self.noising.astype(np.float64)

"""Factorizations held as dense matrices, for oracles and small T: their cost,
and a stream that keeps every fresh row.
"""

from dataclasses import dataclass

import numpy as np
from scipy.linalg import solve_triangular

from fedmf.errors import SettingError
from fedmf.mechanisms import workload as workloads
from fedmf.mechanisms.arrays import Arrays, Float32, Float64
from fedmf.mechanisms.streams.protocol import (
    SquareStream,
    StreamState,
    blocks,
    check_next,
    copy_of,
    first_state,
)
from fedmf.mechanisms.workload import Workload


def check_rounds(family: str, rounds: int, most: int) -> None:
    """Raise `SettingError` where dense matrices would be too large."""
    if rounds > most:
        raise SettingError(
            f"rounds is {rounds}; {family} works on dense matrices and takes at most {most} rounds."
        )


def deployed(noising: Float64, workload: Workload) -> Arrays:
    """Return the lower triangular C^-1 as rounded to float32, and sensitivity
    and error of exactly these numbers.
    """
    rounded = np.tril(noising).astype(np.float32)
    exact = rounded.astype(np.float64)
    strategy = _inverse(exact)
    sensitivity = np.linalg.norm(strategy, axis=0).max()
    error = sensitivity * np.linalg.norm(workloads.apply(workload, exact), axis=1)
    return {"noising": rounded, "sensitivity": sensitivity, "per_round_error": error}


def _inverse(lower: Float64) -> Float64:
    inverse: Float64 = solve_triangular(lower, np.eye(len(lower)), lower=True)
    return inverse


@dataclass(frozen=True)
class DenseStream(SquareStream):
    """A noise stream of `rounds` steps that multiplies by C^-1,
    (T, T) float32 lower triangular, row by row.
    """

    rounds: int
    noising: Float32

    @property
    def buffers(self) -> int:
        """T - 1: all fresh rows but the last."""
        return self.rounds - 1

    def init(self, dimension: int) -> StreamState:
        """Return T - 1 zero rows, which the operating system provides as they are filled."""
        return first_state(self.buffers, dimension)

    def next(
        self, fresh: Float32, state: StreamState, *, donate: bool = False
    ) -> tuple[Float32, StreamState]:
        """Return the noise row and the next state; see `NoiseStream.next`."""
        check_next(self, fresh, state)
        step = state.step
        weights, history = self.noising[step, :step], state.buffers[:step]
        row = np.empty(fresh.shape[1], dtype=np.float32)
        for block in blocks(len(row), step + 1):
            row[block] = self.noising[step, step] * fresh[0, block] + weights @ history[:, block]
        updated = state.buffers if donate else copy_of(state.buffers, step)
        if step < self.buffers:
            updated[step] = fresh[0]
        return row, StreamState(step + 1, updated)

    def materialize_strategy(self) -> Float64:
        """Return the dense C, shape (T, T)."""
        return _inverse(self.materialize_noising())

    def materialize_noising(self) -> Float64:
        """Return the dense C^-1, shape (T, T)."""
        return self.noising.astype(np.float64)

"""Factorizations held as dense matrices, for oracles and small T: cost, and a stream that needs all rows.

Noise row t is a sum over all fresh rows up to t. They are kept, T - 1 rows of the model's length, where that is no more
than `KEPT_BYTES`; beyond it none is kept and a step draws all of them again from the epoch's key, which takes t times as
long and one row of memory. Both add in the same order, coordinate by coordinate, so that they give the same bits.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import solve_triangular

from fedmf.errors import SettingError
from fedmf.mechanisms import workload as workloads
from fedmf.mechanisms.arrays import Float32, Float64
from fedmf.mechanisms.fitted import Fitted
from fedmf.mechanisms.streams.protocol import (
    BufferedStream,
    SquareStream,
    StreamState,
    blocks,
    check_step,
    first_state,
)
from fedmf.mechanisms.workload import Workload

KEPT_BYTES = 1 << 30  # of fresh rows: a state is held in memory, and in a file between rounds
_SCRATCH = 4  # arrays of a block that are in use at once

Draw = Callable[[int, Float32], object]
"""A function that fills an array, (d,) float32, with the fresh row of that number."""


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

    The state holds all fresh rows in order, or none at all: then `next_drawn` takes the place of `next`.
    """

    rounds: int
    noising: Float32

    @property
    def buffers(self) -> int:
        """T - 1: all fresh rows but the last, where they are kept."""
        return self.rounds - 1

    def init(self, dimension: int) -> StreamState:
        """Return T - 1 zero rows, or none where they would take more than `KEPT_BYTES`."""
        # A class made of this one may have a step of its own, which `next_drawn` does not know.
        fits = 4 * self.buffers * dimension <= KEPT_BYTES or type(self) is not DenseStream
        return first_state(self.buffers if fits else 0, dimension)

    def draws_again(self, state: StreamState) -> bool:
        """Return whether `state` keeps no fresh rows, so that its rows come from `next_drawn`."""
        return self.buffers > 0 and len(state.buffers) == 0

    def next(
        self, fresh: Float32, state: StreamState, *, donate: bool = False
    ) -> tuple[Float32, StreamState]:
        """Return the noise row and the next state; see `NoiseStream.next`.

        Raises `SettingError` for a state that keeps no rows.
        """
        if self.draws_again(state):
            raise SettingError(
                f"the state of step {state.step} keeps no fresh rows, as {self.buffers} of them would take more than "
                f"{KEPT_BYTES} bytes; call next_noise or next_drawn, which draw them again."
            )
        return super().next(fresh, state, donate=donate)

    def next_drawn(self, draw: Draw, state: StreamState) -> tuple[Float32, StreamState]:
        """Return the noise row and the next state, with every fresh row up to this step from `draw`.

        The bits are those of `next` on a state that keeps rows. Raises `SettingError` for a step past the last one.
        """
        check_step(state.step, self.rounds)
        dimension = state.buffers.shape[1]
        row, fresh = np.zeros(dimension, np.float32), np.empty(dimension, np.float32)
        for number in range(state.step + 1):
            draw(number, fresh)
            for block in blocks(dimension, _SCRATCH):
                row[block] += self.noising[state.step, number] * fresh[block]
        return row, skipped(state, state.step + 1)

    def _step(self, step: int, fresh: Float32, buffers: Float32, updated: Float32, row: Float32) -> None:
        row.fill(0)
        # In the order of `next_drawn`, and not by a matrix product, whose order is the library's own.
        for block in blocks(len(row), _SCRATCH):
            for number in range(step):
                row[block] += self.noising[step, number] * buffers[number, block]
            row[block] += self.noising[step, step] * fresh[0, block]
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


def skipped(state: StreamState, step: int) -> StreamState:
    """Return the state of a later `step` where no fresh rows are kept: nothing else tells one step from another."""
    return replace(state, step=step, buffers=state.buffers.view())

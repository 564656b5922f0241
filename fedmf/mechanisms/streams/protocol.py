"""Noise streams: from independent Gaussian rows to the correlated rows that a server adds, round by round.

A stream is two functions: `init` makes the first state from the vector length, `next` takes the fresh rows of
a step and the state and returns the noise row and the next state. The stream itself holds only settings and
can be shared; all that changes is in `StreamState`. Emitted rows have the law of (A^-1 B Z)_t, which is (C^-1
Z)_t for square C, for rows Z of unit variance: the caller multiplies by the noise multiplier, the sensitivity
of C and the clip norm.

A state and the rows emitted are secrets: together with the released sums they give the exact sums.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Protocol, Self, runtime_checkable

import numpy as np

from fedmf.checks import check_at_least
from fedmf.errors import SettingError
from fedmf.mechanisms.arrays import Arrays, Float32, Float64

FORMAT_VERSION = 1
CACHED = 1 << 16  # float32 numbers of each scratch array: several of them fit in a second-level cache


@dataclass(frozen=True)
class StreamState:
    """Steps done in this epoch, 0 before the first, and the rows still needed, (buffers, d) float32.

    A stream that multiplies buffers and fresh row at once may give them one array `rows`, (buffers + 1, d), whose first
    rows are `buffers`: see `place_for_fresh`.
    """

    step: int
    buffers: Float32 = field(repr=False)
    rows: Float32 | None = field(default=None, repr=False)

    def place_for_fresh(self) -> Float32 | None:
        """Return the row behind the buffers, (1, d), where there is one.

        A fresh row that is drawn there and given to `next` with `donate=True` need not be copied; the noise row takes
        its place, and is good until the next one is drawn.
        """
        if self.rows is None or self.rows.ctypes.data != self.buffers.ctypes.data:
            return None
        return self.rows[len(self.buffers) :]

    def to_arrays(self) -> Arrays:
        """Return the state as plain arrays with a format version, to be saved. Secret, like the keys."""
        return {
            "format_version": np.array(FORMAT_VERSION),
            "step": np.array(self.step),
            "buffers": self.buffers,
        }

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> Self:
        """Return the state saved by `to_arrays`; raises `SettingError` if it is not one of this format."""
        missing = {"format_version", "step", "buffers"} - set(arrays)
        if missing:
            raise SettingError(f"the saved stream state lacks {', '.join(sorted(missing))}.")
        version = int(arrays["format_version"])
        if version != FORMAT_VERSION:
            raise SettingError(
                f"the saved stream state has format version {version}; this code reads {FORMAT_VERSION}."
            )
        buffers = np.asarray(arrays["buffers"])
        if buffers.dtype != np.float32 or buffers.ndim != 2:
            raise SettingError(
                f"the saved buffers are {buffers.dtype} of shape {buffers.shape}; they must be float32 rows."
            )
        return cls(int(arrays["step"]), buffers)


@runtime_checkable
class NoiseStream(Protocol):
    """A streaming matrix.

    Every implementation promises:

    - `next` is pure: the same fresh rows and state give the same bits. With `donate=True` the old state's
      buffers may be overwritten, which saves their copy; the old state is then spent.
    - The row of step t depends on the fresh rows of steps up to t only.
    - A step past the last one, and fresh rows or buffers of the wrong shape or type, raise `SettingError`.
    """

    @property
    def rounds(self) -> int:
        """Steps in an epoch, T."""

    @property
    def fresh_rows(self) -> int:
        """Independent Gaussian rows an epoch consumes, m: T for square C, more for trees."""

    @property
    def buffers(self) -> int:
        """Rows of the model's length that the state holds."""

    def rows_of(self, step: int) -> range:
        """Return which of the m fresh rows step `step` (0-based) consumes."""

    def init(self, dimension: int) -> StreamState:
        """Return the state before the first step, for rows of `dimension` coordinates."""

    def next(
        self, fresh: Float32, state: StreamState, *, donate: bool = False
    ) -> tuple[Float32, StreamState]:
        """Return the noise row (d,) float32 and the next state from fresh rows (k, d) float32."""

    def materialize_strategy(self) -> Float64:
        """Return the dense C, shape (m, T) float64, as deployed. For tests and small T."""

    def materialize_noising(self) -> Float64:
        """Return the dense C^-1 or A^-1 B, shape (T, m) float64, as deployed. For tests and small T."""


class BufferedStream(ABC):
    """What most streams of this package share: the first state, and around every step its checks and state.

    A stream adds what it is: `buffers`, `rows_of` and `_step`.
    """

    @property
    @abstractmethod
    def buffers(self) -> int:
        """Rows of the model's length that the state holds."""

    @abstractmethod
    def rows_of(self, step: int) -> range:
        """Return which of the fresh rows `step` consumes."""

    def init(self, dimension: int) -> StreamState:
        """Return `buffers` zero rows, which the operating system provides as they are filled."""
        return first_state(self.buffers, dimension)

    def next(
        self, fresh: Float32, state: StreamState, *, donate: bool = False
    ) -> tuple[Float32, StreamState]:
        """Return the noise row and the next state; see `NoiseStream.next`."""
        check_next(self, fresh, state)
        row = np.empty(fresh.shape[1], dtype=np.float32)
        updated = state.buffers if donate else copy_of(state.buffers, self._kept(state.step))
        self._step(state.step, fresh, state.buffers, updated, row)
        return row, StreamState(state.step + 1, updated)

    @abstractmethod
    def _step(self, step: int, fresh: Float32, buffers: Float32, updated: Float32, row: Float32) -> None:
        """Write the noise row of `step` into `row`, and what changes of the buffers into `updated`.

        `updated` holds the first `_kept(step)` rows of `buffers`, or is `buffers` itself: a block of
        coordinates is read before it is written.
        """

    def _kept(self, step: int) -> int:
        """Return how many of the first rows of the buffers a step may leave as they are: all by default."""
        return self.buffers


class SquareStream:
    """What streams with one fresh row a step share."""

    rounds: int

    @property
    def fresh_rows(self) -> int:
        """T: one fresh row a step."""
        return self.rounds

    def rows_of(self, step: int) -> range:
        """Return range(step, step + 1); raises `SettingError` for a step outside the epoch."""
        check_step(step, self.rounds)
        return range(step, step + 1)


def first_state(buffers: int, dimension: int) -> StreamState:
    """Return a state of `buffers` zero rows of `dimension` coordinates."""
    check_at_least("dimension", dimension, 1)
    return StreamState(0, np.zeros((buffers, dimension), dtype=np.float32))


def check_step(step: int, rounds: int) -> None:
    """Raise `SettingError` unless 0 <= step < rounds."""
    if not 0 <= step < rounds:
        raise SettingError(f"step is {step}; an epoch of this stream has steps 0 to {rounds - 1}.")


def check_next(stream: BufferedStream | NoiseStream, fresh: Float32, state: StreamState) -> None:
    """Raise `SettingError` unless `fresh` and `state` fit the stream and each other, and a step is left."""
    expected = (len(stream.rows_of(state.step)), state.buffers.shape[1])
    if fresh.dtype != np.float32 or fresh.shape != expected:
        raise SettingError(
            f"the fresh rows of step {state.step} are {fresh.dtype} of shape {fresh.shape}; "
            f"they must be float32 of shape {expected}."
        )
    if state.buffers.dtype != np.float32 or state.buffers.shape[0] != stream.buffers:
        raise SettingError(
            f"the state holds {state.buffers.shape[0]} rows of {state.buffers.dtype}; "
            f"this stream needs {stream.buffers} rows of float32."
        )


def copy_of(buffers: Float32, filled: int) -> Float32:
    """Return a copy of the first `filled` rows; the system provides the zeros of the others as they fill."""
    copied = np.zeros(buffers.shape, dtype=buffers.dtype)
    copied[:filled] = buffers[:filled]
    return copied


def blocks(dimension: int, rows: int) -> list[slice]:
    """Return slices that cover range(dimension) in blocks of which `rows` rows stay in the cache."""
    width = max(CACHED // rows, 1 << 9)
    return [slice(start, min(start + width, dimension)) for start in range(0, dimension, width)]


def feed(stream: NoiseStream, fresh: Float32) -> Float32:
    """Return all noise rows (T, d) of an epoch whose fresh rows (m, d) are given."""
    state = stream.init(fresh.shape[1])
    rows = np.empty((stream.rounds, fresh.shape[1]), dtype=np.float32)
    for step in range(stream.rounds):
        consumed = stream.rows_of(step)
        rows[step], state = stream.next(fresh[consumed.start : consumed.stop], state, donate=True)
    return rows

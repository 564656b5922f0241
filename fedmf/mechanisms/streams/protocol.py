"""Noise streams: from independent normal rows to the correlated rows that a server adds, round by round.

A stream is two functions: `init` makes the first state from the vector length, `next` takes the step's fresh row and
the state and returns what earlier fresh rows make of this step's noise, and the next state. The stream itself holds
only settings and can be shared; all that changes is in `StreamState`. With `own` of a step, the share of its fresh row,

    noise row t  =  mean_t + own_t Z_t,

has the law of row t of A^-1 B Z, which is C^-1 Z for square C, for rows Z of unit variance. The two parts are never
added where the sum would be rounded: `fedmf.mechanisms.noise` has their release.

A state and the rows are secrets: together with the released sums they give the exact sums.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from fedmf.checks import check_at_least
from fedmf.errors import SettingError
from fedmf.mechanisms.workload import Float64, Floats, Workload, apply
from fedmf.normals import REACH

CACHED = 1 << 15  # numbers of each scratch array: several of them fit in a second-level cache
ON_RELEASE = 4  # roundings of a mean as it is released: 1 / own, the product with it, the sum with the clients', and one spare

# A function that returns the fresh row of that number (0-based step), (d,) float64, the same each time.
Draw = Callable[[int], Float64]


@dataclass(frozen=True)
class StreamState:
    """Steps done in this epoch, 0 before the first, and the rows still needed, (buffers, d) float64. Secret, like the keys."""

    step: int
    buffers: Float64 = field(repr=False)


@dataclass(frozen=True, eq=False)
class NoiseStream(ABC):
    """A streaming matrix of `rounds` steps T, made from float32 `tables`; all that it costs is derived from these.

    Every implementation promises, and `check_stream` tests:

    - `next` is pure: the same fresh rows and state give the same bits. With `donate=True` the old state's
      buffers are overwritten, which saves their copy; the old state is then spent.
    - The mean of step t depends on the fresh rows of steps before t only.
    - A step past the last one, and a state with another number of rows, raise `SettingError`.
    - `sensitivity` and `errors` are those of the matrix that `next` applies, whatever the number of coordinates.

    The tables are copied, rounded to float32, and cannot be changed. Raises `SettingError` for tables that the stream
    cannot have.
    """

    rounds: int
    tables: Floats  # float32, once made
    takes: ClassVar[str]  # the tables that a stream of this class can have, in words

    def __post_init__(self) -> None:
        check_at_least("rounds", self.rounds, 1)
        tables = np.array(self.tables, dtype=np.float32)
        tables.flags.writeable = False
        object.__setattr__(self, "tables", tables)
        if not (tables.size and np.isfinite(tables).all() and self._fits()):
            raise SettingError(
                f"tables of shape {tables.shape} do not fit a {type(self).__name__} of {self.rounds} rounds; they must "
                f"be finite numbers, {self.takes}."
            )

    @abstractmethod
    def _fits(self) -> bool:
        """Return whether `tables` are what `takes` describes."""

    @property
    @abstractmethod
    def buffers(self) -> int:
        """Rows of the model's length that the state holds."""

    @abstractmethod
    def own(self, step: int) -> float:
        """Return the share of its own fresh row that the noise row of `step` has; not 0."""

    @property
    @abstractmethod
    def sensitivity(self) -> float:
        """The largest column 2-norm of C, for one participation an epoch."""

    @abstractmethod
    def errors(self, workload: Workload) -> tuple[Float64, Float64]:
        """Return for unit noise the row norms (T,) of the decoder B of `workload`, and what is left, (2, 2).

        That is the covariance of momentum and output after the last round.
        """

    @abstractmethod
    def rounding(self) -> float:
        """Return how far float64 moves the conditional means of an epoch: see `fedmf.accounting.floating_point`.

        With E the (T, d) array of what the step's standard deviation of Z multiplies, the 2-norm of E is at most this
        times the 2-norm of d normal numbers of variance 1.
        """

    @abstractmethod
    def _step(self, step: int, fresh: Float64, buffers: Float64, mean: Float64, draw: Draw) -> None:
        """Write the mean of `step` (d,) into `mean`, and update `buffers` in place, a block of coordinates at a time."""

    def init(self, dimension: int) -> StreamState:
        """Return the state before the first step, for rows of `dimension` coordinates: `buffers` zero rows."""
        check_at_least("dimension", dimension, 1)
        return StreamState(0, np.zeros((self.buffers, dimension)))

    def next(
        self, draw: Draw, state: StreamState, *, donate: bool = False
    ) -> tuple[Float64, Float64, StreamState]:
        """Return mean (d,) float64, the step's fresh row as `draw` gives it, and the next state."""
        if not 0 <= state.step < self.rounds:
            raise SettingError(
                f"step is {state.step}; an epoch of this stream has steps 0 to {self.rounds - 1}."
            )
        if state.buffers.dtype != np.float64 or len(state.buffers) != self.buffers:
            raise SettingError(
                f"the state holds {len(state.buffers)} rows of {state.buffers.dtype}; "
                f"this stream needs {self.buffers} rows of float64."
            )
        fresh, dimension = draw(state.step), state.buffers.shape[1]
        assert fresh.dtype == np.float64 and fresh.shape == (dimension,)  # noqa: PT018
        mean, buffers = np.empty(dimension), state.buffers if donate else state.buffers.copy()
        self._step(state.step, fresh, buffers, mean, draw)
        return mean, fresh, StreamState(state.step + 1, buffers)

    def materialize_noising(self) -> Float64:
        """Return the dense C^-1 or A^-1 B, (T, m) float64, as deployed; m = T but for trees. For tests and small T."""
        return feed(self, np.eye(self.rounds))

    def materialize_strategy(self) -> Float64:
        """Return the dense C, shape (m, T) float64, as deployed. For tests and small T."""
        return inverse(self.materialize_noising())


def inverse(lower: Float64) -> Float64:
    """Return the inverse of a lower triangular matrix, shape (T, T)."""
    from scipy.linalg import solve_triangular  # a run needs none of it

    return solve_triangular(lower, np.eye(len(lower)), lower=True)


def blocks(dimension: int, rows: int) -> list[slice]:
    """Return slices that cover range(dimension) in blocks of which `rows` rows stay in the cache."""
    width = max(CACHED // rows, 1 << 9)
    return [slice(start, min(start + width, dimension)) for start in range(0, dimension, width)]


def feed(stream: NoiseStream, fresh: Float64) -> Float64:
    """Return all noise rows (T, d) of an epoch whose fresh rows (T, d) are given."""
    state, rows = stream.init(fresh.shape[1]), np.empty(fresh.shape)
    for step in range(stream.rounds):
        mean, own_row, state = stream.next(fresh.__getitem__, state, donate=True)
        rows[step] = mean + stream.own(step) * own_row
    return rows


def check_stream(stream: NoiseStream) -> None:
    """Raise `AssertionError` unless a stream keeps the promises of `NoiseStream`: a check for tests, at small T.

    Its matrix L is what `next` makes of the identity, and its costs are compared with those of L: the accounted sensitivity
    is at least that of L^-1 (more for trees, whose nodes are more than T), and `rounding` at least what float64 shows here.
    """
    rounds = stream.rounds
    emitted = feed(stream, np.eye(rounds))
    assert not np.triu(emitted, 1).any()
    np.testing.assert_array_equal(np.diag(emitted), [stream.own(step) for step in range(rounds)])
    strategy = inverse(emitted)
    for dimension in (CACHED + 1, 3):  # more than a block of coordinates, and few
        fresh = np.random.default_rng(0).standard_normal((rounds, dimension))
        rows = feed(stream, fresh.copy())
        off = rows - emitted @ fresh
        np.testing.assert_allclose(off, 0, atol=1e-9 * np.abs(emitted).max())
        assert np.linalg.norm(strategy @ off) <= (dimension**0.5 + REACH) * stream.rounding()
    assert stream.rounding() > 0
    kept, state = fresh.copy(), stream.init(3)
    for step in range(rounds):
        before = state.buffers.copy()
        for _ in range(2):  # from the same state, which stays as it was; `feed` has each state taken over
            mean, own_row, after = stream.next(fresh.__getitem__, state)
            np.testing.assert_array_equal(mean + stream.own(step) * own_row, rows[step])
            np.testing.assert_array_equal(own_row, fresh[step])
            np.testing.assert_array_equal(state.buffers, before)
        state = after
    np.testing.assert_array_equal(fresh, kept)
    for wrong in (state, StreamState(0, np.zeros((stream.buffers + 1, 3)))):
        with np.testing.assert_raises(SettingError):
            stream.next(fresh.__getitem__, wrong)
    assert np.linalg.norm(strategy, axis=0).max() <= stream.sensitivity * (1 + 1e-9)
    norms, _ = stream.errors(Workload(rounds, 0.5))
    decoder = apply(Workload(rounds, 0.5), emitted)
    np.testing.assert_allclose(norms, np.linalg.norm(decoder, axis=1), rtol=1e-9)

"""Streams that are one small matrix a round: [sigma'; x] = table_t [sigma; z] with r buffer rows sigma.

Every square family with a short memory has this form: the optimum after truncation, buffered linear Toeplitz
matrices, banded and banded-plus-low-rank ones. z is the fresh row, x the noise row. Read in the other
direction, x -> z, the same numbers are the strategy matrix C:

    z_t = c_t x_t + lam_t . sigma_t,     sigma_{t+1} = F_t sigma_t + g_t x_t,

so column norms and the error of the stream as deployed follow exactly, in O(T r^2), from the float32 tables
themselves.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from fedmf.mechanisms import workload as workloads
from fedmf.mechanisms.arrays import Float32, Float64
from fedmf.mechanisms.stream import SquareStream, StreamState, blocks, check_next, first_state
from fedmf.mechanisms.workload import Workload


@dataclass(frozen=True)
class StrategyForm:
    """C as a recurrence from x to z: F (n, r, r), g and lam (n, r), c (n), float64; n is T, or 1 if
    time-invariant.
    """

    F: Float64
    g: Float64
    lam: Float64
    c: Float64


def tables_of(form: StrategyForm) -> Float32:
    """Return the tables (n, r + 1, r + 1), rounded to float32, that invert C."""
    n, r = form.g.shape
    inverse = 1 / form.c[:, None]
    tables = np.empty((n, r + 1, r + 1), dtype=np.float32)
    tables[:, :r, :r] = form.F - form.g[:, :, None] * (form.lam * inverse)[:, None, :]
    tables[:, :r, r] = form.g * inverse
    tables[:, r, :r] = -form.lam * inverse
    tables[:, r, r] = inverse[:, 0]
    return tables


def strategy_form(tables: Float32) -> StrategyForm:
    """Return C as it is deployed: in float64, from the rounded tables."""
    exact = tables.astype(np.float64)
    r = exact.shape[1] - 1
    c = 1 / exact[:, r, r]
    lam = -exact[:, r, :r] * c[:, None]
    g = exact[:, :r, r] * c[:, None]
    F = exact[:, :r, :r] + g[:, :, None] * (lam / c[:, None])[:, None, :]
    return StrategyForm(F, g, lam, c)


def column_norms(form: StrategyForm, rounds: int) -> Float64:
    """Return the 2-norms of the columns of C, shape (T,), by one backward recursion over the observability
    Gramian.
    """
    r = form.g.shape[1]
    last = len(form.c) - 1
    gramian = np.zeros((r, r))
    squares = np.empty(rounds)
    for step in range(rounds - 1, -1, -1):
        i = min(step, last)
        F, g, lam = form.F[i], form.g[i], form.lam[i]
        squares[step] = form.c[i] ** 2 + g @ gramian @ g
        gramian = F.T @ gramian @ F + np.outer(lam, lam)
    return np.sqrt(squares)


def with_unit_columns(form: StrategyForm) -> StrategyForm:
    """Return C with every column divided by its norm, which keeps the recurrence: only g and c change."""
    norms = column_norms(form, len(form.c))
    return StrategyForm(form.F, form.g / norms[:, None], form.lam, form.c / norms)


def output_variances(steps: Iterable[tuple[Float64, Float64]], workload: Workload) -> Float64:
    """Return Var((A x)_t) for unit noise, shape (T,): the squared row norms of B.

    Each step gives the maps (r + 1, r) of the buffers and (r + 1, k) of the fresh rows onto [sigma'; x]. The
    covariance of (sigma, momentum, output) goes forward in time: sums of squares only, exact up to rounding.
    """
    eta = workloads.rates(workload)
    variances = np.empty(workload.rounds)
    covariance = None
    for step, (state_map, input_map) in enumerate(steps):
        transition, inputs = _with_output(state_map, input_map, workload.momentum, float(eta[step]))
        if covariance is None:
            covariance = np.zeros(transition.shape)
        covariance = transition @ covariance @ transition.T + inputs @ inputs.T
        variances[step] = covariance[-1, -1]
    return variances


def _with_output(state_map: Float64, input_map: Float64, beta: float, eta: float) -> tuple[Float64, Float64]:
    """Append momentum and output, m' = beta m + x and y' = y + eta m', to one step."""
    r = state_map.shape[1]
    transition = np.zeros((r + 2, r + 2))
    transition[: r + 1, :r] = state_map
    transition[r, r] = beta
    transition[r + 1] = eta * transition[r]
    transition[r + 1, r + 1] = 1
    return transition, np.vstack([input_map, eta * input_map[r:]])


@dataclass(frozen=True)
class RecurrentStream(SquareStream):
    """A noise stream of `rounds` steps from its tables: (T, r + 1, r + 1) float32, or (1, r + 1, r + 1) for
    all steps.

    A step costs one product of an (r + 1) x (r + 1) matrix and r + 1 rows; the state is r rows.
    """

    rounds: int
    tables: Float32

    @property
    def buffers(self) -> int:
        """r."""
        return int(self.tables.shape[1]) - 1

    def table(self, step: int) -> Float32:
        """Return the matrix of step `step`."""
        table: Float32 = self.tables[min(step, len(self.tables) - 1)]
        return table

    def init(self, dimension: int) -> StreamState:
        """Return r zero rows."""
        return first_state(self.buffers, dimension)

    def next(
        self, fresh: Float32, state: StreamState, *, donate: bool = False
    ) -> tuple[Float32, StreamState]:
        """Return the noise row and the next state; see `NoiseStream.next`."""
        check_next(self, fresh, state)
        r, dimension = state.buffers.shape
        table = self.table(state.step)
        updated = state.buffers if donate else np.empty_like(state.buffers)
        row = np.empty(dimension, dtype=np.float32)
        for block in blocks(dimension):
            product = table @ np.concatenate([state.buffers[:, block], fresh[:, block]])
            updated[:, block] = product[:r]
            row[block] = product[r]
        return row, StreamState(state.step + 1, updated)

    def steps(self) -> Iterator[tuple[Float64, Float64]]:
        """Yield each step's maps of buffers and fresh row, in float64, for `output_variances`."""
        for step in range(self.rounds):
            table = self.table(step).astype(np.float64)
            yield table[:, :-1], table[:, -1:]

    def materialize_strategy(self) -> Float64:
        """Return the dense C of the float32 tables, shape (T, T)."""
        form = strategy_form(self.tables)
        n = self.rounds
        C, sigma = np.empty((n, n)), np.zeros((self.buffers, n))
        for step in range(n):
            i = min(step, len(form.c) - 1)
            C[step] = form.lam[i] @ sigma
            C[step, step] += form.c[i]
            sigma = form.F[i] @ sigma
            sigma[:, step] += form.g[i]
        return C

    def materialize_noising(self) -> Float64:
        """Return the dense C^-1 of the float32 tables, shape (T, T)."""
        n = self.rounds
        noising, sigma = np.empty((n, n)), np.zeros((self.buffers, n))
        for step, (state_map, input_map) in enumerate(self.steps()):
            product = state_map @ sigma
            product[:, step] += input_map[:, 0]
            sigma, noising[step] = product[:-1], product[-1]
        return noising

"""Streams that are one small matrix a round: [sigma'; x] = table_t [sigma; z] with r buffer rows sigma.

Every square family with a short memory has this form: the optimum after truncation, buffered linear Toeplitz
matrices, banded and banded-plus-low-rank ones. z is the fresh row, x the noise row. Read in the other
direction, x -> z, the same numbers are the strategy matrix C:

    z_t = c_t x_t + lam_t . sigma_t,     sigma_{t+1} = F_t sigma_t + g_t x_t,

so column norms and the error of the stream as deployed follow exactly, in O(T r^2), from the float32 tables
themselves.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedmf.mechanisms import workload as workloads
from fedmf.mechanisms.streams.protocol import ON_RELEASE, Draw, NoiseStream, blocks
from fedmf.mechanisms.workload import Float32, Float64, Floats, Workload
from fedmf.normals import UNIT

CHUNK = 1024  # steps whose matrices are prepared at once


@dataclass(frozen=True)
class StrategyForm:
    """C as a recurrence from x to z: F (n, r, r), g and lam (n, r), c (n), float64.

    n is T, or 1 if time-invariant.
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


def strategy_form(tables: Floats) -> StrategyForm:
    """Return C as it is deployed: in float64, from the rounded tables."""
    exact = tables.astype(np.float64)
    r = exact.shape[1] - 1
    c = 1 / exact[:, r, r]
    lam = -exact[:, r, :r] * c[:, None]
    g = exact[:, :r, r] * c[:, None]
    F = exact[:, :r, :r] + g[:, :, None] * (lam / c[:, None])[:, None, :]
    return StrategyForm(F, g, lam, c)


def column_norms(form: StrategyForm, rounds: int) -> Float64:
    """Return the 2-norms of the columns of C, shape (T,).

    The response to x_t is c_t now and, by lam, whatever g_t leaves in the state: square norm
    c_t^2 + g_t^T W_{t+1} g_t with the observability Gramian W_t = lam_t lam_t^T + F_t^T W_{t+1} F_t.
    """
    seen = form.lam[:, :, None] * form.lam[:, None, :]
    transposed = np.ascontiguousarray(form.F.swapaxes(1, 2))
    last = len(form.c) - 1
    gramian = np.zeros_like(seen[0])
    squares = np.empty(rounds)
    for step in range(rounds - 1, -1, -1):
        i = min(step, last)  # the one matrix of a time-invariant C, or that of the step
        squares[step] = form.c[i] ** 2 + form.g[i] @ gramian @ form.g[i]
        gramian = transposed[i] @ gramian @ form.F[i] + seen[i]  # W_t
    return np.sqrt(squares)


def with_unit_columns(form: StrategyForm) -> StrategyForm:
    """Return C with every column divided by its norm, which keeps the recurrence: only g and c change."""
    norms = column_norms(form, len(form.c))
    return StrategyForm(form.F, form.g / norms[:, None], form.lam, form.c / norms)


def output_errors(
    buffers: int, step_maps: Callable[[range], tuple[Float64, Float64]], workload: Workload
) -> tuple[Float64, Float64]:
    """Return the row norms of B, (T,), the standard deviations of (A x)_t for unit noise; and what is left.

    What is left is the covariance (2, 2) of momentum and output after the last round. The covariance of (sigma, momentum,
    output) goes forward in time: sums of squares only, exact up to rounding. `step_maps` of n steps gives the maps of r =
    `buffers` rows sigma onto [sigma'; x], (n, r + 1, r), and the covariance that fresh rows of unit variance add to it,
    (n, r + 1, r + 1).
    """
    r, rates = buffers, workloads.rates(workload)
    variances = np.empty(workload.rounds)
    covariance = np.zeros((r + 2, r + 2))
    for start in range(0, workload.rounds, CHUNK):
        steps = range(start, min(start + CHUNK, workload.rounds))
        state_maps, added = step_maps(steps)
        # Momentum and output behind the buffers: m' = beta m + x and y' = y + eta m'.
        transition = np.zeros((len(steps), r + 2, r + 2))
        transition[:, : r + 1, :r] = state_maps
        transition[:, r, r] = workload.momentum
        lift = np.zeros((len(steps), r + 2, r + 1))
        lift[:, : r + 1] = np.eye(r + 1)
        lift[:, -1, -1] = rates[steps.start : steps.stop]
        transition = lift @ transition[:, : r + 1]
        transition[:, -1, -1] += 1
        added = lift @ added @ lift.swapaxes(1, 2)
        for step, number in enumerate(steps):
            covariance = transition[step] @ covariance @ transition[step].T + added[step]
            variances[number] = covariance[-1, -1]  # of y_t = (A x)_t
    return np.sqrt(variances), covariance[-2:, -2:].copy()


@dataclass(frozen=True, eq=False)
class RecurrentStream(NoiseStream):
    """A noise stream from its tables: (T, r + 1, r + 1) float32, or (1, r + 1, r + 1) for all steps.

    A step costs one product of an (r + 1) x (r + 1) matrix and r + 1 rows; the state is r rows.
    """

    takes = "(T or 1, r + 1, r + 1), no last entry of a matrix 0"

    def _fits(self) -> bool:
        is_square = self.tables.ndim == 3 and self.tables.shape[1] == self.tables.shape[2]
        return is_square and len(self.tables) in (1, self.rounds) and bool(self.tables[:, -1, -1].all())

    @property
    def buffers(self) -> int:
        return int(self.tables.shape[1]) - 1

    def table(self, step: int) -> Float64:
        return np.asarray(self.tables[min(step, len(self.tables) - 1)], np.float64)

    def own(self, step: int) -> float:
        return float(self.table(step)[-1, -1])

    @cached_property
    def sensitivity(self) -> float:
        return float(column_norms(strategy_form(self.tables), self.rounds).max())

    def errors(self, workload: Workload) -> tuple[Float64, Float64]:
        return output_errors(self.buffers, self._step_maps, workload)

    def _step(self, step: int, fresh: Float64, buffers: Float64, mean: Float64, draw: Draw) -> None:
        table = self.table(step)
        # The mean's row leaves out the fresh row's own share, which the release adds.
        table_of_state, row_of_mean = np.ascontiguousarray(table[:-1]), table[-1, :-1]
        parts = blocks(len(mean), len(table))
        scratch = np.empty((len(table), parts[0].stop))
        for block in parts:
            rows = scratch[:, : block.stop - block.start]
            rows[:-1], rows[-1] = buffers[:, block], fresh[block]
            np.matmul(table_of_state, rows, out=buffers[:, block])
            np.matmul(row_of_mean, rows[:-1], out=mean[block])

    def rounding(self) -> float:
        """Return the bound; see `NoiseStream.rounding`.

        A step rounds a buffer to within (r + 2) u (|table| |state|), whose entries are normal numbers of the standard
        deviations that go forward in time. Of an error e in the state the later rounds see (e^T W e)^(1/2), W the
        observability Gramian of `column_norms`: at most the sum of |e_i| W_ii^(1/2), backward in time.
        """
        form, r = strategy_form(self.tables), self.buffers
        last, spreads = len(form.c) - 1, np.ones((self.rounds, r + 1))
        covariance, gramian, total = np.zeros((r, r)), np.zeros((r, r)), 0.0
        for step in range(self.rounds):
            spreads[step, :r] = np.sqrt(np.diag(covariance))
            table = self.table(step)
            covariance = table[:r, :r] @ covariance @ table[:r, :r].T + np.outer(table[:r, r], table[:r, r])
        for step in range(self.rounds - 1, -1, -1):
            i, sizes = min(step, last), np.abs(self.table(step)) @ spreads[step]
            total += self.sensitivity * float(sizes[r]) + float(np.sqrt(np.diag(gramian)) @ sizes[:r])
            gramian = form.F[i].T @ gramian @ form.F[i] + np.outer(form.lam[i], form.lam[i])
        return (r + 1 + ON_RELEASE) * UNIT * total

    def _step_maps(self, steps: range) -> tuple[Float64, Float64]:
        """Return the columns of the tables, the last as the covariance it causes; see `output_errors`."""
        tables = self.tables[np.minimum(steps, len(self.tables) - 1)].astype(np.float64)
        return tables[:, :, :-1], tables[:, :, -1:] * tables[:, None, :, -1]

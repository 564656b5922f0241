"""The optimal factorization, and the papers' own way to it.

`optimal` is found in O(T) a step and pole and streamed with the fewest buffers that reach it. Prefix sums, momentum and any
positive learning rates. Denisov et al. (NeurIPS 2022) Theorem 3.2 and section 4, by `optimum.fixed_point`; the exact
recurrence is reduced by `optimum.reduction`. After that columns are made unit and the tables rounded to float32; the
sensitivity and loss reported are those of the rounded tables.

`optimal_dense` takes one eigendecomposition a step, for any lower triangular A: the fixed point of
v <- diag (V^1/2 W V^1/2)^1/2 of the same theorem, with C^T C = X(v) and W = A^T A, to which later rounds of the run are
added where the workload has any. An oracle for `optimal` on small T. Not an oracle for learning rates that decay to nothing:
there eigendecompositions in double precision lose the small end of the spectrum (11 % wrong at T = 256, cosine to 0).
"""

import logging
from bisect import bisect_left
from functools import cache

import numpy as np

from fedmf.mechanisms import workload as workloads
from fedmf.mechanisms.factorization import Factorization
from fedmf.mechanisms.families import Family, chosen
from fedmf.mechanisms.optimum import fixed_point
from fedmf.mechanisms.optimum.reduction import pole_process, truncate
from fedmf.mechanisms.streams.dense import DenseStream
from fedmf.mechanisms.streams.protocol import inverse
from fedmf.mechanisms.streams.recurrence import RecurrentStream, StrategyForm, tables_of, with_unit_columns
from fedmf.mechanisms.workload import Float64, Workload

_log = logging.getLogger(__name__)

EXCESS = 1e-4  # of the deployed loss over the certified lower bound, where `buffers` is not given
MOST_BUFFERS = 12


def fit(
    workload: Workload, buffers: int | None = None, *, solution: fixed_point.Solution | None = None
) -> RecurrentStream:
    """Return the stream with `buffers` buffers, or the fewest within 1e-4 of the lower bound on the loss.

    `solution` is the optimum of `workload` where it is known already. Raises `SettingError` for fewer than 1 buffer, more
    than rounds, or more than 64.
    """
    most = MOST_BUFFERS
    if buffers is not None:
        most = chosen("buffers", buffers, MOST_BUFFERS, most=min(workload.rounds, 64))
    solution = solution or fixed_point.certified(workload)
    reduced = truncate(pole_process(solution, workload), most)
    return _fewest(reduced, workload, solution.lower) if buffers is None else _leading(reduced, most)


def _fewest(reduced: StrategyForm, workload: Workload, lower: float) -> RecurrentStream:
    """Return the stream with the fewest buffers whose loss is within EXCESS of the bound: it falls with their number."""

    @cache
    def found(buffers: int) -> tuple[RecurrentStream, float]:
        stream = _leading(reduced, buffers)
        return stream, (Factorization("optimal", workload, stream).root_loss / lower) ** 2 - 1

    buffers = 1 + bisect_left(range(1, MOST_BUFFERS), True, key=lambda number: found(number)[1] <= EXCESS)
    stream, excess = found(buffers)
    if excess > EXCESS:
        _log.warning(
            "%d buffers leave the loss %.2e above its lower bound; %.0e was wanted. The mechanism is valid.",
            MOST_BUFFERS,
            excess,
            EXCESS,
        )
    return stream


def _leading(reduced: StrategyForm, r: int) -> RecurrentStream:
    """Return the stream of the leading r buffers, with unit columns before rounding."""
    leading = StrategyForm(reduced.F[:, :r, :r], reduced.g[:, :r], reduced.lam[:, :r], reduced.c)
    return RecurrentStream(len(leading.c), tables_of(with_unit_columns(leading)))


def solve_densely(
    gram: Float64, gap: float = 1e-9, max_iterations: int = 500
) -> tuple[Float64, tuple[float, float]]:
    """Return lower triangular C (T, T) with unit columns, of least loss tr(`gram` (C^T C)^-1), and bounds on the root loss.

    `gram` (T, T) is the Gram matrix of all rows that count. To relative `gap` on the loss, or as near as `max_iterations`
    steps come. The bounds, the lower one first, are those of the optimum.
    """
    v = np.sqrt(np.diag(gram))  # any positive start will do: the column norms of all rows
    for _ in range(max_iterations):
        # X(v) = V^-1/2 (V^1/2 W V^1/2)^1/2 V^-1/2 for W = `gram`.
        roots = np.sqrt(v)[:, None] * np.sqrt(v)
        values, vectors = np.linalg.eigh(gram * roots)
        X = (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T / roots
        diagonal = np.diag(X)  # 1 at the fixed point
        trace = float(v @ diagonal)  # tr(V X), the loss
        # The duality bounds of `optimum.fixed_point`, on the loss.
        lower, upper = trace**2 / v.sum(), diagonal.max() * trace
        if upper <= lower * (1 + gap):
            break
        v = v * diagonal
    # Unit columns, whatever v is: C^T C = X with its diagonal divided out, C lower triangular.
    flipped = np.linalg.cholesky((X / np.sqrt(np.outer(diagonal, diagonal)))[::-1, ::-1])
    return np.asarray(flipped.T[::-1, ::-1], dtype=np.float64), (float(np.sqrt(lower)), float(np.sqrt(upper)))


def fit_dense(workload: Workload) -> DenseStream:
    """Return the stream of the dense C^-1."""
    C, _ = solve_densely(workloads.gram(workload))
    return DenseStream(workload.rounds, np.tril(inverse(C)))


OPTIMAL = Family("optimal", fit, settings=("buffers",), from_optimum=True)
OPTIMAL_DENSE = Family("optimal_dense", fit_dense, most_rounds=512)  # a few seconds of eigendecompositions

"""Three ways to the optimal factorization, each recorded evaluation by evaluation with the gap that it has certified.

All look for the v > 0 at which the diagonal D of X(v) is 1, Denisov et al. (NeurIPS 2022), Theorem 3.2. Their fixed point takes
v <- v D. L-BFGS minimises the negative dual, in log v:

    f(v) = sum v - 2 sum v D,      df / d log v_i = v_i (1 - D_i).

Ours is `fixed_point.solve`. D costs an eigendecomposition of T x T, or O(T) a pole.
"""

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from scipy.optimize import minimize

from fedmf.mechanisms import workload as workloads
from fedmf.mechanisms.arrays import Float64
from fedmf.mechanisms.optimum import fixed_point, smoother
from fedmf.mechanisms.optimum.poles import poles, spectral_interval
from fedmf.mechanisms.workload import Workload

Diagonal = Callable[[Float64], Float64]
"""v (T,) -> the diagonal D of X(v), (T,)."""

Solver = Callable[[Diagonal, Float64], None]
"""Evaluates the diagonal from a start on until what it is given ends it, or it can go no further."""

MEMORY = 10  # pairs that L-BFGS keeps, SciPy's default
SHORT = 1.0  # CPU seconds below which a solver runs three times: a hiccup of the machine may be longer than all of them
GAPS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)  # of the loss, at which `ours` is asked to end


@dataclass(frozen=True)
class Point:
    """Where a solver is: evaluations of D, CPU seconds, and the least certified gap and root loss so far."""

    evaluations: int
    seconds: float
    gap: float
    root_loss: float


class _EndedError(Exception):
    """The gap asked for, or a limit, is reached."""


def recorded(
    solver: Solver, diagonal: Diagonal, start: Float64, *, gap: float, seconds: float
) -> list[Point]:
    """Return the points of a solver from `start` (T,) until its gap is at most `gap`, or `seconds` are over."""
    diagonal(start)  # what is compiled at its first call is not timed

    def once() -> list[Point]:
        points: list[Point] = []
        began = time.process_time()

        def record(v: Float64) -> Float64:
            D = diagonal(v)
            certified = certificate(v, D)
            best = min([certified, *((point.gap, point.root_loss) for point in points[-1:])])
            points.append(Point(len(points) + 1, time.process_time() - began, *best))
            if points[-1].gap <= gap or points[-1].seconds > seconds:
                raise _EndedError
            return D

        with contextlib.suppress(_EndedError):
            solver(record, start)
        return points

    return quickest(once)


def quickest(timed: Callable[[], list[Point]]) -> list[Point]:
    """Return the points of what takes `SHORT` or longer as they are, else those of the quickest of three runs."""
    first = timed()
    more = [timed(), timed()] if first[-1].seconds < SHORT else []
    return min((first, *more), key=lambda points: points[-1].seconds)


def certificate(v: Float64, D: Float64) -> tuple[float, float]:
    """Return the relative gap between the bounds on the optimal loss that v proves, and the root of the upper one."""
    trace = float((v * D).sum())
    lower, upper = trace**2 / float(v.sum()), float(D.max()) * trace
    return upper / lower - 1, float(np.sqrt(upper))


def column_norms(workload: Workload) -> Float64:
    """Return the column norms of all rows that count, (T,), where every solver begins."""
    return np.asarray(np.sqrt(np.diag(workloads.gram(workload))))


def dense(workload: Workload) -> Diagonal:
    """Return the diagonal by an eigendecomposition of V^1/2 W V^1/2."""
    gram = workloads.gram(workload)

    def diagonal(v: Float64) -> Float64:
        root = np.sqrt(v)
        values, vectors = np.linalg.eigh(gram * np.outer(root, root))
        return np.asarray(vectors**2 @ np.sqrt(np.maximum(values, 0)) / v)

    return diagonal


def linear(workload: Workload) -> Diagonal:
    """Return the diagonal in O(T) a pole."""
    return lambda v: smoother.diagonal(
        v, workload, poles(spectral_interval(v, workload), fixed_point.QUADRATURE)
    )


def plain(diagonal: Diagonal, start: Float64) -> None:
    """Take the papers' fixed point, without end."""
    v = start
    while True:
        v = v * diagonal(v)


def lbfgs(diagonal: Diagonal, start: Float64) -> None:
    """Minimise the negative dual in log v by SciPy's L-BFGS, until its line search finds nothing lower.

    Where it finds nothing it begins again from there, with no memory, until that does not move it either.
    """
    options: Any = {"maxcor": MEMORY, "ftol": 0.0, "gtol": 0.0, "maxiter": 10**9, "maxfun": 10**9}
    point, moved = np.log(start), True
    while moved:
        found = minimize(
            partial(negative_dual, diagonal), point, jac=True, method="L-BFGS-B", options=options
        )
        point, moved = found.x, not np.array_equal(found.x, point)


def negative_dual(diagonal: Diagonal, log_v: Float64) -> tuple[float, Float64]:
    """Return f and its gradient in log v; -f is a lower bound on the optimal loss."""
    v = np.exp(log_v)
    D = diagonal(v)
    return float(v.sum() - 2 * (v * D).sum()), v * (1 - D)


def ours(workload: Workload, start: Float64 | None, *, gap: float) -> list[Point]:
    """Return the points of `fixed_point.solve` at each of `GAPS` down to `gap`: each a run of its own."""
    fixed_point.solve(workload, gap=GAPS[0], start=start)  # what is compiled at its first call is not timed

    def once(wanted: float) -> list[Point]:
        began = time.process_time()
        solution = fixed_point.solve(workload, gap=wanted, start=start)
        taken = time.process_time() - began
        return [Point(solution.iterations, taken, (solution.upper / solution.lower) ** 2 - 1, solution.upper)]

    return [quickest(partial(once, wanted))[-1] for wanted in GAPS if wanted >= gap]

"""The optimal factorization of a workload: a fixed point for a vector v, with a certificate.

Denisov et al. (NeurIPS 2022), Theorem 3.2: the optimum of min tr(W (C^T C)^-1) over C with unit columns is
C^T C = X with

    X(v) = V^-1/2 (V^1/2 W V^1/2)^1/2 V^-1/2,     diag X(v) = 1,     V = diag(v), v > 0,

where W = A^T A for an epoch alone, when the loss is ||A C^-1||_F^2, and has the later rounds of the run added where
the workload has any. X(v) = sum_k w_k (P + s_k V)^-1 with P = W^-1, so its diagonal D costs O(T) a pole
(`smoother`); the poles grow with the log of the condition, and steps are counted, not bounded. For EVERY positive v,

    (sum v D)^2 / sum v  <=  optimal loss  <=  max(D) sum v D:

the left by duality, rescaled to be tight in the length of v; the right because C with C^T C = X(v) has
largest squared column norm max(D) and loss tr(W X^-1) = tr(V X) = sum v D. D is computed in float64 from a sum of
poles: the error that Zolotarev's bound allows these poles is charged to each side, and `ROUNDING` and `PER_ROUND` for
rounding. That Anderson acceleration on log v reaches the fixed point is observed, not proved, and so is the number
of steps. docs/theory.md, section 6, has the derivation.
"""

import logging
import time
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from fedmf.mechanisms.optimum.poles import ROUNDING, Interval, poles, spectral_interval
from fedmf.mechanisms.optimum.smoother import diagonal
from fedmf.mechanisms.workload import Float64, Workload, rates

_log = logging.getLogger(__name__)

GAP = 1e-6  # on the loss
QUADRATURE = 1e-10  # relative error of the pole expansion, a theorem in exact arithmetic
# Relative rounding of the diagonal, by round of the epoch: rounds behind it add none, their covariance is given.
# For one state the recursion takes three roundings a round, 1.5 eps; errors seen are below eps T / 25 from T = 64 on.
PER_ROUND = 8 * float(np.finfo(np.float64).eps)
MEMORY = 8
DAMPING = 2.5  # any below 4 is locally stable: the Jacobian of v -> v D has its spectrum in [1/2, 1)
LARGEST_STEP = 3.0  # in log v
MAX_RESTARTS = 20


@dataclass(frozen=True)
class Solution:
    """The best v found (T,), the spectral interval of its X, and bounds on the root loss of the optimum.

    `iterations` were made to find it, which took `seconds` of CPU time in `certified_run`.
    """

    v: Float64
    interval: Interval
    lower: float
    upper: float
    iterations: int = 0
    seconds: float = 0.0

    @property
    def gap(self) -> float:
        """Upper bound over lower bound less 1, on the LOSS."""
        return (self.upper / self.lower) ** 2 - 1


def solve(
    workload: Workload, gap: float = GAP, max_iterations: int = 3000, *, start: Float64 | None = None
) -> Solution:
    """Return the optimum of `workload` with upper / lower - 1 <= `gap` on the LOSS where that is reached.

    The iteration begins at `start` (T,) > 0, such as the v of a like workload; None: at a profile that suits prefix
    sums. A solution that stops above `gap` is still a valid mechanism with valid bounds: the caller decides. Raises
    `FloatingPointError` if no iterate is finite.
    """
    assert gap >= 10 * QUADRATURE, "the poles resolve no smaller gap"
    v = start
    if v is None:  # roughly that of the optimum
        v = rates(workload) ** -2.0 / np.sqrt(np.arange(workload.rounds, 0, -1) + workload.later.c)
    best: Solution | None = None
    history: list[tuple[Float64, Float64]] = []
    restarts = 0
    for iteration in range(1, max_iterations + 1):  # noqa: B007
        current, D = _evaluate(v, workload)
        # A step that left the finite numbers, or lost half of the lower bound: again from the best v, afresh.
        if not np.isfinite(current.gap) or (history and best and 2 * current.lower**2 < best.lower**2):
            restarts += 1
            if best is None or restarts > MAX_RESTARTS:
                break
            history, v = [], best.v
            continue
        if best is None or current.gap < best.gap:
            best = current
        if current.gap <= gap:
            break
        # The next v, from the last MEMORY pairs (log v, log D); at the fixed point log D is 0.
        history = [*history[-MEMORY:], (np.log(current.v), np.log(D))]
        v = np.exp(history[-1][0] + _step(history))
    if best is None:
        raise FloatingPointError("the fixed point iteration met no finite iterate")
    return replace(best, iterations=iteration)


def _evaluate(v: Float64, workload: Workload) -> tuple[Solution, Float64]:
    """Return v, rescaled so that sum v D = sum v, with its certificate; and D = diag X(v)."""
    interval = spectral_interval(v, workload)
    D = diagonal(v, workload, poles(interval, QUADRATURE))
    # X(s v) = X(v) / sqrt(s), so this s makes sum v D = sum v, and the spectrum is that over s.
    scale = float(((v * D).sum() / v.sum()) ** 2)
    v, D = v * scale, D / np.sqrt(scale)
    trace = float((v * D).sum())  # tr(V X), the loss of C with C^T C = X
    # By how much the computed diagonal may be off, relatively: it enters either bound twice.
    error = QUADRATURE + ROUNDING + PER_ROUND * workload.rounds
    lower, upper = trace**2 / float(v.sum()) / (1 + error) ** 2, float(D.max()) * trace / (1 - error) ** 2
    found = Interval(interval.low / scale, interval.high / scale)
    return Solution(v, found, float(np.sqrt(lower)), float(np.sqrt(upper))), D


def _step(history: list[tuple[Float64, Float64]]) -> Float64:
    """Return Anderson's step in log v from pairs (log v, log D): damped, minus what past moves predict."""
    residual = history[-1][1]  # log D: the step of the plain iteration v <- v D
    step = residual
    if len(history) > 1:
        moves = np.diff([point for point, _ in history], axis=0)  # of log v, one row a past step
        changes = np.diff([value for _, value in history], axis=0)  # of the residual with them
        mix = np.linalg.lstsq(changes.T, residual, rcond=1e-12)[0]  # the past moves that explain it best
        step = DAMPING * (residual - mix @ changes) - mix @ moves
    return step * min(1.0, LARGEST_STEP / max(float(np.abs(step).max()), 1e-300))


def certified(workload: Workload) -> Solution:
    """Return the optimum of an epoch alone; see `certified_run`."""
    return certified_run((workload,))[0]


@lru_cache(maxsize=64)
def certified_run(workloads: tuple[Workload, ...]) -> tuple[Solution, ...]:
    """Return `solve` of every epoch of a run, from the last to the first: each starts at the v of the one after it.

    The last results are kept in memory. Logs a warning where the gap asked for was not reached.
    """
    solutions: list[Solution] = []
    for workload in reversed(workloads):
        begun = time.thread_time()
        solution = solve(workload, start=solutions[-1].v if solutions else None)
        solutions.append(replace(solution, seconds=time.thread_time() - begun))
        if (gap := solution.gap) > GAP:
            _log.warning("the solver stopped at a relative gap of %.3e on the loss instead of %.0e", gap, GAP)
    return tuple(solutions[::-1])

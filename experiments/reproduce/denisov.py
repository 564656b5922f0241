"""Denisov, McMahan, Rush, Smith, Thakurta (NeurIPS 2022): Table 2, and Figure 4.

Table 2 is the root loss of prefix-sum factorizations. Their "Honaker" is the online estimator. Their optimal entry at 4096
rounds, 217.3, was not converged. Their efficient column is the banded-plus-low-rank approximation of Appendix H, whose fit is not
unique: ours must only be no worse.

Figure 4 is ways to the optimum, by evaluations and time: their fixed point and L-BFGS, each with the eigendecompositions of the
paper and with diagonals in O(T), and the solver of this project, on prefix sums, momentum and an epoch of a whole run; each until
it has certified the loss to one in a million. All look for the v > 0 at which the diagonal D of X(v) is 1, their Theorem 3.2. The
fixed point takes v <- v D. L-BFGS minimises the negative dual, in log v:

    f(v) = sum v - 2 sum v D,      df / d log v_i = v_i (1 - D_i).

Ours is `fixed_point.solve`. D costs an eigendecomposition of T x T, or O(T) a pole.
"""

import contextlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize

from experiments.pages.figures import COLOURS, DASHES
from experiments.reproduce import Reproduction, Table, Value
from experiments.reproduce.plots import figure, legend_below
from experiments.reproduce.tools import computed, progress, where
from fedmf.mechanisms import (
    design,
    design_run,
    momentum,
    of_run,
    prefix_sum,
    restarted,
    run_lower_bound,
    workload as workloads,
)
from fedmf.mechanisms.optimum import fixed_point, smoother
from fedmf.mechanisms.optimum.poles import poles, spectral_interval
from fedmf.mechanisms.workload import Float64, Workload

PUBLISHED = {  # rounds: Honaker, optimal, efficient
    256: (74.4, 40.4, 40.4),
    512: (116.5, 62.0, 62.2),
    1024: (180.8, 94.6, 95.5),
    2048: (278.3, 143.6, 145.8),
    4096: (425.6, 217.3, 224.0),
}
BANDS_AND_RANK = {256: 4, 512: 4, 1024: 5, 2048: 5, 4096: 6}
SHAPES = ((4, 4), (5, 4), (5, 5), (6, 5), (6, 6))  # bands and rank of the further fits
EPOCHS = 8
PRINTED = 0.05  # half a unit of the last printed digit
COLUMNS = (
    "rounds",
    "Honaker, published",
    "Honaker online",
    "optimal, published",
    "certified from",
    "certified to",
    "streamed",
    "efficient, published",
    "banded low rank",
    "published optimum",
)

Diagonal = Callable[[Float64], Float64]  # v (T,) -> the diagonal D of X(v), (T,)
Solver = Callable[
    [Diagonal, Float64], None
]  # from a start on, until the diagonal ends it or it can go no further

GAP = 1e-6
GAPS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, GAP)  # of the loss, at which `ours` is asked to end
SHORT = 1.0  # CPU seconds below which a solver runs three times: a hiccup of the machine may be longer than all of them
BETA = 0.9  # momentum
ACROSS = 4  # problems side by side in the figure
OURS = "ours, O(T)"

SIZES: dict[str, tuple[Any, ...]] = {
    # lengths of prefix sums, momentum and whole runs for all solvers, of those for ours alone; CPU seconds of each solver
    "small": ((256, 1024), (256,), (256,), (4096, 16384, 65536), 60.0),
    "laptop": ((256, 512, 1024, 2048), (256, 1024), (256, 1024), (4096, 16384, 65536, 262144), 1800.0),
}
REACHED = ("evaluations", "CPU seconds", "gap reached", "root loss")
SOLVERS = ("problem", "rounds", "solver", *REACHED, "time over ours")


class Point(NamedTuple):
    """Where a solver is: evaluations of D, CPU seconds, and the least certified gap and root loss so far."""

    evaluations: int
    seconds: float
    gap: float
    root_loss: float


def denisov_table2(path: Path, size: str) -> Reproduction:
    """Return the tables, and draw the first.

    The worst relative error is over the Honaker entries and the optimal ones that had converged.
    """
    lengths = list(PUBLISHED)
    losses = computed("root loss", COLUMNS, row, lengths)
    shapes = computed(
        "bands and rank", ("rounds", "efficient, published", *map(str, SHAPES)), by_shape, lengths
    )
    columns = ("rounds an epoch", "Honaker online", "optimum of one epoch", "whole run", "lower bound", "one epoch over whole run")  # fmt: skip
    runs = computed("a run", columns, on_a_run, lengths)
    rows: Any = losses.rows
    draw_table2(path, rows)
    errors = [abs(item[2] / item[1] - 1) for item in rows]
    errors += [abs(item[5] / item[3] - 1) for item in rows if item[-1] == "converged"]
    return (losses, shapes, runs), max(errors)


def row(rounds: int) -> tuple[int, float, float, float, float, float, float, float, float, str]:
    """Return one line of the table, see `COLUMNS`."""
    honaker, optimal, efficient = PUBLISHED[rounds]
    workload, size = prefix_sum(rounds), BANDS_AND_RANK[rounds]
    solution = fixed_point.certified(workload)
    converged = solution.lower - PRINTED <= optimal <= solution.upper + PRINTED
    return (
        rounds,
        honaker,
        design("honaker_online", workload).root_loss,
        optimal,
        solution.lower,
        solution.upper,
        design("optimal", workload).root_loss,
        efficient,
        design("banded_low_rank", workload, bands=size, rank=size).root_loss,
        "converged" if converged else "not converged",
    )


def by_shape(rounds: int) -> tuple[Value, ...]:
    """Return the rounds, the published efficient entry and ours for each of `SHAPES`."""
    workload = prefix_sum(rounds)
    fits = (design("banded_low_rank", workload, bands=bands, rank=rank).root_loss for bands, rank in SHAPES)
    return (rounds, PUBLISHED[rounds][2], *fits)


def on_a_run(rounds: int) -> tuple[Value, ...]:
    """Return what a run of `EPOCHS` epochs of so many rounds costs with each mechanism."""
    families = ("honaker_online", "optimal")
    honaker, epoch = (restarted(design(name, prefix_sum(rounds)), EPOCHS).root_loss for name in families)
    workloads = of_run(rounds, EPOCHS)
    whole = design_run("optimal", workloads).root_loss
    return (rounds, honaker, epoch, whole, run_lower_bound(workloads), epoch / whole)


def draw_table2(path: Path, rows: tuple[tuple[Any, ...], ...]) -> None:
    """Draw to `path`, a PNG, the error of one sum, and by how much each is above the optimum; lines are ours."""
    with figure(path, 9.5, 3.8) as drawn:
        panels = drawn.subplots(1, 2)
        rounds = [item[0] for item in rows]
        columns = (("Honaker online", 1, 2), ("banded low rank", 7, 8), ("optimum", 3, 6))
        for colour, (label, *places) in zip(COLOURS, columns, strict=False):
            of_one = [[item[place] / math.sqrt(item[0]) for item in rows] for place in places]
            excess = [[100 * (item[place] / item[4] - 1) for item in rows] for place in places]
            for axes, (theirs, own) in zip(panels, (of_one, excess), strict=True):
                if axes is panels[0] or label != "Honaker online":  # far above the others
                    axes.plot(
                        rounds, theirs, "o", color=colour, fillstyle="none", label=f"{label}, published"
                    )
                    axes.plot(rounds, own, color=colour, label=f"{label}, ours")
        for axes, label in zip(panels, ("rms error of a sum", "root loss above the bound, %"), strict=True):
            axes.set_xscale("log", base=2)
            axes.set_xticks(rounds, [str(number) for number in rounds])
            axes.set(xlabel="rounds", ylabel=label)
        panels[0].set_ylim(bottom=0)
        legend_below(drawn, panels[0], 3)


def denisov_solvers(path: Path, size: str) -> Reproduction:
    """Return the table of all solvers, and draw their gaps.

    The worst relative error is that of the root losses certified for one problem, over ours.
    """
    *lengths, longest, seconds = SIZES[size]
    traces = {
        (words, workload.rounds): traced(workload, seconds)
        for words, workload in progress(problems(*lengths), "all solvers")
    }
    rows = tuple(
        (*problem, solver, *last, last.seconds / found[OURS][-1].seconds if last.gap <= GAP else None)
        for problem, found in traces.items()
        for solver, (*_, last) in found.items()
    )
    long = [problem for rounds in longest for problem in problems([rounds], [rounds], [])]
    alone = tuple(
        (words, workload.rounds, *ours(workload, None)[-1])
        for words, workload in progress(long, "ours alone")
    )
    best = {problem: found[OURS][-1].root_loss for problem, found in traces.items()}
    draw_solvers(path, traces)
    errors = (abs(item[6] / best[item[0], item[1]] - 1) for item in rows if item[5] <= GAP)
    return (
        Table("all solvers", SOLVERS, rows, note=where()),
        Table("ours alone", ("problem", "rounds", *REACHED), alone, note=where()),
    ), max(errors)


def problems(sums: Sequence[int], momenta: Sequence[int], runs: Sequence[int]) -> list[tuple[str, Workload]]:
    """Return workloads of these lengths, and what they are called."""
    return [
        *(("prefix sums", prefix_sum(rounds)) for rounds in sums),
        *((f"momentum {BETA:g}", momentum(rounds, BETA)) for rounds in momenta),
        *(("whole run", of_run(rounds, EPOCHS, BETA)[0]) for rounds in runs),
    ]


def traced(workload: Workload, seconds: float) -> dict[str, list[Point]]:
    """Return the points of every solver on a workload, by its name."""
    start = np.sqrt(np.diag(workloads.gram(workload)))  # column norms of all rows that count
    diagonals = {"dense": dense(workload), "O(T)": linear(workload)}
    found = {
        f"{name}, {kind}": recorded(solver, diagonal, start, seconds)
        for kind, diagonal in diagonals.items()
        for name, solver in {"fixed point": plain, "L-BFGS": lbfgs}.items()
    }
    return {**found, OURS: ours(workload, start)}


class _EndedError(Exception):
    """The gap asked for, or a limit, is reached."""


def recorded(solver: Solver, diagonal: Diagonal, start: Float64, seconds: float) -> list[Point]:
    """Return the points of a solver from `start` (T,) until its gap is at most `GAP`, or `seconds` are over."""
    diagonal(start)  # what is compiled at its first call is not timed

    def once() -> list[Point]:
        points: list[Point] = []
        began = time.process_time()

        def record(v: Float64) -> Float64:
            D = diagonal(v)
            best = min([certificate(v, D), *((point.gap, point.root_loss) for point in points[-1:])])
            points.append(Point(len(points) + 1, time.process_time() - began, *best))
            if points[-1].gap <= GAP or points[-1].seconds > seconds:
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
    options: Any = {"ftol": 0.0, "gtol": 0.0, "maxiter": 10**9, "maxfun": 10**9}
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


def ours(workload: Workload, start: Float64 | None) -> list[Point]:
    """Return the points of `fixed_point.solve` at each of `GAPS`, each a run of its own; None: where it begins by itself."""
    fixed_point.solve(workload, gap=GAPS[0], start=start)  # what is compiled at its first call is not timed

    def once(gap: float) -> list[Point]:
        began = time.process_time()
        solution = fixed_point.solve(workload, gap=gap, start=start)
        taken = time.process_time() - began
        return [Point(solution.iterations, taken, (solution.upper / solution.lower) ** 2 - 1, solution.upper)]

    return [quickest(partial(once, gap))[-1] for gap in GAPS]


def draw_solvers(path: Path, traces: Mapping[tuple[str, int], Mapping[str, Sequence[Point]]]) -> None:
    """Draw to `path`, a PNG, the certified gap of each solver by evaluations and, below, by time."""
    columns, bands = min(len(traces), ACROSS), -(-len(traces) // ACROSS)
    with figure(path, 1.0 + 3.4 * columns, 7.0 * bands, dots=110) as drawn:
        panels = drawn.subplots(2 * bands, columns, squeeze=False, sharey=True)
        pairs = panels.reshape(bands, 2, columns).swapaxes(1, 2).reshape(-1, 2)
        for (above, below), ((words, rounds), found) in zip(pairs, traces.items(), strict=True):
            for index, (solver, points) in enumerate(found.items()):
                look: Any = {
                    "color": COLOURS[index],
                    "linestyle": DASHES[index % len(DASHES)],
                    "markersize": 4,
                }
                look |= {"marker": "o" if solver == OURS else None, "label": solver}
                evaluations, taken, gaps, _ = zip(*points, strict=True)
                above.plot(evaluations, gaps, **look)
                below.plot(taken, gaps, **look)
            for axes, label in ((above, "evaluations"), (below, "CPU seconds")):
                axes.axhline(GAP, color="#888888", linewidth=0.8)
                axes.set(xscale="log", yscale="log", xlabel=label)
            above.set_title(f"{words}, {rounds} rounds")
        for axes in panels[:, 0]:
            axes.set_ylabel("certified gap of the loss")
        legend_below(drawn, panels[0][0], 5)

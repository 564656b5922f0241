"""Figure 4 of Denisov, McMahan, Rush, Smith, Thakurta (NeurIPS 2022): ways to the optimum, by evaluations and time.

Their fixed point and L-BFGS, each with the eigendecompositions of the paper and with diagonals in O(T), and the solver of this
project, on prefix sums, momentum and an epoch of a whole run; each until it has certified the loss to one in a million.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from experiments.pages.figures import COLOURS, DASHES, STYLE, save
from experiments.reproduce import Cell, Means, Reproduction, Section, solvers
from experiments.reproduce.page import stem
from experiments.reproduce.solvers import Point
from experiments.reproduce.steps import told
from fedmf.checks import check_choice
from fedmf.mechanisms import momentum, of_run, prefix_sum
from fedmf.mechanisms.workload import Workload

NAME = "denisov_solvers"
GAP = 1e-6
EPOCHS, BETA = 8, 0.9
EVALUATIONS = {"prefix sums": 100, f"momentum {BETA:g}": 500, "whole run": 800}
"""About how those that the problems take compare, by which the time left is told."""
ACROSS = 4  # problems side by side in the plot
OURS = "ours, O(T)"
SOLVERS = {  # name: iteration, diagonal
    "fixed point, dense": (solvers.plain, solvers.dense),
    "L-BFGS, dense": (solvers.lbfgs, solvers.dense),
    "fixed point, O(T)": (solvers.plain, solvers.linear),
    "L-BFGS, O(T)": (solvers.lbfgs, solvers.linear),
}


@dataclass(frozen=True)
class Size:
    """Lengths of each problem on which all solvers run, of those on which only ours does, and CPU seconds for each solver."""

    prefix: tuple[int, ...]
    momentum: tuple[int, ...]
    run: tuple[int, ...]
    longer: tuple[int, ...]
    seconds: float


SIZES = {
    "small": Size((256, 1024), (256,), (256,), (4096, 16384, 65536), 60.0),
    "laptop": Size((256, 512, 1024, 2048), (256, 1024), (256, 1024), (4096, 16384, 65536, 262144), 1800.0),
}
COLUMNS = (
    "problem",
    "rounds",
    "solver",
    "evaluations",
    "CPU seconds",
    "gap reached",
    "root loss",
    "time over ours",
)


def about(size: Size) -> str:
    """Return the words of the page."""
    return f"""
**What is computed.** The optimal factorization of prefix sums, of momentum {BETA:g}, and of the first of {EPOCHS} epochs with momentum {BETA:g}
whose noise restarts while the model goes on (`whole run`), until the loss is certified to a relative gap of {GAP:g} by duality,
the same certificate for all. An evaluation is one diagonal of X(v), by an eigendecomposition (`dense`) or in O(T) a pole. CPU
seconds, so that other work on the machine does not count, without what numba compiles at a first call; at most {size.seconds:g} for a solver, and of what
takes less than a second the least of three runs. All begin at the column norms of the workload. Nothing is drawn at random: there are no seeds.

**What the paper shows.** Figure 4 of Denisov et al. draws how their fixed point converges beside L-BFGS. No number was read off it.

**What differs.** Their L-BFGS is not ours: here it is SciPy's, with a memory of {solvers.MEMORY}, on the negative dual in log v, a problem of T
numbers without constraints, begun again where its line search finds nothing lower; near the optimum that is rounding of the dual, and
a dash stands where it could go no further, or the time was over. Both of theirs run with either diagonal, so that what the iteration gains and what the diagonal gains
are told apart; by evaluations the two mostly take the same course, one line on the other in the upper panels. Ours is the fixed point with Anderson's acceleration. Their hardware is not ours.

**What we find**, in both sizes together (`size=laptop` has 512, 1,024 and 2,048 rounds besides). From 512 rounds on most is gained by the diagonal in O(T):
at 1,024 an evaluation takes less than a hundredth of the time. The papers' fixed point takes 6 to 27 times the evaluations of ours. L-BFGS with the diagonal in
O(T) is close behind: within twice our time on prefix sums, and as quick on the whole run. With momentum it does not reach the gap: it gives up after
about eight times our time, at 1.3e-6 with 256 rounds and 1e-5 with 1,024. In a run of fewer than 512 rounds the diagonal for momentum is plain numpy, here as
elsewhere, since loading compiled code would take longer than such a design: with momentum and 256 rounds O(T) gains nothing.
"""


def reproduce(directory: Path, means: Means) -> Reproduction:
    """Return the table of all solvers, and draw directory/denisov_solvers.png.

    The worst relative error is that of the root losses certified for one problem, over ours.
    """
    check_choice("size", means.size or "small", SIZES)
    size = SIZES[means.size or "small"]
    name = stem(NAME, means, "small")
    traces = {
        (words, workload.rounds): traced(workload, size.seconds)
        for words, workload in in_turn("all solvers", problems(size), 2.7)
    }
    rows = tuple(
        row(words, rounds, solver, points, found[OURS])
        for (words, rounds), found in traces.items()
        for solver, points in found.items()
    )
    best = {key: found[OURS][-1].root_loss for key, found in traces.items()}
    reached = [abs(item[6] / best[item[0], item[1]] - 1) for item in rows if item[5] <= GAP]
    return Reproduction(
        "Denisov et al. 2022, Figure 4: ways to the optimal factorization",
        COLUMNS,
        rows,
        max(reached),
        figures=(draw(directory / f"{name}.png", traces),),
        stem=name,
        about=about(size),
        heading=f"To a certified gap of {GAP:g}",
        sections=(
            Section(
                "Longer, ours alone",
                "From the start that the solver chooses by itself, a profile near the optimum of prefix sums:",
                ("problem", "rounds", "evaluations", "CPU seconds", "gap reached", "root loss"),
                tuple(longer(*problem) for problem in in_turn("ours alone", long_problems(size), 1.0)),
            ),
        ),
    )


def in_turn(
    table: str, given: Sequence[tuple[str, Workload]], power: float
) -> Iterator[tuple[str, Workload]]:
    """Return the problems of a table, each told as its turn comes; an evaluation costs about rounds^`power`."""
    return told(
        given,
        lambda problem: f"{table}, {problem[0]}, {problem[1].rounds} rounds",
        lambda problem: EVALUATIONS[problem[0]] * problem[1].rounds ** power,
    )


def problems(size: Size) -> list[tuple[str, Workload]]:
    """Return what all solvers are given."""
    return [
        *(("prefix sums", prefix_sum(rounds)) for rounds in size.prefix),
        *((f"momentum {BETA:g}", momentum(rounds, BETA)) for rounds in size.momentum),
        *(("whole run", of_run(rounds, EPOCHS, BETA)[0]) for rounds in size.run),
    ]


def long_problems(size: Size) -> list[tuple[str, Workload]]:
    """Return what only ours is given."""
    return [
        (words, workload)
        for rounds in size.longer
        for words, workload in (("prefix sums", prefix_sum(rounds)), (f"momentum {BETA:g}", momentum(rounds, BETA)))
    ]  # fmt: skip


def traced(workload: Workload, seconds: float) -> dict[str, list[Point]]:
    """Return the points of every solver on a workload, by its name."""
    start = solvers.column_norms(workload)
    found = {
        name: solvers.recorded(solver, diagonal(workload), start, gap=GAP, seconds=seconds)
        for name, (solver, diagonal) in SOLVERS.items()
    }
    return {**found, OURS: solvers.ours(workload, start, gap=GAP)}


def row(
    words: str, rounds: int, solver: str, points: Sequence[Point], own: Sequence[Point]
) -> tuple[Any, ...]:
    """Return one line of the table, see `COLUMNS`; no ratio for one that did not get there."""
    last = points[-1]
    ratio = last.seconds / own[-1].seconds if last.gap <= GAP else None
    return (words, rounds, solver, last.evaluations, last.seconds, last.gap, last.root_loss, ratio)


def longer(words: str, workload: Workload) -> tuple[Cell, ...]:
    """Return one line of the second table; the solver begins where it always does."""
    last = solvers.ours(workload, None, gap=GAP)[-1]
    return (words, workload.rounds, last.evaluations, last.seconds, last.gap, last.root_loss)


def draw(path: Path, traces: dict[tuple[str, int], dict[str, list[Point]]]) -> Path:
    """Draw to `path`, a PNG, the certified gap of each solver by evaluations and, below, by time; four problems side by side."""
    style: Any = STYLE
    with matplotlib.rc_context(style):
        columns, bands = min(len(traces), ACROSS), -(-len(traces) // ACROSS)
        figure = Figure(figsize=(1.0 + 3.4 * columns, 7.0 * bands), layout="constrained")
        panels = figure.subplots(2 * bands, columns, squeeze=False, sharey=True)
        used, unused = np.split(
            panels.reshape(bands, 2, columns).swapaxes(1, 2).reshape(-1, 2), [len(traces)]
        )
        for axes in unused.flat:
            axes.remove()
        for (above, below), ((words, rounds), found) in zip(used, traces.items(), strict=True):
            for index, (solver, points) in enumerate(found.items()):
                look: Any = {
                    "color": COLOURS[index],
                    "linestyle": DASHES[index % len(DASHES)],
                    "marker": "o" if solver == OURS else None,
                    "markersize": 4,
                    "label": solver,
                }
                gaps = [point.gap for point in points]
                above.plot([point.evaluations for point in points], gaps, **look)
                below.plot([point.seconds for point in points], gaps, **look)
            for axes, label in ((above, "evaluations"), (below, "CPU seconds")):
                axes.axhline(GAP, color="#888888", linewidth=0.8)
                axes.set(xscale="log", yscale="log", xlabel=label)
            above.set_title(f"{words}, {rounds} rounds")
        for axes in panels[:, 0]:
            axes.set_ylabel("certified gap of the loss")
        handles, labels = panels[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
        save(figure, path, 110)
    return path

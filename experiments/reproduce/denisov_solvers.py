"""Figure 4 of Denisov, McMahan, Rush, Smith, Thakurta (NeurIPS 2022): ways to the optimum, by evaluations and time.

Their fixed point and L-BFGS, each with the eigendecompositions of the paper and with diagonals in O(T), and the solver of this
project, on prefix sums, momentum and an epoch of a whole run; each until it has certified the loss to one in a million.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.pages.figures import COLOURS, DASHES
from experiments.reproduce import Reproduction, Table, Value, solvers
from experiments.reproduce.drawing import figure, legend_below, progress
from experiments.reproduce.page import where
from experiments.reproduce.solvers import Point
from fedmf.mechanisms import momentum, of_run, prefix_sum
from fedmf.mechanisms.workload import Workload

GAP = 1e-6
EPOCHS, BETA = 8, 0.9
ACROSS = 4  # problems side by side in the figure
OURS = "ours, O(T)"
SOLVERS = {  # name: iteration, diagonal
    "fixed point, dense": (solvers.plain, solvers.dense),
    "L-BFGS, dense": (solvers.lbfgs, solvers.dense),
    "fixed point, O(T)": (solvers.plain, solvers.linear),
    "L-BFGS, O(T)": (solvers.lbfgs, solvers.linear),
}


Size = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...], float]
"""Lengths of prefix sums, momentum and whole runs on which all solvers run, of those on which only ours does, and CPU seconds for each solver."""

SIZES: dict[str, Size] = {
    "small": ((256, 1024), (256,), (256,), (4096, 16384, 65536), 60.0),
    "laptop": ((256, 512, 1024, 2048), (256, 1024), (256, 1024), (4096, 16384, 65536, 262144), 1800.0),
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
LONGER = ("problem", "rounds", "evaluations", "CPU seconds", "gap reached", "root loss")

Problem = tuple[str, Workload]
Traces = Mapping[tuple[str, int], Mapping[str, Sequence[Point]]]


def reproduce(directory: Path, size: str) -> Reproduction:
    """Return the table of all solvers, and draw their gaps.

    The worst relative error is that of the root losses certified for one problem, over ours.
    """
    *lengths, longest, seconds = SIZES[size]
    stem = "denisov_solvers" if size == "small" else f"denisov_solvers_{size}"
    traces = {
        (words, workload.rounds): traced(workload, seconds)
        for words, workload in progress(problems(*lengths), "all solvers")
    }
    rows = tuple(
        row(*problem, solver, points, found[OURS])
        for problem, found in traces.items()
        for solver, points in found.items()
    )
    best = {problem: found[OURS][-1].root_loss for problem, found in traces.items()}
    alone = tuple(longer(*problem) for problem in progress(long_problems(longest), "ours alone"))
    return Reproduction(
        (Table("all solvers", COLUMNS, rows, note=where()), Table("ours alone", LONGER, alone, note=where())),
        max(abs(item[6] / best[item[0], item[1]] - 1) for item in rows if item[5] <= GAP),
        figures=(draw(directory / f"{stem}.png", traces),),
    )


def problems(sums: Sequence[int], momenta: Sequence[int], runs: Sequence[int]) -> list[Problem]:
    """Return what all solvers are given."""
    return [
        *(("prefix sums", prefix_sum(rounds)) for rounds in sums),
        *((f"momentum {BETA:g}", momentum(rounds, BETA)) for rounds in momenta),
        *(("whole run", of_run(rounds, EPOCHS, BETA)[0]) for rounds in runs),
    ]


def long_problems(lengths: Sequence[int]) -> list[Problem]:
    """Return what only ours is given."""
    both = (("prefix sums", prefix_sum), (f"momentum {BETA:g}", lambda rounds: momentum(rounds, BETA)))
    return [(words, workload(rounds)) for rounds in lengths for words, workload in both]


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


def longer(words: str, workload: Workload) -> tuple[Value, ...]:
    """Return one line of the second table; the solver begins where it always does."""
    last = solvers.ours(workload, None, gap=GAP)[-1]
    return (words, workload.rounds, last.evaluations, last.seconds, last.gap, last.root_loss)


def draw(path: Path, traces: Traces) -> Path:
    """Draw to `path`, a PNG, the certified gap of each solver by evaluations and, below, by time; four problems side by side."""
    columns, bands = min(len(traces), ACROSS), -(-len(traces) // ACROSS)
    with figure(path, 1.0 + 3.4 * columns, 7.0 * bands, dots=110) as drawn:
        panels = drawn.subplots(2 * bands, columns, squeeze=False, sharey=True)
        pairs = panels.reshape(bands, 2, columns).swapaxes(1, 2).reshape(-1, 2)
        used, unused = np.split(pairs, [len(traces)])
        for axes in unused.flat:
            axes.remove()
        for (above, below), ((words, rounds), found) in zip(used, traces.items(), strict=True):
            for index, (solver, points) in enumerate(found.items()):
                look: Any = {
                    "color": COLOURS[index],
                    "linestyle": DASHES[index % len(DASHES)],
                    "label": solver,
                }
                look |= {"marker": "o" if solver == OURS else None, "markersize": 4}
                gaps = [point.gap for point in points]
                above.plot([point.evaluations for point in points], gaps, **look)
                below.plot([point.seconds for point in points], gaps, **look)
            for axes, label in ((above, "evaluations"), (below, "CPU seconds")):
                axes.axhline(GAP, color="#888888", linewidth=0.8)
                axes.set(xscale="log", yscale="log", xlabel=label)
            above.set_title(f"{words}, {rounds} rounds")
        for axes in panels[:, 0]:
            axes.set_ylabel("certified gap of the loss")
        legend_below(drawn, panels[0][0], len(SOLVERS) + 1)
    return path

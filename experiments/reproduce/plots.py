"""The figures of the studies, in which a mechanism looks alike, and what the figures of all results share."""

import io
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.pages.figures import COLOURS, DASHES, MARKERS, STYLE
from experiments.pages.wording import Estimate
from experiments.reproduce.results import Results, Runs
from experiments.reproduce.study import Task
from experiments.reproduce.tables import baselines, bytes_sent, factorization, less, schedule_of
from server.files import write_output

LOOKS = {  # colour says which mechanism; a variant of one has its colour and another dash and marker
    **dict.fromkeys(("independent", "independent, L2-CSGM"), (0, 0, 0)),
    "honaker_online": (1, 1, 1),
    **dict.fromkeys(("epoch, momentum", "optimal, momentum", "SGMF, epoch"), (2, 2, 2)),
    **dict.fromkeys(("whole run", "optimal, momentum and cooldown", "SGMF, whole run"), (3, 3, 3)),
    **dict.fromkeys(("epoch, prefix sums", "optimal, prefix sums"), (4, 0, 4)),
    "honaker_full": (5, 1, 5),
    "Linf-CSGM": (6, 2, 6),
    "L2-CSGM, no epochs": (0, 3, 5),
    "Linf-CSGM, narrow": (6, 0, 4),
    "SGMF, whole run, narrow": (3, 0, 1),
}
ERRORS = (6, 7, 8, 10, 12, 15, 20, 30, 40)  # ticks, percent of examples misclassified
LEAST_NOISE = 3.0  # below are only first rounds

Measure = Callable[[Runs], Estimate | None]
Point = tuple[float, float]  # keep probability, epsilon


@contextmanager
def figure(path: Path, width: float, height: float, *, font: int = 10, dots: int = 120) -> Iterator[Figure]:
    """Yield a figure to draw on, which is then written to `path`, a PNG."""
    sizes = {"font.size": font, "legend.fontsize": "medium", "lines.linewidth": 1.5, "lines.markersize": 6}
    with matplotlib.rc_context(STYLE | sizes):
        drawn = Figure(figsize=(width, height), layout="constrained")
        yield drawn
        buffer = io.BytesIO()
        drawn.savefig(buffer, format="png", dpi=dots)
    write_output(path, buffer.getvalue())


def legend_below(drawn: Figure, axes: Axes, columns: int) -> None:
    """Write the legend of one panel below all of them."""
    handles, labels = axes.get_legend_handles_labels()
    drawn.legend(handles, labels, loc="outside lower center", ncols=min(columns, len(labels)))


def look(mechanism: str) -> dict[str, Any]:
    """Return with what the line of a mechanism is drawn."""
    colour, dash, marker = LOOKS[mechanism]
    return {"color": COLOURS[colour], "linestyle": DASHES[dash], "marker": MARKERS[marker], "markersize": 5}


def accuracy(path: Path, found: Results) -> None:
    """Draw accuracy against epsilon: a row of panels for each task, a panel for each keep probability."""
    study = found.study
    tasks = [task for task in study.tasks if any(found.runs(cell).outcomes for cell in task.cells.values())]
    with figure(path, 1.5 + 5.0 * len(study.keeps), 0.8 + 3.7 * len(tasks), font=12, dots=110) as drawn:
        panels = drawn.subplots(len(tasks), len(study.keeps), squeeze=False, sharey="row")
        for row, task in zip(panels, tasks, strict=True):
            for axes, keep in zip(row, study.keeps, strict=True):
                by_epsilon(axes, found, task, keep, lambda runs: runs.accuracy)
                axes.set_title(f"{task.name}, keep probability {keep:g}", fontsize=12)
            row[0].set_ylabel("test accuracy (%)")
        legend_below(drawn, panels[0][0], 3)


def against_bytes(path: Path, found: Results, measure: Measure = lambda runs: runs.accuracy, label: str = "test accuracy (%)") -> None:  # fmt: skip
    """Draw a measure, accuracy by default, against the bytes a client sends: a panel for each epsilon."""
    study, (task,) = found.study, found.study.tasks
    sent = {keep: bytes_sent(study.values["dimension"], keep) for keep in sorted(study.keeps)}
    ticks = {number: f"{number:,.0f}\n{keep:g}" for keep, number in sent.items()}
    with figure(path, 0.8 + 5.6 * len(study.epsilons), 5.4, font=12, dots=110) as drawn:
        panels = drawn.subplots(1, len(study.epsilons), squeeze=False, sharey=True)[0]
        for axes, epsilon in zip(panels, study.epsilons, strict=True):
            lines(axes, found, task, {number: (keep, epsilon) for keep, number in sent.items()}, measure)
            levels = ((name, measure(runs)) for name, runs in baselines(found, task).items())
            for dots, (name, level) in enumerate(levels, 1):
                if level:
                    axes.axhline(level.mean, color="grey", linewidth=1, linestyle=(0, (dots, 2)), label=name)
            ticked(axes, ticks, "bytes that a client sends in a round, and keep probability", fontsize=10)
            axes.set_title(f"epsilon {epsilon:g}", fontsize=12)
        panels[0].set_ylabel(label)
        legend_below(drawn, panels[0], 2 * len(study.epsilons))


def one_pass(path: Path, found: Results) -> None:
    """Draw test error against epsilon, and below it the noise in the model by round; a column for each schedule."""
    study = found.study
    with figure(path, 12.0, 9.4, font=12, dots=110) as drawn:
        panels = drawn.subplots(2, len(study.tasks), sharey="row")
        for task, above, below in zip(study.tasks, *panels, strict=True):
            by_epsilon(above, found, task, 1.0, lambda runs: less(Estimate(100, None), runs.accuracy))
            above.set(yscale="log", xlim=(study.epsilons[0] / 1.1, study.epsilons[-1] * 1.1))
            above.set_yticks(ERRORS, [str(tick) for tick in ERRORS])
            above.minorticks_off()
            above.set_title(f"{task.name}, one pass", fontsize=12)
            for name in task.mechanisms:
                error = factorization(study, task, name).per_round_error
                rounds = np.arange(1, len(error) + 1)
                below.plot(rounds, error, label=name, linewidth=1.3, **look(name) | {"marker": None})
            below.set(yscale="log", ylim=(LEAST_NOISE, None), xlabel="round")
            below.set_title(f"noise in the model, {schedule_of(task)}", fontsize=12)
        panels[0][0].set_ylabel("test error (% of examples)")
        panels[1][0].set_ylabel("error in the model (rate x z x clip norm / cohort)")
        legend_below(drawn, panels[1][-1], 3)


def by_epsilon(axes: Axes, found: Results, task: Task, keep: float, measure: Measure) -> None:
    """Draw a measure against epsilon."""
    epsilons = found.study.epsilons
    lines(axes, found, task, {epsilon: (keep, epsilon) for epsilon in epsilons}, measure)
    ticked(axes, {epsilon: f"{epsilon:g}" for epsilon in epsilons}, "epsilon (no unit)")


def lines(axes: Axes, found: Results, task: Task, points: Mapping[float, Point], measure: Measure) -> None:
    """Draw a line for each mechanism, {x: point} where it has runs, with a band of one standard error."""
    for name in task.mechanisms:
        at = {x: measure(found.runs(task.cells[name, *point])) for x, point in points.items()}
        known = [(x, one.mean, one.error or 0.0) for x, one in at.items() if one]
        x, mean, error = np.array(known).reshape(-1, 3).T
        (line,) = axes.plot(x, mean, label=name, **look(name))
        axes.fill_between(x, mean - error, mean + error, color=line.get_color(), alpha=0.2, linewidth=0)


def ticked(axes: Axes, ticks: Mapping[float, str], label: str, **how: Any) -> None:
    """Give a logarithmic x axis these ticks and no others."""
    axes.set_xscale("log")
    axes.set_xticks([*ticks], [*ticks.values()], **how)
    axes.set_xticks([], minor=True)
    axes.set_xlabel(label)


FIGURES: dict[str, Callable[[Path, Results], None]] = {
    "accuracy": accuracy,
    "bytes": against_bytes,
    "loss": partial(against_bytes, measure=lambda runs: runs.loss, label="test loss (nats)"),
    "one_pass": one_pass,
}

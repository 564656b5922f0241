"""The figures of the studies. A mechanism looks alike in all of them."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from experiments.pages.figures import COLOURS, DASHES, MARKERS
from experiments.pages.wording import Estimate
from experiments.reproduce.drawing import figure, legend_below
from experiments.reproduce.results import Runs
from experiments.reproduce.study import NO_NOISE, Task
from experiments.reproduce.tables import Found, bytes_sent, factorization, schedule_of
from experiments.reproduce.texts import SAME_WORDS

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


def look(mechanism: str, *, points: bool = True) -> dict[str, Any]:
    """Return with what the line of a mechanism is drawn."""
    colour, dash, marker = LOOKS[mechanism]
    line: dict[str, Any] = {"color": COLOURS[colour], "linestyle": DASHES[dash]}
    return line | ({"marker": MARKERS[marker], "markersize": 5} if points else {})


def accuracy(path: Path, found: Found) -> None:
    """Draw accuracy against epsilon: a row of panels for each task, a panel for each keep probability."""
    study = found.study
    tasks = [task for task in study.tasks if any(found.runs(cell).outcomes for cell in task.cells.values())]
    with figure(path, 1.5 + 5.0 * len(study.keeps), 0.8 + 3.7 * len(tasks), font=12, dots=110) as drawn:
        panels = drawn.subplots(len(tasks), len(study.keeps), squeeze=False, sharey="row")
        for row, task in zip(panels, tasks, strict=True):
            for axes, keep in zip(row, study.keeps, strict=True):
                _lines(axes, found, task, keep, lambda runs: runs.accuracy)
                axes.set_xscale("log")
                _epsilon_axis(axes, found)
                axes.set_title(f"{task.name}, keep probability {keep:g}", fontsize=12)
            row[0].set_ylabel("test accuracy (%)")
        legend_below(drawn, panels[0][0], 3)


def against_bytes(path: Path, found: Found, measure: Measure = lambda runs: runs.accuracy, label: str = "test accuracy (%)") -> None:  # fmt: skip
    """Draw a measure, accuracy by default, against the bytes a client sends: a panel for each epsilon."""
    study, (task,) = found.study, found.study.tasks
    with figure(path, 0.8 + 5.6 * len(study.epsilons), 5.4, font=12, dots=110) as drawn:
        panels = drawn.subplots(1, len(study.epsilons), squeeze=False, sharey=True)[0]
        ticks = {keep: bytes_sent(study.values["dimension"], keep) for keep in study.keeps}
        for axes, epsilon in zip(panels, study.epsilons, strict=True):
            for name in task.mechanisms:
                keeps = {
                    keep: measure(found.runs(task.cells[name, keep, epsilon])) for keep in sorted(study.keeps)
                }
                _line(axes, name, {ticks[keep]: item for keep, item in keeps.items() if item})
            for dots, (name, level) in enumerate(_levels(found, task, measure).items(), 1):
                axes.axhline(level, color="grey", linewidth=1, linestyle=(0, (dots, 2)), label=name)
            axes.set_xscale("log")
            named = {keep: f"{ticks[keep]:,.0f}\n{keep:g}" for keep in sorted(ticks)}
            axes.set_xticks([ticks[keep] for keep in named], list(named.values()), fontsize=10)
            axes.set_xticks([], minor=True)
            axes.set_xlabel("bytes that a client sends in a round, and keep probability")
            axes.set_title(f"epsilon {epsilon:g}", fontsize=12)
        panels[0].set_ylabel(label)
        legend_below(drawn, panels[0], 2 * len(study.epsilons))


def losses(path: Path, found: Found) -> None:
    """Draw the loss against the bytes a client sends."""
    against_bytes(path, found, lambda runs: runs.loss, "test loss (nats)")


def _levels(found: Found, task: Task, measure: Measure) -> dict[str, float]:
    """Return what belongs to no mechanism: without noise, and by the frequencies of words alone."""
    levels: dict[str, float] = {}
    if task.no_noise is not None:
        if item := measure(found.runs(task.no_noise)):
            levels[NO_NOISE] = item.mean
        if (words := found.same_words(task)) and (item := measure(Runs(0.0, {0: words}))):
            levels[SAME_WORDS] = item.mean
    return levels


def one_pass(path: Path, found: Found) -> None:
    """Draw test error against epsilon, and below it the noise in the model by round; a column for each schedule."""
    study = found.study
    with figure(path, 12.0, 9.4, font=12, dots=110) as drawn:
        panels = drawn.subplots(2, len(study.tasks), sharey="row")
        for task, above, below in zip(study.tasks, *panels, strict=True):
            _lines(above, found, task, 1.0, _error)
            above.set_xscale("log")
            above.set_yscale("log")
            above.set_xlim(study.epsilons[0] / 1.1, study.epsilons[-1] * 1.1)
            _epsilon_axis(above, found)
            above.set_yticks(ERRORS, [str(tick) for tick in ERRORS])
            above.minorticks_off()
            above.set_title(f"{task.name}, one pass", fontsize=12)
            for name in task.mechanisms:
                error = factorization(study, task, name).per_round_error
                below.plot(
                    np.arange(1, len(error) + 1), error, label=name, linewidth=1.3, **look(name, points=False)
                )
            below.set_yscale("log")
            below.set_ylim(bottom=LEAST_NOISE)
            below.set_xlabel("round")
            below.set_title(f"noise in the model, {schedule_of(task)}", fontsize=12)
        panels[0][0].set_ylabel("test error (% of examples)")
        panels[1][0].set_ylabel("error in the model (rate x z x clip norm / cohort)")
        legend_below(drawn, panels[1][-1], 3)


def _error(runs: Runs) -> Estimate | None:
    return None if runs.accuracy is None else Estimate(100 - runs.accuracy.mean, runs.accuracy.error)


def _epsilon_axis(axes: Axes, found: Found) -> None:
    axes.set_xticks(found.study.epsilons, [f"{epsilon:g}" for epsilon in found.study.epsilons])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("epsilon (no unit)")


def _lines(axes: Axes, found: Found, task: Task, keep: float, measure: Measure) -> None:
    """Draw a measure against epsilon, a line for each mechanism that has runs."""
    for name in task.mechanisms:
        points = {
            epsilon: measure(found.runs(task.cells[name, keep, epsilon])) for epsilon in found.study.epsilons
        }
        _line(axes, name, {epsilon: item for epsilon, item in points.items() if item})


def _line(axes: Axes, mechanism: str, points: Mapping[float, Estimate]) -> None:
    """Draw the line of a mechanism, {x: estimate}, with a band of one standard error."""
    mean = np.array([item.mean for item in points.values()])
    error = np.array([item.error or 0.0 for item in points.values()])
    axes.plot(list(points), mean, label=mechanism, **look(mechanism))
    axes.fill_between(
        list(points), mean - error, mean + error, color=look(mechanism)["color"], alpha=0.2, linewidth=0
    )


FIGURES: dict[str, Callable[[Path, Found], None]] = {
    "accuracy": accuracy,
    "bytes": against_bytes,
    "loss": losses,
    "one_pass": one_pass,
}

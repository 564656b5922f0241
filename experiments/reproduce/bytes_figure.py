"""The plot of accuracy against the bytes that a client sends: a panel for each epsilon, a line for each mechanism."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.pages.figures import STYLE, save
from experiments.pages.wording import Estimate
from experiments.reproduce.accuracy_page import Subject, draw_line, estimated
from experiments.reproduce.results import Results
from experiments.reproduce.trials import Cell
from fedmf.updates.rotation import padded_dimension
from fedmf.updates.wire import ENVELOPE_BYTES, value_bytes

Measure = Callable[[Results, Cell], Estimate | None]


def sent(dimension: int, keep_probability: float) -> float:
    """Return the bytes that a client is expected to send in a round: float32 values of a share of the padded model, and the envelope.

    >>> round(sent(7850, 1.0)), round(sent(7850, 0.003))
    (33159, 489)
    """
    return value_bytes(padded_dimension(dimension, "hadamard"), keep_probability, "float32") + ENVELOPE_BYTES


def draw(
    path: Path,
    subject: Subject,
    dimension: int,
    results: Results,
    levels: Mapping[str, float] | None = None,
    measure: Measure = estimated,
    label: str = "test accuracy (%)",
) -> Path:
    """Draw mean test accuracy against bytes to `path`, a PNG, with bands of one standard error; or another `measure`, called `label`.

    `levels` are accuracies in percent, or such measures, that belong to no mechanism, by name: each is a grey line across every panel.
    """
    style: Any = {**STYLE, "font.size": 12}
    epsilons = subject.epsilons
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(0.8 + 5.6 * len(epsilons), 5.4), layout="constrained")
        panels = figure.subplots(1, len(epsilons), squeeze=False, sharey=True)[0]
        for axes, epsilon in zip(panels, epsilons, strict=True):
            _panel(axes, subject, epsilon, dimension, results, measure)
            for dots, (name, level) in enumerate((levels or {}).items(), 1):
                axes.axhline(level, color="grey", linewidth=1, linestyle=(0, (dots, 2)), label=name)
        panels[0].set_ylabel(label)
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=min(2 * len(epsilons), len(labels)))
        save(figure, path, 110)
    return path


def _panel(
    axes: Axes, subject: Subject, epsilon: float, dimension: int, results: Results, measure: Measure
) -> None:
    """Draw one line for each mechanism at an epsilon; a mechanism without any run has none."""
    ticks: dict[float, float] = {}
    for mechanism in subject.mechanisms:
        cells = [cell for cell in subject.cells if (cell.mechanism, cell.epsilon) == (mechanism, epsilon)]
        found = {
            cell.keep_probability: item
            for cell in sorted(cells, key=lambda cell: cell.keep_probability)
            if (item := measure(results, cell))
        }
        ticks |= {keep: sent(dimension, keep) for keep in found}
        draw_line(axes, mechanism, {ticks[keep]: item for keep, item in found.items()})
    axes.set_xscale("log")
    axes.set_xticks(
        list(ticks.values()), [f"{bytes_:,.0f}\n{keep:g}" for keep, bytes_ in ticks.items()], fontsize=10
    )
    axes.set_xticks([], minor=True)
    axes.set_xlabel("bytes that a client sends in a round, and keep probability")
    axes.set_title(f"epsilon {epsilon:g}", fontsize=12)

"""The headline's table, and the plot."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table

from experiments.audit.law import Float64
from experiments.audit.levels import percent
from experiments.audit.matrix import COLUMNS, Line
from experiments.audit.row import Verdict
from experiments.audit.trials import Scores, Trial
from experiments.pages.figures import COLOURS, DASHES, STYLE, save

CLAIM = "one client, zero-out adjacency"
SMALLEST_RATE = 1e-3  # the plot's left end; a rate of 0 has no place on a logarithmic axis


def trial_as_document(trial: Trial) -> dict[str, Any]:
    """Return a trial as JSON-ready values."""
    return {
        **{name: value for name, value in vars(trial).items() if name != "sabotage"},
        "fault": trial.sabotage.name,
        "is_control": trial.is_control,
        "verdict": trial.verdict,
    }


def table(trials: Sequence[Trial]) -> Table:
    """Return the outcome for people."""
    found = Table(title=f"Lower bounds on epsilon from attacks on the real pipeline ({CLAIM})")
    found.add_column("pipeline")
    found.add_column("attack")
    for name in ("stated epsilon", "delta", "trials", "right / false alarms", "lower bound", "confidence"):
        found.add_column(name, justify="right")
    found.add_column("verdict")
    for trial in trials:
        found.add_row(
            pipeline_name(trial),
            f"{trial.method}, {trial.attack}",
            f"{trial.epsilon:g}",
            f"{trial.delta:g}",
            f"{trial.trials_in + (trial.trials_out or 0)}",
            f"{trial.hits}/{trial.trials_in}"
            + ("" if trial.trials_out is None else f"  {trial.false_alarms}/{trial.trials_out}"),
            f"{trial.lower_bound:.3f}",
            percent(trial.confidence),
            trial.verdict,
            style=None if trial.is_right else "bold red",
        )
    return found


def pipeline_name(trial: Trial) -> str:
    """Return the pipeline in a few words."""
    return f"{trial.mechanism}, gamma {trial.keep_probability:g}, {trial.sabotage.name}"


def draw(trials: Sequence[tuple[Trial, Scores | None]], lines: Sequence[Line], path: Path) -> Path:
    """Draw all bounds, the first mechanism's operating curves as shipped, and what caught which sabotage, to a PNG."""
    style: Any = STYLE
    lines = [line for line in lines if line.cells]  # of what was not played there is nothing to draw
    honest = [(trial, scores) for trial, scores in trials if not trial.is_control]
    curves = [(trial, scores) for trial, scores in honest if scores is not None]
    gammas = sorted({trial.keep_probability for trial, _ in curves}, reverse=True)
    heights = [0.3 * len(trials) + 0.8] if trials else []
    heights += [5.2] if curves else []
    heights += [0.22 * len(lines) + 1.6] if lines else []
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(11.0, sum(heights) + 0.6), layout="constrained")
        grid = iter(figure.add_gridspec(max(1, len(heights)), 1, height_ratios=heights or [1.0]))
        if trials:
            _bounds(figure.add_subplot(next(grid)), [trial for trial, _ in trials])
        if curves:
            columns = next(grid).subgridspec(1, len(gammas))
            for place, gamma in enumerate(gammas):
                chosen = [(trial, scores) for trial, scores in curves if trial.keep_probability == gamma]
                first = [pair for pair in chosen if pair[0].mechanism == curves[0][0].mechanism]
                _operating_curves(figure.add_subplot(columns[0, place]), first)
        if lines:
            _caught(figure.add_subplot(next(grid)), lines)
        save(figure, path, 130)
    return path


def _caught(axes: Axes, lines: Sequence[Line]) -> None:
    """What each test says of each sabotage, as coloured cells."""
    played = [column for column in COLUMNS if any(column in line.cells for line in lines)]
    kinds = (Verdict.refuted, Verdict.nothing_found, Verdict.inconclusive)
    colours = dict(zip(kinds, (COLOURS[1], "#e8e8e8", "#b0b0b0"), strict=True))
    for kind, word in zip(kinds, ("caught", "not caught", "too few runs"), strict=True):
        places = [
            (x, y)
            for y, line in enumerate(lines)
            for x, column in enumerate(played)
            if line.cells.get(column) is kind
        ]
        if places:
            x, y = np.transpose(places)
            axes.scatter(x, y, marker="s", s=70, color=colours[kind], label=word)
    must = [
        (x, y)
        for y, line in enumerate(lines)
        for x, column in enumerate(played)
        if column in line.sabotage.caught_by
    ]
    if must:
        x, y = np.transpose(must)
        axes.scatter(
            x,
            y,
            marker="s",
            s=90,
            facecolors="none",
            edgecolors="black",
            label="must catch it",
        )
    axes.set_xticks(range(len(played)), played, rotation=60, ha="right", fontsize=6.5)
    axes.set_yticks(range(len(lines)), [line.sabotage.name for line in lines], fontsize=6.5)
    axes.set_xlim(-0.7, len(played) - 0.3)
    axes.set_ylim(len(lines) - 0.3, -0.7)
    axes.grid(visible=False)
    axes.set_xlabel("test")
    axes.set_ylabel("what is broken on purpose")
    axes.legend(fontsize=6.5, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def _bounds(axes: Axes, trials: Sequence[Trial]) -> None:
    """Lower bounds as bars from 0, stated epsilons as ticks."""
    places = np.arange(len(trials))
    colours = [COLOURS[1] if trial.is_control else COLOURS[0] for trial in trials]
    axes.barh(places, [trial.lower_bound for trial in trials], color=colours, height=0.6)
    axes.scatter([trial.lower_bound for trial in trials], places, color=colours, s=24, zorder=3)
    axes.plot(
        [trial.epsilon for trial in trials], places, "|", color="black", markersize=14, markeredgewidth=2
    )
    axes.set_yticks(places, [f"{pipeline_name(trial)}\n{trial.method}, {trial.attack}" for trial in trials])
    axes.tick_params(axis="y", labelsize=6.5)
    axes.invert_yaxis()
    axes.set_xlabel(
        f"lower bound on epsilon at {percent(trials[0].confidence)} confidence, nats; {CLAIM}\n"
        "(blue: as shipped, orange: broken on purpose, black tick: stated epsilon)"
    )


def _operating_curves(axes: Axes, chosen: Sequence[tuple[Trial, Scores]]) -> None:
    """True against false positive rate over all thresholds, and the limit that the statement sets."""
    for index, (trial, scores) in enumerate(chosen):
        false, true = operating_curve(scores)
        axes.plot(
            np.maximum(false, SMALLEST_RATE),
            true,
            color=COLOURS[index % len(COLOURS)],
            linestyle=DASHES[index % len(DASHES)],
            label=f"{trial.sabotage.name}, {trial.attack}",
        )
    trial = chosen[0][0]
    rates = np.geomspace(SMALLEST_RATE, 1, 200)
    limit = np.minimum(1, math.exp(trial.epsilon) * rates + trial.delta)
    axes.fill_between(rates, limit, 1, color="#dddddd", label="refutes the statement, if sure")
    axes.set_xscale("log")
    axes.set_xlim(SMALLEST_RATE, 1)
    axes.set_ylim(0, 1)
    axes.set_xlabel("false positive rate (no unit)")
    axes.set_ylabel("true positive rate (no unit)")
    axes.set_title(f"{trial.mechanism}, gamma {trial.keep_probability:g}", fontsize=10)
    axes.legend(fontsize=6.5, loc="upper left", bbox_to_anchor=(0, -0.14))


def operating_curve(scores: Scores) -> tuple[Float64, Float64]:
    """Return (false positive rates, true positive rates), each (runs + 1,), as the threshold falls."""
    present = scores.present[np.argsort(-scores.scores, kind="stable")]
    true = np.concatenate([[0], np.cumsum(present)]) / max(1, present.sum())
    false = np.concatenate([[0], np.cumsum(~present)]) / max(1, (~present).sum())
    return false, true

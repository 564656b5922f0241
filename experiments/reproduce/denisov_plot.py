"""The plot of the one-pass experiments: test error against epsilon, and below it the error in the model by round."""

from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.pages.figures import STYLE, save
from experiments.pages.wording import Estimate
from experiments.reproduce.accuracy_page import draw_line, estimated
from experiments.reproduce.denisov_training import COMPARED, WORDS, Size, factorization, subject
from experiments.reproduce.looks import LOOKS
from experiments.reproduce.results import Results

TICKS = (6, 7, 8, 10, 12, 15, 20, 30, 40)  # percent of examples misclassified
MARGIN = 1.1  # factor left and right of the epsilons
LEAST = 3.0  # of the error that is drawn: below are only first rounds


def draw(path: Path, size: Size, results: Results) -> Path:
    """Draw the runs that are there and the exact errors to `path`, a PNG, a column for each schedule."""
    style: Any = {**STYLE, "font.size": 12}
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(12.0, 9.4), layout="constrained")
        panels = figure.subplots(2, len(COMPARED), sharey="row")
        for schedule, above, below in zip(COMPARED, *panels, strict=True):
            draw_accuracy(above, size, schedule, results)
            draw_noise(below, size, schedule)
        panels[0][0].set_ylabel("test error (% of examples)")
        panels[1][0].set_ylabel("error in the model (rate x z x clip norm / cohort)")
        handles, labels = panels[1][-1].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3)
        save(figure, path, 110)
    return path


def draw_accuracy(axes: Axes, size: Size, schedule: str, results: Results) -> None:
    """Draw one line for each mechanism that has runs, with a band of one standard error."""
    shown = subject(size, schedule)
    for mechanism in shown.mechanisms:
        found = {
            epsilon: Estimate(100 - item.mean, item.error)
            for epsilon in shown.epsilons
            if (item := estimated(results, shown.cell(mechanism, 1.0, epsilon)))
        }
        draw_line(axes, mechanism, found)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(shown.epsilons[0] / MARGIN, shown.epsilons[-1] * MARGIN)
    axes.set_xticks(shown.epsilons, [f"{epsilon:g}" for epsilon in shown.epsilons])
    axes.set_yticks(TICKS, [str(tick) for tick in TICKS])
    axes.minorticks_off()
    axes.set_xlabel("epsilon (no unit)")
    axes.set_title(f"{shown.name}, one pass", fontsize=12)


def draw_noise(axes: Axes, size: Size, schedule: str) -> None:
    """Draw the standard deviation of a coordinate of the noise in the model after each round."""
    rounds = np.arange(1, size.rounds + 1)
    for mechanism in COMPARED[schedule]:
        error = factorization(size, schedule, mechanism).per_round_error
        axes.plot(rounds, error, label=mechanism, linewidth=1.3, **LOOKS[mechanism].line)
    axes.set_yscale("log")
    axes.set_ylim(bottom=LEAST)
    axes.set_xlabel("round")
    axes.set_title(f"noise in the model, {WORDS[schedule]}", fontsize=12)

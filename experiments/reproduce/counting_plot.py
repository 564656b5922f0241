"""The plot of continual counting: error against rounds, and by how much the tree is worse, far beyond real lengths."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from experiments.pages.figures import COLOURS, DASHES, MARKERS, STYLE, save

LABELS = ("binary tree", "Honaker online", "square root", "optimum")
FURTHEST = 10_000  # doublings


def draw(path: Path, rows: Sequence[Sequence[float]], ratio: Callable[[float], float], limit: float) -> Path:
    """Draw both panels to `path`, a PNG: `rows` are rounds and the four errors of each length; `ratio` the formula."""
    style: Any = STYLE
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(9.5, 3.8), layout="constrained")
        left, right = figure.subplots(1, 2)
        rounds = np.array([row[0] for row in rows])
        for index, label in enumerate(LABELS):
            errors = [row[1 + index] for row in rows]
            left.plot(rounds, errors, color=COLOURS[index], linestyle=DASHES[index], marker=MARKERS[index], markersize=4, label=label)  # fmt: skip
        left.set_xscale("log", base=2)
        left.set_ylim(bottom=0)
        left.set_xlabel("rounds")
        left.set_ylabel("mean squared error of a count (units of (z C)²)")
        left.legend()
        doublings = np.unique(np.geomspace(1, FURTHEST, 200).round())
        measured = [row[1] / row[3] for row in rows]
        right.plot(
            doublings,
            [ratio(k) for k in doublings.tolist()],
            color=COLOURS[0],
            label="tree / square root, by formula",
        )
        right.plot(np.log2(rounds), measured, "o", color=COLOURS[1], markersize=5, label="as fitted")
        right.axhline(limit, color=COLOURS[2], linestyle="--", label=f"limit {limit:.2f}")
        right.axvspan(1, 30, color=COLOURS[5], alpha=0.15, linewidth=0, label="up to a billion rounds")
        right.set_xscale("log")
        right.set_xlabel("log2 of the rounds")
        right.set_ylabel("ratio of mean squared errors")
        right.set_ylim(0, 11)
        right.legend(loc="lower right")
        save(figure, path, 120)
    return path

"""Plots: what is drawn, and how, in one look for every page and every file; nothing is fetched.

`LinePlot` and `BarPlot` say what is drawn; a `Look` says how large. The same plot stands on a page (`svg.as_svg`) and in
files for a paper (`plot_files`).
"""

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from server.files import write_output

# Okabe and Ito's palette: told apart by colour-blind readers; dashes and markers tell lines apart in print.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
GRID = "#dddddd"
STYLE = {
    "svg.fonttype": "none",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
}
BAND = 0.2  # opacity of a standard error
MOST_TICKS = 7  # values of a logarithmic axis that are written one by one
MOST_MARKERS = 120  # more would be one thick line
FEW_MARKERS = 6  # of a line among others that has more points than can be marked
INCH = 72  # points


def save(figure: Figure, path: Path, dots: float) -> None:
    """Write a figure as PNG, whole or not at all; a link at `path` is replaced. `dots`: pixels an inch."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dots)
    write_output(path, buffer.getvalue())


@dataclass(frozen=True)
class Look:
    """How large a plot is drawn: inches, and points for text and lines."""

    width: float
    height: float
    text: float
    small: float  # labels of lines and bars
    line: float
    marker: float

    @property
    def letters(self) -> int:
        """How many letters of a label fit into one line below the plot."""
        return int((INCH * self.width - 45) / (0.62 * self.small))

    @property
    def line_height(self) -> float:
        """Inches from one line of a label to the next."""
        return 1.5 * self.small / INCH


PAGE = Look(width=4.8, height=2.9, text=10.5, small=9, line=1.5, marker=4)


@dataclass(frozen=True)
class Series:
    """One line of a plot; `error` is drawn as a band around it, and as a bar where it has one point."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    error: Sequence[float] | None = None


class Scale(StrEnum):
    """How a horizontal axis runs: whole rounds, any numbers, or their logarithms."""

    rounds = "rounds"
    linear = "linear"
    log = "log"


class Drawing(Protocol):
    """What can be drawn in any look."""

    def figure(self, look: Look = PAGE) -> Figure:
        """Return the plot as a figure of matplotlib, to be saved under `style(look)`."""
        ...


@dataclass(frozen=True)
class LinePlot:
    """Lines with bands. Axis labels carry the units.

    `markers`: whether each point is marked; without, each of several lines has a few. `y_from`: where the vertical axis begins, None for where the lines do. The
    values of a logarithmic axis are written where they are few.
    """

    series: Sequence[Series]
    x_label: str
    y_label: str
    steps: bool = False
    markers: bool = False
    x_scale: Scale = Scale.rounds
    y_from: float | None = None

    def figure(self, look: Look = PAGE) -> Figure:
        """Return the plot; a legend where there is more than one line, in it if the labels are short, else below."""
        labels = [in_lines(line.label, look.letters) for line in self.series]
        below = len(labels) > 1 and max(map(len, labels)) > look.letters // 2
        legend = below * look.line_height * (1 + sum(1 + label.count("\n") for label in labels))
        with matplotlib.rc_context(style(look)):
            figure = Figure(figsize=(look.width, look.height + legend), layout="constrained")
            axes = figure.add_subplot()
            for index, line in enumerate(self.series):
                self._draw(axes, line, index, labels[index], look)
            axes.set(xlabel=self.x_label, ylabel=self.y_label)
            self._scale(axes)
            if below:
                figure.legend(fontsize=look.small, loc="outside lower left")
            elif len(labels) > 1:
                axes.legend(fontsize=look.small)
        return figure

    def _draw(self, axes: Axes, line: Series, index: int, label: str, look: Look) -> None:
        """Draw one line in the look of its place among the others; a lone point gets its marker in any case."""
        colour, alone = COLOURS[index % len(COLOURS)], len(line.x) == 1
        marked = alone or (self.markers and len(line.x) <= MOST_MARKERS)
        among_others = (
            len(self.series) > 1 and not marked
        )  # a few markers, at other places than its neighbours'
        step = max(1, len(line.x) // FEW_MARKERS)
        axes.errorbar(
            line.x,
            line.y,
            yerr=line.error if alone else None,
            label=label,
            color=colour,
            linestyle=DASHES[index % len(DASHES)],
            linewidth=look.line,
            marker=MARKERS[index % len(MARKERS)] if marked or among_others else None,
            markevery=(index * step // len(self.series), step) if among_others else None,
            markersize=look.marker if among_others or len(line.x) <= MOST_MARKERS // 3 else look.marker / 2,
            capsize=3,
            drawstyle="steps-post" if self.steps else "default",
        )
        if line.error is not None and not alone:
            low, high = ([y + sign * e for y, e in zip(line.y, line.error, strict=True)] for sign in (-1, 1))
            axes.fill_between(line.x, low, high, color=colour, alpha=BAND, linewidth=0)

    def _scale(self, axes: Axes) -> None:
        """Set scales and ticks."""
        if self.x_scale is Scale.log:
            axes.set_xscale("log")
            names = {f"{value:.3g}": value for line in self.series for value in sorted(line.x)}
            if len(names) <= MOST_TICKS:
                axes.set_xticks(list(names.values()), list(names))
                axes.set_xticks([], minor=True)
        elif self.x_scale is Scale.rounds:
            axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
        if self.y_from is not None:
            axes.set_ylim(bottom=self.y_from)


@dataclass(frozen=True)
class BarPlot:
    """Horizontal bars (label, value, error), the first on top, each below its label."""

    bars: Sequence[tuple[str, float, float | None]]
    x_label: str

    def figure(self, look: Look = PAGE) -> Figure:
        """Return the plot, as high as its bars and labels need."""
        labels = [in_lines(label, look.letters) for label, _, _ in self.bars]
        lines = max(1 + label.count("\n") for label in labels)
        height = 0.06 * look.text + (0.03 * look.text + look.line_height * lines) * len(labels)
        with matplotlib.rc_context(style(look)):
            figure = Figure(figsize=(look.width, height), layout="constrained")
            axes = figure.add_subplot()
            axes.barh(
                range(len(self.bars)),
                [value for _, value, _ in self.bars],
                height=0.4,
                xerr=[error or 0.0 for _, _, error in self.bars],
                color=COLOURS[0],
                capsize=3,
            )
            for place, label in enumerate(labels):
                axes.text(0, place - 0.25, label, fontsize=look.small, verticalalignment="bottom")
            axes.set_yticks([])
            axes.set_ylim(len(self.bars) - 0.6, -0.9)
            axes.set_xlabel(self.x_label)
        return figure


def style(look: Look) -> Any:
    """Return matplotlib's settings for a look."""
    return {**STYLE, "font.size": look.text, "axes.linewidth": 0.5 * look.line}


def in_lines(label: str, letters: int) -> str:
    """Return a label in lines of so many letters, no setting parted from its value."""
    parts = [
        part for word in label.replace(" = ", "\u00a0=\u00a0").split(" ") for part in _parts(word, letters)
    ]
    lines = [""]
    for part in parts:  # a word that is broken goes on without a space
        joined = f"{lines[-1]}{part}"
        if lines[-1] and len(joined.rstrip()) > letters:
            lines[-1] = lines[-1].rstrip()
            lines.append(part)
        else:
            lines[-1] = joined
    return "\n".join(lines).rstrip()


def _parts(word: str, letters: int) -> list[str]:
    """Return a word and a space behind it; one that is too long for a line in parts that end where its names do.

    >>> _parts("my_own:Name", 20), _parts("my_own:Name", 8), _parts("abcdef", 4)
    (['my_own:Name '], ['my_', 'own:', 'Name '], ['abcd', 'ef '])
    """
    if len(word) <= letters:
        return [f"{word} "]
    parts = re.split(r"(?<=[_.:/\u00a0-])", word)
    short = [part[start : start + letters] for part in parts for start in range(0, len(part), letters)]
    return [*short[:-1], f"{short[-1]} "]

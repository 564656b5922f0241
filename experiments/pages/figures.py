"""Plots in one look for every page and every file; nothing is fetched.

A `LinePlot` contains what is drawn, a `Size` how large: the same plot is on a page and in files for a paper.
"""

import io
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogLocator, MaxNLocator

from server.files import write_output

# Okabe and Ito's palette: colour-blind readers can distinguish it; dashes and markers distinguish lines in print.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
STYLE = {
    "svg.fonttype": "none",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
}
BAND = 0.2  # opacity of a standard error
MOST_TICKS = 7  # values of a logarithmic axis that are written one by one
MOST_MARKERS = 120  # more would be one thick line
FEW_MARKERS = 6  # of a line among others that has more points than can be marked
INCH = 72  # points
DOTS = 300  # of a PNG, an inch
# Without what differs from one time, machine or version to another.
UNDATED = {"svg": dict.fromkeys(("Date", "Creator", "Format", "Type")), "png": {"Software": None}}


def save(figure: Figure, path: Path, dots: float) -> None:
    """Write a figure as PNG, whole or not at all; a link at `path` is replaced. `dots`: pixels an inch."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dots)
    write_output(path, buffer.getvalue())


@dataclass(frozen=True)
class Size:
    """Width and height of a plot in inches, and its text in points; labels of lines are a point smaller."""

    width: float
    height: float
    text: float

    def lines(self, label: str) -> str:
        """Return a label in lines of the plot's width, each value on the line of its setting."""
        letters = 0.9 * (INCH * self.width - 45) / (0.62 * (self.text - 1))
        return textwrap.fill(label.replace(" = ", "\u00a0=\u00a0"), int(letters))


PAGE = Size(4.8, 2.9, 10.5)


@dataclass(frozen=True)
class Series:
    """One line of a plot; `error` is drawn as a band around it, and as a bar where it has one point."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    error: Sequence[float] | None = None


@dataclass(frozen=True)
class LinePlot:
    """Lines with bands and their caption. Axis labels contain the units; `name` is unique on a page and names files.

    `marked`: each point has a marker; without it, each of several lines has a few. `bytes_on`: the axis, x or y, that counts bytes.
    """

    name: str
    caption: str
    series: Sequence[Series]
    y_label: str
    x_label: str = "round"
    steps: bool = False
    marked: bool = False
    log: bool = False
    from_zero: bool = False
    bytes_on: str = ""

    def figure(self, size: Size = PAGE) -> Figure:
        """Return the plot, with a legend below where it has more than one line."""
        labels = [size.lines(line.label) for line in self.series]
        rows = sum(1 + label.count("\n") for label in labels) if len(labels) > 1 else 0
        height = size.height + rows * 1.5 * (size.text - 1) / INCH
        figure = Figure(figsize=(size.width, height), layout="constrained")
        axes = figure.add_subplot()
        for index, line in enumerate(self.series):
            self._draw(axes, line, index, labels[index])
        axes.set(xlabel=self.x_label, ylabel=self.y_label)
        self._scale(axes)
        if rows:
            figure.legend(loc="outside lower left")
        return figure

    def _draw(self, axes: Axes, line: Series, index: int, label: str) -> None:
        """Draw one line in the look of its place among the others; a lone point has its marker in any case."""
        colour, alone = COLOURS[index % len(COLOURS)], len(line.x) == 1
        marked = alone or (self.marked and len(line.x) <= MOST_MARKERS)
        step = max(1, len(line.x) // FEW_MARKERS)
        few = (index * step // len(self.series), step)  # at other places than its neighbours'
        axes.errorbar(
            line.x,
            line.y,
            yerr=line.error if alone else None,
            label=label,
            color=colour,
            linestyle=DASHES[index % len(DASHES)],
            marker=MARKERS[index % len(MARKERS)] if marked or len(self.series) > 1 else None,
            markevery=None if marked else few,
            capsize=3,
            drawstyle="steps-post" if self.steps else "default",
        )
        if line.error is not None and not alone:
            low, high = ([y + sign * e for y, e in zip(line.y, line.error, strict=True)] for sign in (-1, 1))
            axes.fill_between(line.x, low, high, color=colour, alpha=BAND, linewidth=0)

    def _scale(self, axes: Axes) -> None:
        """Set scales and ticks: whole rounds, and on a logarithmic axis the values themselves where they are few."""
        if self.log:
            axes.set_xscale("log")
            axes.xaxis.set_major_locator(LogLocator(subs=(1, 3)))
            axes.set_xticks([], minor=True)
        elif self.x_label == "round":
            axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
        if self.bytes_on:
            getattr(axes, f"{self.bytes_on}axis").set_major_formatter(EngFormatter("B"))
        if self.from_zero:
            axes.set_ylim(bottom=0)
        if self.log:
            write = EngFormatter("B", places=1) if self.bytes_on == "x" else "{:.3g}".format
            names = {write(value): value for line in self.series for value in sorted(line.x)}
            if len(names) <= MOST_TICKS:
                axes.set_xticks(list(names.values()), list(names))


def style(size: Size) -> Any:
    """Return matplotlib's settings for a size. Letters of an SVG are outlines: it looks the same without our font."""
    return {
        **STYLE,
        "font.size": size.text,
        "legend.fontsize": size.text - 1,
        "lines.linewidth": 1.4,
        "lines.markersize": 4,
        "svg.fonttype": "path",
        "svg.hashsalt": "fedmf",
    }


def rendered(plot: LinePlot, form: str, size: Size = PAGE) -> bytes:
    """Return a plot as a file, svg or png."""
    buffer = io.BytesIO()
    with matplotlib.rc_context(style(size)):
        plot.figure(size).savefig(buffer, format=form, dpi=DOTS, metadata=UNDATED[form])
    return buffer.getvalue()

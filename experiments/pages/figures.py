"""Plots in one look for every page and every file, as wide as a column of a paper; nothing is fetched."""

import io
import logging
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogLocator, MaxNLocator, NullFormatter

# Okabe and Ito's palette: colour-blind readers can distinguish it; dashes and markers distinguish lines in print.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
FURTHER = ("#332288", "#882255", "#999933", "#8C510A", "#808080")  # where a page has more lines than one plot
DASHES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
# Letters of an SVG are outlines: it looks the same without our font.
STYLE: Any = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "font.size": 7,
    "legend.fontsize": 6.5,
    "lines.linewidth": 1,
    "lines.markersize": 3,
    "svg.fonttype": "path",
    "svg.hashsalt": "fedmf",
    "pdf.fonttype": 42,  # TrueType, which journals ask for
}
logging.getLogger("fontTools").setLevel(logging.WARNING)  # which names every letter of a PDF
WIDTH, HEIGHT = 3.25, 2.0  # inches, without a legend
# Without what differs from one time, machine or version to another.
UNDATED = {
    "svg": dict.fromkeys(("Date", "Creator", "Format", "Type")),
    "png": {"Software": None},
    "pdf": dict.fromkeys(("CreationDate", "Creator", "Producer")),
}


class Series(NamedTuple):
    """One line of a plot, and the standard error of its points."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    error: Sequence[float] | None = None


@dataclass(frozen=True)
class LinePlot:
    """Lines and their caption. Axis labels contain the units; `name` is unique on a page and names files.

    `log`: the x axis is logarithmic; `bytes_on`: the axis, x or y, that counts bytes.
    """

    name: str
    caption: str
    series: Sequence[Series]
    y_label: str
    x_label: str = "round"
    steps: bool = False
    log: bool = False
    bytes_on: str = ""

    def _repr_png_(self) -> bytes:
        return rendered(self, "png")

    def figure(self, looks: Sequence[str] = ()) -> Figure:
        """Return the plot, with a legend below where it has more than one line.

        `looks` are all labels of a page: a line's place among them is its colour. Without them it is that in the plot.
        """
        looks = looks or [line.label for line in self.series]
        labels = [textwrap.fill(line.label.replace(" = ", "\u00a0=\u00a0"), width=54) for line in self.series]
        rows = sum(label.count("\n") + 1 for label in labels) if len(labels) > 1 else 0
        figure = Figure((WIDTH, HEIGHT + 0.14 * rows), layout="constrained")
        axes = figure.add_subplot(xlabel=self.x_label, ylabel=self.y_label)
        colours = COLOURS + FURTHER
        for label, line in zip(labels, self.series, strict=True):
            place = looks.index(line.label)
            few = max(1, len(line.x) // 8)  # about eight points have a marker, and an error
            axes.errorbar(
                line.x,
                line.y,
                yerr=line.error,
                label=label,
                color=colours[place % len(colours)],
                linestyle=DASHES[place % len(DASHES)],
                marker=MARKERS[place % len(MARKERS)],
                markevery=few,
                errorevery=few,
                capsize=2,
                drawstyle="steps-post" if self.steps else "default",
            )
        if self.x_label == "round":
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        if self.log:
            axes.set_xscale("log")
            axes.xaxis.set(
                major_locator=LogLocator(subs=(1, 2, 5)),
                major_formatter="{x:g}",
                minor_formatter=NullFormatter(),
            )
        if self.bytes_on:
            getattr(axes, f"{self.bytes_on}axis").set_major_formatter(EngFormatter("B"))
        if rows:
            figure.legend(loc="outside lower left")
        return figure


def rendered(plot: LinePlot, form: str, looks: Sequence[str] = ()) -> bytes:
    """Return a plot as a file, svg, png or pdf; lines look the same in all plots with the same `looks`."""
    buffer = io.BytesIO()
    with matplotlib.rc_context(STYLE):
        plot.figure(looks).savefig(buffer, format=form, dpi=300, metadata=UNDATED[form])
    return buffer.getvalue()

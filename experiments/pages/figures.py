"""Plots as inline SVG: one look for every page, text in the page's own font, nothing fetched."""

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import fill
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

# Okabe and Ito's palette: told apart by colour-blind readers; dashes and markers tell lines apart in print.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
SIZE = (5.0, 3.1)  # inches
LINE_LENGTH, LINE_HEIGHT = 62, 0.17  # characters and inches of a label's lines
SHORT_LABEL = 32  # characters that fit into a plot beside its lines
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


@dataclass(frozen=True)
class Series:
    """One line of a plot; `error` is drawn as bars above and below."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    error: Sequence[float] | None = None


def line_plot(
    name: str,
    series: Sequence[Series],
    *,
    x_label: str,
    y_label: str,
    steps: bool = False,
    markers: bool = False,
    log_x: bool = False,
    log_y: bool = False,
    y_from: float | None = None,
) -> str:
    """Return a line plot as one <svg> element; `name`, unique on its page, becomes the prefix of all ids.

    Axis labels carry the units. A legend appears when there is more than one line: in the plot if its labels are
    short, else below it.
    """
    style: Any = {**STYLE, "svg.hashsalt": name}
    labels = [in_lines(line.label) for line in series]
    below = max(map(len, labels)) > SHORT_LABEL
    legend_height = below * LINE_HEIGHT * (1 + sum(1 + label.count("\n") for label in labels))
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(SIZE[0], SIZE[1] + legend_height), layout="constrained")
        axes = figure.add_subplot()
        for index, line in enumerate(series):
            _draw(axes, line, index, labels[index], steps=steps, markers=markers)
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)
        if log_x:
            axes.set_xscale("log")
            ticks = sorted({value for line in series for value in line.x})
            axes.set_xticks(ticks, [f"{value:g}" for value in ticks])
            axes.set_xticks([], minor=True)
        else:
            axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
        if log_y:
            axes.set_yscale("log")
        if y_from is not None:
            axes.set_ylim(bottom=y_from)
        if below and len(series) > 1:
            figure.legend(fontsize=8, loc="outside lower left")
        elif len(series) > 1:
            axes.legend(fontsize=8)
        return as_svg(figure, name)


def _draw(axes: Axes, line: Series, index: int, label: str, *, steps: bool, markers: bool) -> None:
    """Draw one line in the look of its place among the others; a lone point gets its marker in any case."""
    axes.errorbar(
        line.x,
        line.y,
        yerr=line.error,
        label=label,
        color=COLOURS[index % len(COLOURS)],
        linestyle=DASHES[index % len(DASHES)],
        marker=MARKERS[index % len(MARKERS)] if markers or len(line.x) == 1 else None,
        markersize=4,
        capsize=3,
        drawstyle="steps-post" if steps else "default",
    )


def bar_plot(name: str, bars: Sequence[tuple[str, float, float | None]], *, x_label: str) -> str:
    """Return horizontal bars (label, value, error) as one <svg> element, the first on top, each below its label."""
    style: Any = {**STYLE, "svg.hashsalt": name}
    labels = [in_lines(label) for label, _, _ in bars]
    lines = max(1 + label.count("\n") for label in labels)
    with matplotlib.rc_context(style):
        figure = Figure(
            figsize=(SIZE[0], 0.8 + (0.3 + LINE_HEIGHT * lines) * len(bars)), layout="constrained"
        )
        axes = figure.add_subplot()
        axes.barh(
            range(len(bars)),
            [value for _, value, _ in bars],
            height=0.4,
            xerr=[error or 0.0 for _, _, error in bars],
            color=COLOURS[0],
            capsize=3,
        )
        for place, label in enumerate(labels):
            axes.text(0, place - 0.25, label, fontsize=8, verticalalignment="bottom")
        axes.set_yticks([])
        axes.set_ylim(len(bars) - 0.6, -0.9)
        axes.set_xlabel(x_label)
        return as_svg(figure, name)


def in_lines(label: str) -> str:
    """Return a label in lines that fit below a plot, no setting parted from its value."""
    return fill(label.replace(" = ", "\u00a0=\u00a0"), LINE_LENGTH)


def as_svg(figure: Figure, name: str) -> str:
    """Return `figure` as one <svg> element for a page: no prolog, no metadata, every id prefixed by `name`."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'((?:xlink:)?href="|url\()#', rf"\1#{name}-", svg)
    return svg.replace("<svg", f'<svg role="img" aria-labelledby="{name}-caption"', 1).strip()

"""A page and a plot of accuracies: tasks by keep probability and epsilon, one column for each mechanism.

Made of whatever runs there are, so that it can be looked at while the others are still computed.
"""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.pages.figures import STYLE, save
from experiments.pages.wording import Estimate, estimate
from experiments.reproduce import Cell as Entry
from experiments.reproduce.looks import LOOKS
from experiments.reproduce.page import NONE, table_head, table_row
from experiments.reproduce.results import Results
from experiments.reproduce.trials import Cell
from server.files import write_atomically

COLUMNS = (
    "task",
    "mechanism",
    "keep",
    "epsilon",
    "accuracy, %",
    "standard error, %",
    "seeds",
    "learning rate",
)


@dataclass(frozen=True)
class Subject:
    """A task of the page, said in `words`, with its cells; `runs` is how many of each there will be at least."""

    name: str
    words: str
    cells: tuple[Cell, ...]
    runs: int

    @property
    def mechanisms(self) -> list[str]:
        """The columns, in the order of the cells."""
        return list(dict.fromkeys(cell.mechanism for cell in self.cells))

    @property
    def keep_probabilities(self) -> list[float]:
        """The panels, in the order of the cells."""
        return list(dict.fromkeys(cell.keep_probability for cell in self.cells))

    @property
    def epsilons(self) -> list[float]:
        """The points of each line, increasing."""
        return sorted({cell.epsilon for cell in self.cells})

    def cell(self, mechanism: str, keep: float, epsilon: float) -> Cell:
        """Return the cell with these names."""
        wanted = (mechanism, keep, epsilon)
        return next(
            cell for cell in self.cells if (cell.mechanism, cell.keep_probability, cell.epsilon) == wanted
        )


@dataclass(frozen=True)
class Comparison:
    """Which column is held against which, run by run of the same seed."""

    ours: str
    other: str

    @property
    def title(self) -> str:
        """The head of its column."""
        return f"{self.ours} − {self.other}"


def as_rows(subjects: Sequence[Subject], results: Results) -> tuple[tuple[Entry, ...], ...]:
    """Return one row for each cell that has runs, see `COLUMNS`."""
    rows: list[tuple[Entry, ...]] = []
    for subject in subjects:
        for cell in subject.cells:
            rate, by_seed = results.final(cell)
            if found := estimate([100 * accuracy for accuracy in by_seed.values()]):
                labels = (cell.task, cell.mechanism, cell.keep_probability, cell.epsilon)
                rows.append((*labels, found.mean, found.error, len(by_seed), rate))
    return tuple(rows)


def write_page(
    directory: Path,
    name: str,
    head: str,
    subjects: Sequence[Subject],
    comparison: Comparison,
    results: Results,
) -> tuple[Path, ...]:
    """Write directory/NAME.md and directory/NAME.png, and return the figures drawn; no figure without any run."""
    shown = [subject for subject in subjects if as_rows([subject], results)]
    figures = (draw(directory / f"{name}.png", shown, results),) if shown else ()
    image = [f"![Test accuracy against epsilon]({name}.png)", ""] if shown else ["No run has ended yet.", ""]
    caption = ["Mean over seeds; bands are one standard error.", ""] if shown else []
    sections = [line for subject in subjects for line in section(subject, comparison, results)]
    text = "\n".join([head.strip(), "", *image, *caption, *sections])
    write_atomically(directory / f"{name}.md", (text.rstrip() + "\n").encode())
    return figures


def section(subject: Subject, comparison: Comparison, results: Results) -> Iterator[str]:
    """Yield the lines of one task: accuracies, then the learning rates and what the runs took."""
    done = sum(min(subject.runs, len(results.final(cell)[1])) for cell in subject.cells)
    yield from (f"## {subject.name[0].upper()}{subject.name[1:]}", "", f"{subject.words}.", "")
    if done < subject.runs * len(subject.cells):
        yield from (f"**Unfinished: {done} of {subject.runs * len(subject.cells)} runs are there.**", "")
    if not done:
        return
    mechanisms = subject.mechanisms
    yield from (
        f"Test accuracy in percent, mean ± standard error of {subject.runs} runs, or of as many as stand in brackets:",
        "",
    )
    yield from table_head(["keep", "epsilon", *mechanisms, comparison.title])
    for keep, epsilon, cells in _points(subject):
        by_seed = [results.final(cell)[1] for cell in cells]
        of = dict(zip(mechanisms, by_seed, strict=True))
        gain = difference(of.get(comparison.ours, {}), of.get(comparison.other, {}))
        yield table_row([f"{keep:g}", f"{epsilon:g}", *_accuracies(by_seed, subject.runs), gain])
    yield from ("", "The learning rates of the server that tuning chose:", "")
    yield from table_head(["keep", "epsilon", *mechanisms])
    for keep, epsilon, cells in _points(subject):
        rates = [results.final(cell)[0] for cell in cells]
        yield table_row(
            [f"{keep:g}", f"{epsilon:g}", *(NONE if np.isnan(rate) else f"{rate:g}" for rate in rates)]
        )
    seconds = results.seconds(subject.cells)
    yield from ("", f"A run took {statistics.fmean(seconds):.1f} CPU seconds on average.", "")


def _points(subject: Subject) -> Iterator[tuple[float, float, list[Cell]]]:
    """Yield (keep probability, epsilon, the cells of all mechanisms there), the rows of a table."""
    for keep in subject.keep_probabilities:
        for epsilon in subject.epsilons:
            yield (
                keep,
                epsilon,
                [subject.cell(mechanism, keep, epsilon) for mechanism in subject.mechanisms],
            )


def _accuracies(by_seed: Sequence[dict[int, float]], runs: int) -> Iterator[str]:
    """Yield a row's accuracies, the best one bold; with how many runs there are where these are not `runs`."""
    found = [estimate([100 * accuracy for accuracy in column.values()]) for column in by_seed]
    best = max((item.mean for item in found if item), default=None)
    for item, column in zip(found, by_seed, strict=True):
        if item is None:
            yield NONE
        else:
            text = _plus_minus(item, f"{item.mean:.1f}")
            bold = f"**{text}**" if item.mean == best else text
            yield bold if len(column) == runs else f"{bold} ({len(column)})"


def difference(ours: dict[int, float], other: dict[int, float]) -> str:
    """Return the mean difference over the seeds that both have, in percent, with the standard error of pairs.

    >>> difference({0: 0.82, 1: 0.84}, {0: 0.8, 1: 0.8, 2: 0.5})
    '+3.0 ± 1.0'
    """
    found = estimate([100 * (ours[seed] - other[seed]) for seed in sorted({*ours} & {*other})])
    return _plus_minus(found, f"{found.mean:+.1f}") if found else NONE


def _plus_minus(item: Estimate, mean: str) -> str:
    return mean if item.error is None else f"{mean} ± {item.error:.1f}"


def draw(path: Path, subjects: Sequence[Subject], results: Results) -> Path:
    """Draw accuracy against epsilon to `path`, a PNG: a row of panels for each task, a panel for each keep probability."""
    style: Any = {**STYLE, "font.size": 12}
    columns = max(len(subject.keep_probabilities) for subject in subjects)
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(1.5 + 5.0 * columns, 0.8 + 3.7 * len(subjects)), layout="constrained")
        panels = figure.subplots(len(subjects), columns, squeeze=False, sharey="row")
        for row, subject in zip(panels, subjects, strict=True):
            for axes in row[len(subject.keep_probabilities) :]:
                axes.set_axis_off()
            for axes, keep in zip(row, subject.keep_probabilities, strict=False):
                _panel(axes, subject, keep, results)
            row[0].set_ylabel("test accuracy (%)")
        handles, labels = panels[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=min(3, len(labels)))
        save(figure, path, 110)
    return path


def _panel(axes: Axes, subject: Subject, keep: float, results: Results) -> None:
    """Draw one line for each mechanism, with a band of one standard error."""
    for mechanism in subject.mechanisms:
        found = {
            epsilon: item
            for epsilon in subject.epsilons
            if (item := estimated(results, subject.cell(mechanism, keep, epsilon)))
        }
        draw_line(axes, mechanism, found)
    axes.set_xscale("log")
    axes.set_xticks(subject.epsilons, [f"{epsilon:g}" for epsilon in subject.epsilons])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("epsilon (no unit)")
    axes.set_title(f"{subject.name}, keep probability {keep:g}", fontsize=12)


def draw_line(axes: Axes, mechanism: str, found: Mapping[float, Estimate]) -> None:
    """Draw the line of a mechanism, {x: estimate}, with a band of one standard error."""
    x, mean = list(found), np.array([item.mean for item in found.values()])
    error = np.array([item.error or 0.0 for item in found.values()])
    look = LOOKS[mechanism].points
    axes.plot(x, mean, label=mechanism, markersize=5, **look)
    axes.fill_between(x, mean - error, mean + error, color=look["color"], alpha=0.2, linewidth=0)


def estimated(results: Results, cell: Cell) -> Estimate | None:
    """Return mean and standard error over the seeds of a cell's test accuracy, in percent; None without any run."""
    return estimate([100 * accuracy for accuracy in results.final(cell)[1].values()])

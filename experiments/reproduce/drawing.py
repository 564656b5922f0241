"""What all figures of this package share, and the progress of a computation that takes minutes."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import track

from experiments.pages.figures import STYLE, save

T = TypeVar("T")


@contextmanager
def figure(path: Path, width: float, height: float, *, font: int = 10, dots: int = 120) -> Iterator[Figure]:
    """Yield a figure to draw on, which is then written to `path`, a PNG."""
    style: Any = {**STYLE, "font.size": font}
    with matplotlib.rc_context(style):
        drawn = Figure(figsize=(width, height), layout="constrained")
        yield drawn
        save(drawn, path, dots)


def legend_below(drawn: Figure, axes: Axes, columns: int) -> None:
    """Write the legend of one panel below all of them."""
    handles, labels = axes.get_legend_handles_labels()
    drawn.legend(handles, labels, loc="outside lower center", ncols=min(columns, len(labels)))


def progress(items: Sequence[T], words: str) -> Iterable[T]:
    """Return the items, with a bar on stderr that tells how many are done."""
    return track(items, words, console=Console(stderr=True))

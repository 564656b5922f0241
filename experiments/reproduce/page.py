"""The page of a result: what was asked, what the paper shows, the plot, the tables, and what it took.

Every number on it was written by the command. The lines that make a table are those of every page of this package.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.reproduce import Cell, Means, Reproduction, Section
from server.files import write_atomically

NONE = "–"


@dataclass(frozen=True)
class Took:
    """How long the command computed: wall time and CPU time of its process, in seconds."""

    wall: float
    cpu: float


def stem(name: str, means: Means, first: str) -> str:
    """Return the name of a result's files: with its size unless that is the `first`, so that no page takes another's place.

    >>> stem("denisov_solvers", Means(size="laptop"), "small"), stem("denisov_solvers", Means(), "small")
    ('denisov_solvers_laptop', 'denisov_solvers')
    """
    return name if means.size in (None, first) else f"{name}_{means.size}"


def asked(size: str | None, first: str) -> str:
    """Return how a command asks for a size, after other words; nothing for the `first`, which it has without asking.

    >>> asked("laptop", "small"), asked("small", "small"), asked(None, "small")
    (' size=laptop', '', '')
    """
    return "" if size in (None, first) else f" size={size}"


def once(overrides: Sequence[str]) -> list[str]:
    """Return overrides with one for each key, the last, which is the one that counts.

    >>> once(["a=1", "b=2", "a=3"])
    ['a=3', 'b=2']
    """
    return [f"{key}={value}" for key, value in dict(line.split("=", 1) for line in overrides).items()]


def write(directory: Path, arguments: Sequence[str], result: Reproduction, took: Took) -> Path:
    """Write directory/STEM.md of a result that has words for a page, and return its path.

    `arguments` are those of the command that makes it again, such as name=sgmf_figure1.
    """
    path = directory / f"{result.stem}.md"
    text = "\n".join(_lines(arguments, result, took))
    write_atomically(path, (text.rstrip() + "\n").encode())
    return path


def _lines(arguments: Sequence[str], result: Reproduction, took: Took) -> Iterator[str]:
    cores = len(os.sched_getaffinity(0))
    yield from (f"# {result.title}", "")
    yield f"Made by `python -m experiments.reproduce {' '.join(arguments)}` in {seconds(took.wall)} of wall time,"
    yield f"{seconds(took.cpu)} of CPU time, on {cores} core{'s' if cores > 1 else ''} of a machine with a load average of"
    yield from (
        f"{os.getloadavg()[0]:.1f}. What an earlier call left in the cache is not computed again.",
        "",
    )
    yield from (result.about.strip(), "")
    for figure in result.figures:
        yield from (f"![{result.title}]({figure.name})", "")
    if result.worst_relative_error is not None:
        yield from (f"Worst relative error: {result.worst_relative_error:.2g}.", "")
    yield from section(Section(result.heading, "", result.columns, result.rows))
    for note in result.notes:
        yield from (note, "")
    for part in result.sections:
        yield from section(part)


def section(part: Section) -> Iterator[str]:
    """Yield the lines of a table with its heading and words."""
    yield from (f"## {part.heading}", "")
    if part.words:
        yield from (part.words.strip(), "")
    yield from table_head(part.columns)
    for cells in part.rows:
        yield table_row([text(cell) for cell in cells])
    yield ""


def text(cell: Cell) -> str:
    """Return a cell as it stands in a table: seven digits of a number that is not whole.

    >>> text(216.945543), text(1024), text(None), text(1.5e-9)
    ('216.9455', '1024', '–', '1.5e-09')
    """
    if cell is None:
        return NONE
    return f"{cell:.7g}" if isinstance(cell, float) else str(cell)


def seconds(amount: float) -> str:
    """Return a time in words.

    >>> seconds(4.21), seconds(250)
    ('4.2 s', '4.2 min')
    """
    return f"{amount:.1f} s" if amount < 120 else f"{amount / 60:.1f} min"


def table_head(columns: Sequence[str]) -> Iterator[str]:
    """Yield the two lines above a table's rows."""
    yield table_row(columns)
    yield table_row(["---:"] * len(columns))


def table_row(cells: Sequence[str]) -> str:
    """Return one line of a table."""
    return f"| {' | '.join(cells)} |"

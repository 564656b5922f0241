"""Published results computed again by this project's own code, each beside the number it is held against.

A result is a module of this package, listed in `NAMES`, with `reproduce(directory)`; one that comes in several sizes is
in `SIZED` too, and has `SIZES` and `reproduce(directory, means)`; one that trains many models is in `LONG` besides.
"""

from dataclasses import dataclass, field
from pathlib import Path

NAMES = (
    "sgmf_figure1",
    "sgmf_femnist",
    "sgmf_csgm",
    "sgmf_text",
    "denisov_mechanisms",
    "denisov_table2",
    "denisov_solvers",
    "henzinger_counting",
    "cited_numbers",
    "tighter_accountant",
    "whole_run",
)
LONG = ("sgmf_femnist", "sgmf_csgm", "sgmf_text", "denisov_mechanisms", "whole_run")
SIZED = (*LONG, "denisov_solvers", "henzinger_counting")

Cell = str | float | int | None


@dataclass(frozen=True)
class Means:
    """With what a result in `SIZED` is computed.

    `data` is the file of the real data, without which what needs it is left out; `size` names one of the result's own
    `SIZES`, None its first; with `compute` false the page is made of the runs that are there; with `mix_code` runs are
    added beside those of other code.
    """

    data: Path | None = None
    size: str | None = None
    workers: int = 1
    compute: bool = True
    mix_code: bool = False


@dataclass(frozen=True)
class Section:
    """A further table of a page; `words` stand above it."""

    heading: str
    words: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True)
class Reproduction:
    """What was computed: a table with one row per published point, and the figures drawn.

    rows: one cell per column.  worst_relative_error: the largest |ours / expected - 1| over all rows; None where
    nothing was published that ours could be held against.  about: the words of the page that the command writes to
    STEM.md, `stem` the name of the result's files; without them none is written.  heading: of the table on that page.
    sections: its further tables.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    worst_relative_error: float | None
    notes: tuple[str, ...] = ()
    figures: tuple[Path, ...] = field(default=())
    stem: str = ""
    about: str = ""
    heading: str = "Ours beside theirs"
    sections: tuple[Section, ...] = ()

"""Published results computed again by this project's own code, each beside the number it is held against.

A result is a module of this package, listed in `NAMES`, with `reproduce(directory)`; one that trains many models is in
`LONG` too, and has `SIZES` and `reproduce(directory, means)`.
"""

from dataclasses import dataclass, field
from pathlib import Path

NAMES = (
    "sgmf_figure1",
    "sgmf_femnist",
    "sgmf_csgm",
    "denisov_table2",
    "tighter_accountant",
    "whole_run",
)
LONG = ("sgmf_femnist", "sgmf_csgm", "whole_run")

Cell = str | float | int | None


@dataclass(frozen=True)
class Means:
    """With what a result in `LONG` is computed.

    `data` is the file of the real data, without which what needs it is left out; `size` names one of the result's own
    `SIZES`, None its first; with `compute` false the page is made of the runs that are there.
    """

    data: Path | None = None
    size: str | None = None
    workers: int = 1
    compute: bool = True


@dataclass(frozen=True)
class Reproduction:
    """What was computed: a table with one row per published point, and the figures drawn.

    rows: one cell per column.  worst_relative_error: the largest |ours / expected - 1| over all rows; None where
    nothing was published that ours could be held against.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    worst_relative_error: float | None
    notes: tuple[str, ...] = ()
    figures: tuple[Path, ...] = field(default=())

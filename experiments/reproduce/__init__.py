"""Published results computed again by this project's own code, each beside the number it is held against.

A result is a module of this package with `reproduce(directory)`, listed in `NAMES`.
"""

from dataclasses import dataclass, field
from pathlib import Path

NAMES = ("sgmf_figure1", "denisov_table2", "tighter_accountant")

Cell = str | float | int | None


@dataclass(frozen=True)
class Reproduction:
    """What was computed: a table with one row per published point, and the figures drawn.

    rows: one cell per column.  worst_relative_error: the largest |ours / expected - 1| over all rows.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    worst_relative_error: float
    notes: tuple[str, ...] = ()
    figures: tuple[Path, ...] = field(default=())

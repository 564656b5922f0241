"""Published results computed again by this project's own code, each next to the number it is compared with.

`studies.yaml` has the results that train models; each of the others, in `CLOSED`, is a function (path, size) -> `Reproduction`
of the module of its paper, which draws the figure at `path`. Pages are written by hand; the command replaces the tables between their
marks.
"""

from dataclasses import dataclass
from pathlib import Path

CLOSED = {  # name: title, module, and the page with its tables, None without one
    "sgmf_figure1": ("Chen et al. 2024, Figure 1: the noise that sparsification costs", "chen", "chen"),
    "denisov_table2": ("Denisov et al. 2022, Table 2: root loss of prefix sums", "denisov", "denisov"),
    "denisov_solvers": (
        "Denisov et al. 2022, Figure 4: ways to the optimal factorization",
        "denisov",
        "denisov",
    ),
    "henzinger_counting": (
        "Henzinger et al. 2023, Figure 1: mean squared error of continual counting",
        "henzinger",
        "henzinger",
    ),
    "cited_numbers": ("Cited numbers of the three papers", "cited_numbers", "cited_numbers"),
    "tighter_accountant": (
        "What accountant=tight saves where Renyi divergence gives the first epsilon",
        "chen",
        None,
    ),
}
SIZED = ("denisov_solvers", "henzinger_counting")  # that come in several sizes, which their modules name
ROOT = Path(__file__).resolve().parents[2]

Value = str | float | int | None


@dataclass(frozen=True)
class Table:
    """A table of a result: `name` is that of its mark; the last `texts` columns are words; `note` is written below it."""

    name: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]
    texts: int = 0
    note: str = ""


# What was computed: tables, and the largest |ours / expected - 1| where numbers are expected, else None.
Reproduction = tuple[tuple[Table, ...], float | None]

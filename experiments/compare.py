"""Compare the runs below a directory: `python -m experiments.compare directory=DIR`.

Runs that differ in nothing but their seed are one group, shown as a mean with its standard error. Prints a
table (or JSON) and writes DIR/compare.csv and DIR/compare.html, a page with plots. `plots=FOLDER` also writes every plot
as PNG and SVG, as wide as a column of a paper. Unfinished and unreadable runs are named, not counted.
"""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.cli import command, output
from experiments.pages.comparison import (
    Comparison,
    claim,
    comparison_page,
    read_comparison,
    results_table,
    warnings,
)
from experiments.pages.page import PlotFiles, write_page
from experiments.settings.output import PRINTED, Output
from fedmf.checks import check_open_unit
from fedmf.setting import REQUIRED, setting
from server.files import write_output

CSV, PAGE = "compare.csv", "compare.html"


@dataclass(frozen=True)
class CompareSettings(PlotFiles):
    """Keys of the command; target_accuracy null: the largest multiple of 5 % that every group reaches."""

    directory: str = setting(REQUIRED, "folder: every run below it is compared")
    target_accuracy: float | None = setting(
        None,
        "what the bytes to reach it are counted for, in (0, 1); null: the largest multiple of 5 % "
        "that every group reaches",
    )
    output: Output = setting(Output.text, PRINTED)


def compare(settings: CompareSettings) -> None:
    """Print the comparison of the runs below `settings.directory`, and write it there as a page and a table."""
    if settings.target_accuracy is not None:
        check_open_unit("target_accuracy", settings.target_accuracy)
    compared = read_comparison(Path(settings.directory), settings.target_accuracy)
    document = compared.document
    files = write_page(comparison_page(compared), compared.directory / PAGE, settings)
    lines, rows = io.StringIO(newline=""), document["groups"]
    writer = csv.DictWriter(lines, list(rows[0]))
    writer.writeheader()
    writer.writerows(row | {"seeds": " ".join(map(str, row["seeds"]))} for row in rows)
    write_output(compared.directory / CSV, lines.getvalue().encode())
    written = [compared.directory / PAGE, compared.directory / CSV, *files]
    output.show(settings.output, document, lambda: _print(compared, written))


def _print(compared: Comparison, files: Sequence[Path]) -> None:
    """Print the results and where the files are."""
    results = results_table(compared)
    columns = {
        name: output.NUMBER if place in results.numbers else {} for place, name in enumerate(results.header)
    }
    title = f"Runs below {compared.directory}: mean ± standard error over seeds"
    output.print_table(title, columns, results.rows)
    left_out = [f"left out, {name}: {why}" for name, why in compared.left_out.items()]
    lines = [claim(compared.groups), *warnings(compared.groups), *left_out, *map(str, files)]
    output.console().print("\n".join(lines), markup=False)


if __name__ == "__main__":
    command.run(compare, "compare", CompareSettings, __doc__)

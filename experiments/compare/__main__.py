"""Compare the runs below a directory: `python -m experiments.compare directory=DIR`.

Runs that differ in nothing but their seed are one group, shown as a mean with its standard error. Prints a
table (or JSON) and writes DIR/compare.csv and DIR/compare.html, a page with plots. `plots=FOLDER` writes every plot
as PNG and SVG besides, sized for a paper. Unfinished and unreadable runs are named, not counted.
"""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table as RichTable

from experiments.cli import command, output
from experiments.compare.groups import (
    Group,
    as_document,
    common_accuracy,
    find_runs,
    group_runs,
)
from experiments.compare.page import claim, page, results_table, warnings
from experiments.pages.page import write_page
from experiments.pages.plot_files import PlotFiles, PlotWidth
from experiments.settings.output import PRINTED, Output
from fedmf.checks import check_open_unit
from fedmf.setting import REQUIRED, setting
from server.files import write_output

CSV, PAGE = "compare.csv", "compare.html"


@dataclass(frozen=True)
class CompareSettings:
    """Keys of the command; target_accuracy null: the largest multiple of 5 % that every group reaches."""

    directory: str = setting(REQUIRED, "folder: every run below it is compared")
    target_accuracy: float | None = setting(
        None,
        "what the bytes to reach it are counted for, in (0, 1); null: the largest multiple of 5 % "
        "that every group reaches",
    )
    output: Output = setting(Output.text, PRINTED)
    plots: str | None = setting(
        None,
        "a folder: every plot of the page also as PNG and SVG, sized for a paper; null: on the page only",
    )
    width: PlotWidth = setting(PlotWidth.column, "how wide those plots are, 3.25 or 6.75 inches")
    overwrite: bool = setting(False, "true: files of those names in plots are written over")


def compare(settings: CompareSettings) -> None:
    """Print the comparison of the runs below `settings.directory`, and write it there."""
    directory = Path(settings.directory)
    runs, left_out = find_runs(directory)
    groups = group_runs(runs)
    target = settings.target_accuracy
    if target is None:
        target = common_accuracy(groups)
    else:
        check_open_unit("target_accuracy", target)
    document = as_document(groups, left_out, target)
    whole = page(directory, groups, left_out, target)
    plots = PlotFiles(
        None if settings.plots is None else Path(settings.plots), settings.width, settings.overwrite
    )
    plots.refuse_what_is_there(whole)
    write_csv(directory / CSV, document["groups"])
    write_page(whole, directory / PAGE)
    written = plots.write(whole)
    if settings.output is Output.json:
        output.print_json(document)
    else:
        _print_table(directory, groups, left_out)
        output.print_files("plots", written)


def write_csv(file: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write one line for each group."""
    lines = io.StringIO(newline="")
    writer = csv.DictWriter(lines, list(rows[0]))
    writer.writeheader()
    for row in rows:
        writer.writerow(row | {"seeds": " ".join(map(str, row["seeds"]))})
    write_output(file, lines.getvalue().encode())


def _print_table(directory: Path, groups: Sequence[Group], left_out: Mapping[str, str]) -> None:
    """Print the results and where the files are."""
    results = results_table(groups)
    table = RichTable(title=f"Runs below {directory}: mean ± standard error over seeds")
    for index, name in enumerate(results.header):
        table.add_column(name, justify="right" if index in results.numbers else "left")
    for row in results.rows:
        table.add_row(*row)
    console = output.console()
    console.print(table)
    runs = [run for group in groups for run in group.runs]
    for sentence in (claim(runs), *warnings(groups)):
        console.print(sentence, highlight=False)
    for name, why in left_out.items():
        console.print(f"left out, {name}: {why}", highlight=False, markup=False)
    console.print(f"page: {directory / PAGE}\ntable: {directory / CSV}", highlight=False, soft_wrap=True)


if __name__ == "__main__":
    command.run(compare, "compare", CompareSettings, __doc__)

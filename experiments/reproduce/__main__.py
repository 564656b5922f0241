"""Compute a published result again: `python -m experiments.reproduce name=sgmf_figure1`.

Prints ours beside the expected numbers and writes the figures to `directory`. Names: see NAMES in
experiments/reproduce/__init__.py, also listed when an unknown one is given.
"""

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from rich.table import Table

from experiments.cli import command, output
from experiments.reproduce import NAMES, Cell, Reproduction
from experiments.settings.output import Output
from fedmf.checks import check_choice


@dataclass(frozen=True)
class ReproduceSettings:
    """Keys of the command."""

    name: str
    directory: str
    output: Output


def reproduce(settings: ReproduceSettings) -> None:
    """Compute and print the result named."""
    check_choice("name", settings.name, NAMES)
    module = import_module(f"experiments.reproduce.{settings.name}")
    directory = Path(settings.directory)
    directory.mkdir(parents=True, exist_ok=True)
    result: Reproduction = module.reproduce(directory)
    if settings.output is Output.json:
        output.print_json(as_document(settings.name, result))
    else:
        print_text(result)


def as_document(name: str, result: Reproduction) -> dict[str, object]:
    """Return the result as JSON-ready values."""
    return {
        "name": name,
        "title": result.title,
        "rows": [dict(zip(result.columns, row, strict=True)) for row in result.rows],
        "worst_relative_error": result.worst_relative_error,
        "notes": list(result.notes),
        "figures": [str(path) for path in result.figures],
    }


def print_text(result: Reproduction) -> None:
    """Print the result as a table for people."""
    console = output.console()
    table = Table(title=result.title)
    for column in result.columns:
        table.add_column(column, justify="right")
    for row in result.rows:
        table.add_row(*(_text(cell) for cell in row))
    console.print(table)
    for note in result.notes:
        console.print(note)
    console.print(f"Worst relative error: {result.worst_relative_error:.2g}.")
    for path in result.figures:
        console.print(f"Figure: {path}")


def _text(cell: Cell) -> str:
    if cell is None:
        return "-"
    return f"{cell:.6g}" if isinstance(cell, float) else str(cell)


if __name__ == "__main__":
    command.run(reproduce, "reproduce", ReproduceSettings, __doc__)

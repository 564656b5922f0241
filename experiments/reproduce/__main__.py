"""Compute a published result again: `python -m experiments.reproduce name=sgmf_figure1`.

Prints ours beside the expected numbers and writes the figures to `directory`. Names: see NAMES in
experiments/reproduce/__init__.py, also listed when an unknown one is given.
"""

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from omegaconf import MISSING, DictConfig
from rich.table import Table

from experiments.cli import command
from experiments.reproduce import NAMES, Cell, Reproduction
from experiments.settings.data import Output
from fedmf.checks import check_choice


@dataclass
class ReproduceConfig:
    """Keys of the command."""

    name: str = MISSING
    directory: str = "outputs/reproduce"
    output: Output = Output.text


def reproduce(config: DictConfig) -> None:
    """Compute and print the result named."""
    check_choice("name", config.name, NAMES)
    module = import_module(f"experiments.reproduce.{config.name}")
    directory = Path(config.directory)
    directory.mkdir(parents=True, exist_ok=True)
    result: Reproduction = module.reproduce(directory)
    if config.output is Output.json:
        command.print_json(as_document(config.name, result))
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
    console = command.console()
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
    command.run(reproduce, "reproduce", ReproduceConfig, __doc__)

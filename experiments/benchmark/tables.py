"""The results as tables: for the terminal, and in Markdown for docs/performance.md."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from experiments.cli import output

Results = Mapping[str, Mapping[str, Any]]
Lines = list[Sequence[str]]

HEADINGS = ("row", "ratio", "goal", "ours", "floor", "what the floor is")
TITLE = "CPU time of one thread (wire_: bytes) over the floor of the same turn"
ON_DEVICE = "Wall time, the device having done its work, over the floor of the same turn"
COMPARED = "CPU time of a round, children included, and its ratio to the bare loop of the same turn"
NAMES = {"pfl": "pfl", "flower": "Flower's engine"}


def rows(results: Results) -> Lines:
    """Return one line a row, in the order of `HEADINGS`."""
    return [
        (
            name,
            f"{row['ratio']:.3g}",
            "-" if row["goal"] is None else f"{row['goal']:.3g}",
            *_sizes(row),
            row["floor_is"],
        )
        for name, row in results.items()
    ]


def compared(results: Results) -> tuple[Sequence[str], Lines]:
    """Return headings and lines of the rows in which other systems took turns: the bare loop, ours, theirs."""
    beside = {name: row for name, row in results.items() if "others" in row}
    others = list(dict.fromkeys(other for row in beside.values() for other in row["others"]))
    headings = ("row", "bare loop", "ours", *(NAMES[other] for other in others))
    lines: Lines = [
        (name, milliseconds(row["floor"]), _cell(row), *(_cell(row["others"][other]) for other in others))
        for name, row in beside.items()
    ]
    return headings, lines


def print_tables(results: Results, device: str) -> None:
    """Print a table of all rows, and one of those in which other systems took turns."""
    _print(TITLE if device == "cpu" else ON_DEVICE, HEADINGS, rows(results))
    headings, lines = compared(results)
    if lines:
        _print(COMPARED, headings, lines)


def markdown(headings: Sequence[str], lines: Lines) -> str:
    """Return a table in Markdown; all columns are set to the right but the first and a last of words.

    >>> print(markdown(("row", "ratio"), [("mask", "3.4")]))
    | row | ratio |
    |---|---:|
    | mask | 3.4 |
    """
    marks = ["---" if heading in (HEADINGS[0], HEADINGS[-1]) else "---:" for heading in headings]
    cells = [" | ".join(cell.replace("|", r"\|") for cell in line) for line in (headings, *lines)]
    return "\n".join([f"| {cells[0]} |", "|" + "|".join(marks) + "|", *(f"| {line} |" for line in cells[1:])])


def milliseconds(seconds: float) -> str:
    """Return a time with three digits.

    >>> milliseconds(1.2345)
    '1,230 ms'
    """
    return f"{float(f'{1e3 * seconds:.3g}'):,g} ms"


def _cell(measured: Mapping[str, float]) -> str:
    return f"{milliseconds(measured['seconds'])} ({measured['ratio']:.3g})"


def _sizes(row: Mapping[str, Any]) -> tuple[str, str]:
    """Return what we need and the floor, in the unit of the row."""
    if "bytes" in row:
        return f"{row['bytes']:,.0f} B", f"{row['floor']:,.0f} B"
    return milliseconds(row["seconds"]), milliseconds(row["floor"])


def _print(title: str, headings: Sequence[str], lines: Lines) -> None:
    table = Table(title=title)
    table.add_column(headings[0], no_wrap=True)
    for heading in headings[1:]:
        table.add_column(heading, justify="left" if heading == HEADINGS[-1] else "right")
    for line in lines:
        table.add_row(*line)
    output.console().print(table)

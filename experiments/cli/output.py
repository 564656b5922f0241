"""What a command prints on stdout: a table for people, or one JSON document for programs."""

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from experiments.settings.values import Output, finite

if TYPE_CHECKING:
    from rich.console import Console

NUMBER: dict[str, Any] = {"justify": "right"}  # how a column of numbers is printed


def console() -> "Console":
    """Return a console for results, as wide as the terminal, and wide enough for any table where there is none."""
    from rich.console import Console  # JSON has no need of it

    class Results(Console):
        def on_broken_pipe(self) -> None:
            """Leave it to the command, which ends as SIGPIPE ends it; rich would exit with 1."""
            raise

    return Results(width=None if sys.stdout.isatty() else 140, soft_wrap=True, highlight=False)


def show(form: Output, document: Any, print_text: Callable[[], object]) -> None:
    """Print what a command found: as one JSON document, infinite and undefined numbers null, or as `print_text` does for people."""
    if form == "json":
        print(json.dumps(finite(document), indent=2))
    else:
        print_text()


def print_table(
    title: str,
    columns: Mapping[str, Mapping[str, Any]],
    rows: Iterable[Iterable[str]],
    **style: Any,
) -> None:
    """Print a table with {heading: options of rich's column} for its columns; without any they are names and values."""
    from rich.table import Column, Table  # JSON has no need of it

    made = [Column(heading, **options) for heading, options in columns.items()]
    table = Table(*made, title=title, show_header=bool(made), **style)
    for row in rows:
        table.add_row(*row)
    console().print(table)

"""What the programs of a checkout share: a command line, the progress of minutes, and pages and files whose tables they write.

A page is written by hand; the text between two marks is replaced, every other byte stays:

<!-- reproduce: sgmf_femnist_laptop: noise -->
...
<!-- /reproduce -->
"""

import csv
import io
import platform
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from omegaconf import OmegaConf
from rich.console import Console
from rich.progress import track

from experiments.cli.command import end_with
from experiments.reproduce import Table, Value
from experiments.settings.values import defaults, make
from fedmf import compiling
from fedmf.errors import SettingError
from server.files import write_atomically

T = TypeVar("T")


def run(
    function: Callable[[T], object], settings: type[T], doc: str, argv: Sequence[str] | None = None
) -> NoReturn:
    """Call `function` with the settings of the command line, KEY=VALUE for the fields of a frozen dataclass, and exit.

    The exit code is 0, or 2 with one sentence for a mistake.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)

    def action() -> None:
        if {"-h", "--help"} & {*arguments}:
            known: Any = fields(settings)  # type: ignore[arg-type]
            keys = (f"  {one.name} ({one.default}): {one.metadata['means']}" for one in known)
            print(doc.strip(), "", *keys, sep="\n")
        else:
            given: Any = OmegaConf.to_container(OmegaConf.from_dotlist(arguments))
            function(make(settings, {**defaults(settings), **given}))

    end_with(action)


def progress(items: Sequence[T], words: str) -> Iterable[T]:
    """Return the items, with a bar on stderr that tells how many are done."""
    return track(items, words, console=Console(stderr=True))


def computed(
    name: str, columns: Sequence[str], row: Callable[[T], tuple[Value, ...]], items: Sequence[T]
) -> Table:
    """Return a table with the row of each item; a bar on stderr tells how many are done."""
    return Table(name, tuple(columns), tuple(row(item) for item in progress(items, name)))


def update(path: Path, tool: str, blocks: Mapping[str, str]) -> set[str]:
    """Replace the blocks that have a mark on the page, and return the names of the others; a missing page has no mark."""
    text = path.read_bytes().decode() if path.exists() else ""
    absent, end = set(), f"<!-- /{tool} -->"
    for name, block in blocks.items():
        before, mark, rest = text.partition(f"<!-- {tool}: {name} -->")
        _, closed, after = rest.partition(end)
        if not mark:
            absent.add(name)
        elif not closed:
            raise SettingError(f"{path}: {mark} lacks {end} after it.")
        else:
            text = f"{before}{mark}\n\n{block}\n\n{end}{after}"
    if len(absent) < len(blocks):
        write_atomically(path, text.encode())
    return absent


def write_csv(path: Path, table: Table) -> None:
    """Write a table as CSV: numbers as in a page's tables, nothing for a missing value, the note as a comment above."""
    lines = io.StringIO()
    lines.write(f"# {table.note}\n" if table.note else "")
    rows = (["" if value is None else text(value) for value in row] for row in table.rows)
    csv.writer(lines, lineterminator="\n").writerows([table.columns, *rows])
    write_atomically(path, lines.getvalue().encode())


def markdown(table: Table) -> str:
    """Return a table in Markdown, with its note below; numbers are set to the right.

    >>> print(markdown(Table("t", ("row", "ratio"), (("mask", 3.4),))))
    | row | ratio |
    | ---: | ---: |
    | mask | 3.4 |
    """
    marks = ["---:"] * (len(table.columns) - table.texts) + [":---"] * table.texts
    rows = [table.columns, marks, *([text(value) for value in row] for row in table.rows)]
    lines = [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows]
    return "\n".join([*lines, *(["", table.note] if table.note else [])])


def text(value: Value) -> str:
    """Return a value as it is written in a table: seven digits of a number that is not whole.

    >>> text(216.945543), text(1024), text(None), text(1.5e-9)
    ('216.9455', '1024', '–', '1.5e-09')
    """
    if value is None:
        return "–"
    return f"{value:.7g}" if isinstance(value, float) else str(value)


def where() -> str:
    """Return the day, the processor, and the versions that decide times."""
    versions = {name: version(name) for name in ("torch", "numpy")} | {"numba": compiling.version()}
    named = [f"{name} {number}" for name, number in versions.items() if number is not None]
    return (
        f"{date.today().isoformat()}, {processor()}, Python {platform.python_version()}, {', '.join(named)}."
    )


def processor() -> str:
    """Return the model of the processor, its architecture where the system does not say more."""
    file = Path("/proc/cpuinfo")
    names = re.findall(r"^model name\s*: (.*)$", file.read_text() if file.exists() else "", re.MULTILINE)
    return str(names[0]) if names else platform.machine()

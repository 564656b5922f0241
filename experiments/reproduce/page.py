"""Hand-written pages whose tables a command writes: what stands between two marks is replaced, every other byte stays.

<!-- reproduce: sgmf_femnist_laptop: noise -->
...
<!-- /reproduce -->
"""

import platform
from collections.abc import Mapping, Sequence
from datetime import date
from importlib.metadata import version
from pathlib import Path

from experiments.reproduce import Table, Value
from fedmf import compiling
from fedmf.errors import SettingError
from server.files import write_atomically

NONE = "–"


def update(path: Path, tool: str, blocks: Mapping[str, str]) -> None:
    """Replace the blocks that have a mark on the page; one that has none of them yet gets them all at its end."""
    text = path.read_bytes().decode() if path.exists() else ""
    if not any(mark(tool, name) in text for name in blocks):
        text += "".join(f"\n## {name}\n\n{mark(tool, name)}{end(tool)}\n" for name in blocks)
    for name in (name for name in blocks if mark(tool, name) in text):
        before, _, rest = text.partition(mark(tool, name))
        _, closed, after = rest.partition(end(tool))
        if not closed:
            raise SettingError(f"{path}: {mark(tool, name)} lacks {end(tool)} after it.")
        text = f"{before}{mark(tool, name)}\n\n{blocks[name]}\n\n{end(tool)}{after}"
    write_atomically(path, text.encode())


def mark(tool: str, name: str) -> str:
    """Return the mark above a block."""
    return f"<!-- {tool}: {name} -->"


def end(tool: str) -> str:
    """Return the mark below a block."""
    return f"<!-- /{tool} -->"


def markdown(table: Table) -> str:
    """Return a table in Markdown, with its note below; numbers are set to the right.

    >>> print(markdown(Table("t", ("row", "ratio"), (("mask", 3.4),))))
    | row | ratio |
    | ---: | ---: |
    | mask | 3.4 |
    """
    marks = ["---:"] * (len(table.columns) - table.texts) + [":---"] * table.texts
    lines = [table.columns, marks, *([text(value) for value in row] for row in table.rows)]
    return "\n".join([*map(_line, lines), *(["", table.note] if table.note else [])])


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def text(value: Value) -> str:
    """Return a value as it is written in a table: seven digits of a number that is not whole.

    >>> text(216.945543), text(1024), text(None), text(1.5e-9)
    ('216.9455', '1024', '–', '1.5e-09')
    """
    if value is None:
        return NONE
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
    lines = file.read_text().splitlines() if file.exists() else []
    return next(
        (line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine()
    )

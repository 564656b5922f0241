"""A page whose tables the benchmark writes: what stands between two marks is replaced, every other byte stays.

<!-- benchmark: rows -->
...
<!-- /benchmark -->
"""

import platform
from collections.abc import Mapping
from datetime import date
from importlib.metadata import version
from pathlib import Path

from experiments.benchmark.limits import processor
from fedmf import compiling
from fedmf.errors import SettingError
from server.files import write_atomically

ROWS, COMPARED = "rows", "compared"
_END = "<!-- /benchmark -->"


def read(path: Path, names: tuple[str, ...]) -> str:
    """Return the text of the page. Raises `SettingError` where one of the tables called `names` has no place in it."""
    if not path.is_file():
        raise SettingError(
            f"page is {path}, which is no file; it must be a page with the marks of the tables."
        )
    text = path.read_bytes().decode()
    for name in names:
        _place(text, name, path)
    return text


def write(path: Path, tables: Mapping[str, str]) -> None:
    """Replace the tables called as the keys of `tables` in the page."""
    text = read(path, tuple(tables))
    for name, table in tables.items():
        start, end = _place(text, name, path)
        text = f"{text[:start]}\n\n{table}\n\n{text[end:]}"
    write_atomically(path, text.encode())


def where() -> str:
    """Return the day, the processor, and the versions that decide the times."""
    versions = {name: version(name) for name in ("torch", "numpy")} | {"numba": compiling.version()}
    named = [f"{name} {number}" for name, number in versions.items() if number is not None]
    return (
        f"{date.today().isoformat()}, {processor()}, Python {platform.python_version()}, {', '.join(named)}."
    )


def _place(text: str, name: str, path: Path) -> tuple[int, int]:
    """Return where the table called `name` starts and ends."""
    mark = f"<!-- benchmark: {name} -->"
    end = text.find(_END, text.find(mark))
    if text.count(mark) != 1 or end < 0:
        raise SettingError(
            f"page is {path}, where the table {name!r} has no place; it must hold {mark} and {_END} once."
        )
    return text.find(mark) + len(mark), end

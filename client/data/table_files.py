"""Tables of examples as they are stored: CSV, parquet, a saved Hugging Face data set, and folders of pictures.

Each becomes one `Table` of the columns that are used. Needs pyarrow, an extra: `client.data.by_user_tables` imports it
where it is needed.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from client.data.reading import PARSERS_RAISE, brief, reading
from client.data.table import Columns, Table
from client.imports import need
from fedmf.errors import DataError

AT_ONCE = 1 << 14
"""Rows of parquet that are decoded together: of lists, what parquet needs for it is ten times what they are."""
KINDS = (".png", ".jpg", ".jpeg")
SPLITS = ("train", "test")
_OF_SYSTEMS = {"thumbs.db", "desktop.ini"}  # besides hidden files: what a system puts beside pictures


def read_csv(path: Path, columns: Columns, delimiter: str, folder: Path | None = None) -> Table:
    """Return a CSV file, or the CSV files of a folder, as a table; `folder`: where the files that it names lie.

    Users, texts, labels and names of files are read as texts, so that 7 and 007 stay two users. Numbers are float32 from
    the start. If a cell of these is no number, all columns are read as texts instead: what is a number is then said cell
    by cell (`client.data.table`), and the numbers are the same, but it takes more memory.
    """
    files = _listed(path, "CSV", ["*.csv"])
    names, types = _first_line(files[0], delimiter)
    texts = {*columns.roles, columns.label, columns.text, columns.file}
    kinds = {
        name: pa.string() if name in texts or not _begins_as_number(types[name]) else pa.float32()
        for name in columns.used(names)
    }
    parts = []
    # What else the error is, the second reading says; it begins when the first error, which quotes a cell, is forgotten.
    with suppress(pa.ArrowException, *PARSERS_RAISE):
        parts = [_part(file, kinds, delimiter) for file in files]
    if not parts:
        kinds = dict.fromkeys(kinds, pa.string())
        for file in files:
            with reading(file, "CSV", also=(pa.ArrowException,)):
                parts.append(_part(file, kinds, delimiter))
    with reading(path, "CSV files with the same columns"):
        return Table(path, pa.concat_tables(parts), names, typed=False, folder=folder)


def _listed(path: Path, kind: str, patterns: Sequence[str]) -> list[Path]:
    """Return a file, or the files of a folder that have one of the `patterns`, in the order of their names."""
    files = (
        [path] if path.is_file() else sorted({file for pattern in patterns for file in path.glob(pattern)})
    )
    if not files:
        problem = f"folder {path} holds no {kind} file" if path.is_dir() else f"file {path} does not exist"
        raise DataError(f"The data {problem}; path must name a {kind} file, or a folder of them.")
    return files


def _first_line(file: Path, delimiter: str) -> tuple[list[str], dict[str, Any]]:
    """Return the columns that the first line of a CSV file names, and the types that its beginning shows."""
    with reading(file, "CSV"), pyarrow.csv.open_csv(file, parse_options=_parsing(delimiter)) as reader:
        names, kinds = reader.schema.names, reader.schema.types  # names are decoded here
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        # By their places: in a file that names no columns the first line is somebody's row.
        first, second = [place for place, name in enumerate(names, start=1) if name == twice[0]][:2]
        raise DataError(
            f"{file} names its columns {first} and {second} alike; every column must have a name of its own."
        )
    return names, dict(zip(names, kinds, strict=True))


def _part(file: Path, kinds: dict[str, Any], delimiter: str) -> Any:
    """Return one file as an Arrow table; raises what Arrow raises for a cell that is not of its column's kind."""
    converting = pyarrow.csv.ConvertOptions(column_types=kinds, include_columns=list(kinds))
    return pyarrow.csv.read_csv(file, parse_options=_parsing(delimiter), convert_options=converting)


def _begins_as_number(kind: Any) -> bool:
    """Return whether to try a column as numbers, by the type that its beginning shows: null where it is empty."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind))


def _parsing(delimiter: str) -> Any:
    return pyarrow.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)


def read_parquet(path: Path, columns: Columns, folder: Path | None = None) -> Table:
    """Return a parquet file, or those of a folder, as a table; `folder`: where the files that it names lie."""
    files = _listed(path, "parquet", ["*.parquet", "data/*.parquet"])
    with reading(path, "parquet", also=(pa.ArrowException,)):
        opened = [pyarrow.parquet.ParquetFile(file) for file in files]
        schema = opened[0].schema_arrow
    for file, other in zip(files, opened, strict=True):
        if not other.schema_arrow.equals(schema):
            raise DataError(
                f"{file} has other columns than {files[0]}; the files of a folder must have the same."
            )
    used = columns.used(schema.names)
    with reading(path, "parquet", also=(pa.ArrowException,)):
        batches = (batch for part in opened for batch in part.iter_batches(AT_ONCE, columns=used))
        held = pa.Table.from_batches(batches, pa.schema([schema.field(name) for name in used]))
    return Table(path, held, schema.names, folder=folder)


def read_saved(path: Path, columns: Columns) -> Table:
    """Return a data set that `save_to_disk` wrote, memory-mapped: of a `DatasetDict` the rows of train, then of test."""
    if not path.is_dir():
        problem = "is no folder" if path.exists() else "does not exist"
        raise DataError(
            f"The data folder {path} {problem}; path must name the folder that save_to_disk wrote."
        )
    library = need("datasets", f"Reading {path}")
    try:
        saved = library.load_from_disk(str(path))
    except Exception as error:  # of many kinds, by what is missing or damaged
        states = (state for state in sorted(path.rglob("state.json")) if _is_empty(state))
        if empty := next(states, None):
            raise DataError(f"{empty.parent} holds no rows; every split must hold some.") from error
        raise DataError(
            f"{path} cannot be read as a data set that save_to_disk wrote ({brief(error)})."
        ) from error
    test, parts = None, [saved]
    if isinstance(saved, library.DatasetDict):
        if absent := [name for name in SPLITS if name not in saved]:
            raise DataError(
                f"{path} has the splits {', '.join(saved)} but no {absent[0]}; it must have train and test, or set path to "
                "the folder of one split."
            )
        parts = [saved[name] for name in SPLITS]
        test = np.repeat([False, True], [len(part) for part in parts])
        if len(np.unique(test)) < len(SPLITS):
            raise DataError(f"A split of {path} holds no rows; train and test must both hold some.")
        if parts[0].features != parts[1].features:
            raise DataError(
                f"The splits train and test of {path} have other columns; they must have the same."
            )
    stored = [part.flatten_indices() if part._indices is not None else part for part in parts]
    used = columns.used(stored[0].column_names)
    with reading(path, "a data set that save_to_disk wrote", also=(pa.ArrowException,)):
        held = pa.concat_tables([part.data.table.select(used) for part in stored])
    names = {
        name: tuple(kind.names)
        for name, kind in stored[0].features.items()
        if isinstance(kind, library.ClassLabel)
    }
    return Table(path, held, stored[0].column_names, test, names)


def _is_empty(state: Path) -> bool:
    """Return whether the data set that a file state.json describes was saved without rows, and so without files."""
    try:
        return bool(json.loads(state.read_text(encoding="utf-8")).get("_data_files") == [])
    except (OSError, ValueError, AttributeError):
        return False


def read_folders(folder: Path) -> Table:
    """Return a table of the pictures at USER/LABEL/FILE, below train and test where these are the only folders."""
    split = {entry.name for entry in _entries(folder)} == {*SPLITS}
    found = [
        (str(file.relative_to(folder)), user, label, part == "test")
        for part in (SPLITS if split else [""])
        for user, label, file in _pictures(folder / part)
    ]
    if not found:
        raise DataError(f"{folder} holds no pictures; they must lie at {folder}/USER/LABEL/FILE.")
    *columns, test = map(list, zip(*found, strict=True))
    with reading(folder, "pictures in folders whose names are UTF-8"):
        held = pa.table(dict(zip(("file_name", "user", "label"), columns, strict=True)))
    tested = np.array(test) if split else None
    return Table(folder, held, held.column_names, tested, typed=False, folder=folder)


def _pictures(folder: Path) -> Iterator[tuple[str, str, Path]]:
    """Yield (user, label, file) of each picture, in the order of their names."""
    for user in _entries(folder):
        for label in _entries(user):
            for file in _entries(label):
                if file.suffix.lower() not in KINDS:
                    raise DataError(f"{file} is no picture; a picture ends in {', '.join(KINDS)}.")
                yield user.name, label.name, file


def _entries(folder: Path) -> list[Path]:
    """Return what lies in a folder, in the order of names, without what systems put there."""
    if not folder.is_dir():
        raise DataError(f"{folder} is no folder; pictures must lie at USER/LABEL/FILE below the path.")
    with reading(folder, "a folder"):
        entries = [entry for entry in folder.iterdir() if not entry.name.startswith(".")]
    return sorted(entry for entry in entries if entry.name.lower() not in _OF_SYSTEMS)

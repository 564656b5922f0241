"""Your own table: CSV with a user and a label or text in each row, columns by name."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from client.data.by_user_table import LICENCE, SOURCE, TEST_USERS, Columns, OfText, from_table
from client.data.dataset import Dataset
from client.data.reading import PARSERS_RAISE, reading
from client.data.table import Table
from client.imports import need
from fedmf.errors import DataError, SettingError

__all__ = ["LICENCE", "SOURCE", "TEST_USERS", "load"]


def load(
    path: str | Path,
    *,
    user: str = "user",
    label: str = "label",
    features: Sequence[str] | None = None,
    text: str | None = None,
    split: str | None = None,
    classes: int | None = None,
    labels: Sequence[str] | None = None,
    delimiter: str = ",",
    vocabulary: str | None = None,
    vocabulary_size: int | None = None,
    level: str | None = None,
    length: int | None = None,
    clients_only: bool = False,
) -> Dataset:
    """Return the data set in a CSV file whose first line names the columns, or in the *.csv files of a folder.

    Each row is an example of the user in the column `user`. Its input is the `features`, columns of numbers (None: all
    other columns, of which the test rows, or most rows with `clients_only`, must hold numbers) as float32 [n, features], taken as they are, and its target the column `label`: whole numbers from
    0, or names, which `labels` lists; or both are the column `text`, as in by_user_text. `split`
    names a column of 0 or train, 1 or test (None: the column split, if there is one; else a fifth of each user's rows
    is the test set). With `clients_only` no test input is made. Raises `DataError` for a missing or malformed file.
    """
    columns = Columns(user, label, features=features, text=text, split=split)
    return from_table(
        "by_user_csv",
        read_csv(Path(path), columns, delimiter),
        columns,
        classes=classes,
        labels=labels,
        of_text=OfText(vocabulary, vocabulary_size, level, length),
        clients_only=clients_only,
    )


def read_csv(path: Path, columns: Columns, delimiter: str, *, more_texts: Sequence[str] = ()) -> Table:
    """Return a CSV file, or the CSV files of a folder, as a table.

    Users, texts, labels and `more_texts` are read as texts, so that 7 and 007 stay two users.
    """
    if len(delimiter) != 1:
        raise SettingError(f"delimiter is {delimiter!r}; it must be one character.")
    arrow = need("pyarrow", f"Reading {path}")
    files = [path] if path.is_file() else sorted(path.glob("*.csv"))
    if not files:
        problem = "folder {} holds no CSV file" if path.is_dir() else "file {} does not exist"
        raise DataError(f"The data {problem.format(path)}; path must name a CSV file, or a folder of them.")
    names = _names(files[0], delimiter)
    columns.refuse_near(path, list(names), may_be_inputs=not more_texts)
    texts = {columns.user, columns.label, columns.text, columns.split or "split", *more_texts}
    kinds = {
        name: arrow.string() if name in texts or not _begins_as_number(arrow, kind) else arrow.float32()
        for name, kind in names.items()
        if columns.features is None or name in texts or name in columns.features
    }
    table = _table(path, files, kinds, delimiter)
    return Table(
        path,
        dict(zip(table.column_names, table.schema.types, strict=True)),
        table.num_rows,
        table.column,
        typed=False,
    )


def _names(file: Path, delimiter: str) -> dict[str, Any]:
    """Return the columns that the first line of a CSV file names, with the types that its beginning shows."""
    csv = need("pyarrow.csv", f"Reading {file}")
    with reading(file, "CSV"), csv.open_csv(file, parse_options=_parsing(delimiter)) as reader:
        names, kinds = reader.schema.names, reader.schema.types  # names are decoded here
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        # By their places: in a file that names no columns the first line is somebody's row.
        first, second = [place for place, name in enumerate(names, start=1) if name == twice[0]][:2]
        raise DataError(
            f"{file} names its columns {first} and {second} alike; every column must have a name of its own."
        )
    return dict(zip(names, kinds, strict=True))


def _table(path: Path, files: Sequence[Path], kinds: dict[str, Any], delimiter: str) -> Any:
    """Return files as one Arrow table with the columns `kinds`, numbers as float32 from the start.

    If a cell of these is no number, all columns are read as texts instead: what is a number is then said cell
    by cell (`client.data.cells`), and the numbers are the same, but it takes more memory.
    """
    arrow = need("pyarrow", f"Reading {path}")
    parts = []
    # What else the error is, the second reading says; it begins when the first error, which quotes a cell, is forgotten.
    with suppress(arrow.ArrowException, *PARSERS_RAISE):
        parts = [_part(file, kinds, delimiter) for file in files]
    if not parts:
        kinds = dict.fromkeys(kinds, arrow.string())
        for file in files:
            with reading(file, "CSV", also=(arrow.ArrowException,)):
                parts.append(_part(file, kinds, delimiter))
    with reading(path, "CSV files with the same columns"):
        return arrow.concat_tables(parts)


def _part(file: Path, kinds: dict[str, Any], delimiter: str) -> Any:
    """Return one file as an Arrow table; raises what Arrow raises for a cell that is not of its column's kind."""
    csv = need("pyarrow.csv", f"Reading {file}")
    converting = csv.ConvertOptions(column_types=kinds, include_columns=list(kinds))
    return csv.read_csv(file, parse_options=_parsing(delimiter), convert_options=converting)


def _begins_as_number(arrow: Any, kind: Any) -> bool:
    """Return whether to try a column as numbers, by the type that its beginning shows: null where it is empty."""
    types = arrow.types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_null(kind))


def _parsing(delimiter: str) -> Any:
    csv = need("pyarrow.csv", "Reading CSV")
    return csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)

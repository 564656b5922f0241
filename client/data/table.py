"""A table on disk with named columns, read column by column: CSV, parquet, or a Hugging Face data set.

Columns stay as Arrow holds them, memory-mapped where the format allows it, until they become one array each.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from client.data.cells import are_mostly_numbers, numbers_of, odd_row
from client.data.reading import reading
from client.data.split import SPLIT_SEED, fifth_of_each
from client.data.texts_of import without_broken_texts
from client.imports import need
from fedmf.errors import DataError

Column = Any
"""A pyarrow.ChunkedArray."""

_SPLITS = {"train": 0, "test": 1, "0": 0, "1": 1, "false": 0, "true": 1}


@dataclass(frozen=True)
class Table:
    """Columns by name: `types` are Arrow's, `read(name)` returns one column, `rows` is their length.

    `test` [rows] says which rows are test rows where the files are split already. `class_names` are those that the
    table's schema declares for a column of label numbers. A table that is not `typed` may hold numbers as texts.
    """

    path: Path
    types: dict[str, Any]
    rows: int
    read: Callable[[str], Column]
    test: np.ndarray | None = None
    class_names: dict[str, tuple[str, ...]] = field(default_factory=dict)
    typed: bool = True

    def column(self, name: str, key: str, *, may_be_empty: bool = False) -> Column:
        """Return a column, or raise `DataError` about the setting `key` that names it.

        Empty cells are refused unless they are one user's values (`may_be_empty`), which are looked at when that
        client is read: they must not decide whether a run happens. Texts that are not UTF-8 are empty cells then.
        """
        if name not in self.types:
            # The first line of a text file that names no columns is somebody's row.
            held = (
                f"it has {', '.join(self.types) or 'none'}: set {key} to one of them"
                if self.typed
                else f"set {key} to one of the {len(self.types)} columns that its first line names"
            )
            raise DataError(f"{self.path} has no column {name!r}; {held}.")
        arrow = need("pyarrow", f"Reading {self.path}")
        with reading(f"The column {name!r} of {self.path}", "a table", also=(arrow.ArrowException,)):
            column = self.read(name)
            if may_be_empty and is_struct(column.type):
                column = encoded(column)  # what else such a row holds is not looked at
            try:
                column.validate(full=True)  # also that texts are UTF-8: nothing after this fails
            except arrow.ArrowException:
                if not may_be_empty:
                    raise
                column = without_broken_texts(column)
        if column.null_count and not may_be_empty:
            raise DataError(
                f"The column {name!r} of {self.path} is empty in {column.null_count} of {self.rows} rows; it must hold a "
                "value in each."
            )
        return column


@dataclass(frozen=True)
class Users:
    """Who the rows of a table belong to: row i to the user `names[numbers[i]]`, `names` being in their order."""

    numbers: np.ndarray
    names: Sequence[str | int]

    def test_rows(self, *, may_be_none: bool = False) -> np.ndarray:
        """Return which rows are test rows where nothing says it: a fifth of each user's, by the user's name."""
        return fifth_of_each(self.numbers, seed=SPLIT_SEED, names=self.names, may_be_none=may_be_none)


def users_of(table: Table, name: str) -> Users:
    """Return the users of the rows, in the order of their names (numbers, or texts).

    Names are whole numbers or texts, taken as they are: "7" and "007" are two users.
    """
    types = need("pyarrow.types", f"Reading {table.path}")
    column = plain(table.column(name, "user"))
    if not (types.is_integer(column.type) or is_text(column.type)):
        raise DataError(
            f"The column {name!r} of {table.path} is {column.type}; it must name users by whole numbers or texts."
        )
    numbers, ids = ranked(column)
    if not ids:
        raise DataError(f"{table.path} holds no rows; it must hold one for each example.")
    if "" in ids:
        raise DataError(
            f"The column {name!r} of {table.path} names no user in {int((numbers == ids.index('')).sum())} of "
            f"{table.rows} rows; every example must belong to a user."
        )
    return Users(numbers, ids)


def test_rows(table: Table, name: str | None) -> np.ndarray | None:
    """Return which rows are test rows: by the files, by the column `name` (None: `split`, if there is one), or None."""
    if name is None and (table.test is not None or "split" not in table.types):
        return table.test
    name = name or "split"
    column = plain(table.column(name, "split"))
    types = need("pyarrow.types", f"Reading {table.path}")
    if not (types.is_integer(column.type) or types.is_boolean(column.type) or is_text(column.type)):
        raise DataError(
            f"The column {name!r} of {table.path} is {column.type}; it must hold 0 or train, 1 or test."
        )
    numbers, values = ranked(column)
    meanings = [_SPLITS.get(str(value).lower()) for value in values]
    if None in meanings:
        row = int(np.argmax(numbers == meanings.index(None))) + 1
        raise DataError(
            f"The column {name!r} of {table.path} holds neither in row {row}; it must hold 0 or train, 1 or test."
        )
    chosen: np.ndarray = np.array(meanings, dtype=np.int64)[numbers] == 1
    return chosen


def ranked(column: Column) -> tuple[np.ndarray, list[Any]]:
    """Return (numbers int64 [rows], values): each row's place among the distinct values in increasing order, -1: empty."""
    coded = column.dictionary_encode().unify_dictionaries()
    values = coded.chunk(0).dictionary.to_pylist() if coded.num_chunks else []
    order = sorted(range(len(values)), key=values.__getitem__)
    place = np.empty(len(values) + 1, dtype=np.int64)
    place[order] = np.arange(len(values))
    place[-1] = -1  # where the code of an empty cell points
    codes = [chunk.indices.fill_null(-1).to_numpy(zero_copy_only=False) for chunk in coded.chunks]
    return place[np.concatenate([np.empty(0, np.int64), *codes]).astype(np.int64)], [
        values[number] for number in order
    ]


def numeric_columns(
    table: Table, others: Sequence[str | None], test: np.ndarray, *, clients_only: bool = False
) -> list[str]:
    """Return the columns that are features when none are named: all but `others`, which must be numbers.

    In a table without types the rows where `test` [rows] is true must be numbers; with `clients_only` most rows.
    """
    names = [name for name in table.types if name not in others and not name.startswith("__index_level_")]
    odd = next(
        (what for name in names if (what := _no_number(table, name, test, clients_only=clients_only))), None
    )
    if odd or not names:
        what = (
            f"The column {odd}, no number"
            if odd
            else f"{table.path} has no column of numbers besides {', '.join(name for name in others if name)}"
        )
        raise DataError(f"{what}; name the columns of the inputs in features, or set text or image to one.")
    return names


def _no_number(table: Table, name: str, test: np.ndarray, *, clients_only: bool = False) -> str | None:
    """Return why a column is no column of numbers, or None: by its type, or in a table without types by its cells.

    Each of the `test` rows says it; with `clients_only` most rows, so that no single one does.
    """
    if is_number(table.types[name]):
        return None
    if table.typed or not is_text(table.types[name]):
        return f"{name!r} of {table.path} is {table.types[name]}"
    column = table.column(name, "features", may_be_empty=True)
    if clients_only:
        return (
            None
            if are_mostly_numbers(column)
            else f"{name!r} of {table.path} holds other things in most rows"
        )
    row = odd_row(column, test)
    return (
        None if row is None else f"{name!r} of {table.path} holds something else in row {row + 1}, a test row"
    )


def numbers(
    table: Table, names: Sequence[str], test: np.ndarray, *, clients_only: bool = False
) -> np.ndarray:
    """Return float32 [rows, columns] of columns of numbers; an empty cell is not a number.

    Nor is what else is no number in a training row of a table without types; `test` [rows] says which are test rows. In
    one of these it is a `DataError`, but not with `clients_only`, where no test set is needed.
    """
    types = need("pyarrow.types", f"Reading {table.path}")
    x = np.empty((table.rows, len(names)), dtype=np.float32)
    for place, name in enumerate(names):
        column = plain(table.column(name, "features", may_be_empty=True))
        seen = np.zeros_like(test) if clients_only else test
        if odd := _no_number(table, name, seen):
            raise DataError(f"The column {odd}; it must hold numbers.")
        if is_text(column.type):
            x[:, place] = numbers_of(column)
            continue
        if types.is_boolean(column.type):
            column = column.cast("int8")
        x[:, place] = column.to_numpy()
    return x


def joined(columns: Sequence[Column]) -> Column:
    """Return columns of one type, of which there is at least one, as one: one after another, without a copy."""
    arrow = need("pyarrow", "Reading a table")
    return arrow.chunked_array([chunk for column in columns for chunk in column.chunks], type=columns[0].type)


def plain(column: Column) -> Column:
    """Return a column of an extension or dictionary type as its values."""
    types = need("pyarrow.types", "Reading a table")
    return column.cast(column.type.value_type) if types.is_dictionary(column.type) else column


def is_encoded(kind: Any) -> bool:
    """Return whether an Arrow type holds encoded pictures: bytes, or the hub's {bytes, path}."""
    types = need("pyarrow.types", "Reading a table")
    kind = storage(kind)
    if types.is_struct(kind):
        return bool(kind.get_field_index("bytes") >= 0)
    return bool(types.is_binary(kind) or types.is_large_binary(kind))


def encoded(column: Column) -> Column:
    """Return the bytes of a column of encoded pictures."""
    chunks = [getattr(chunk, "storage", chunk) for chunk in column.chunks]
    arrow = need("pyarrow", "Reading pictures")
    fields = [chunk.field("bytes") if arrow.types.is_struct(chunk.type) else chunk for chunk in chunks]
    return arrow.chunked_array(fields, type=fields[0].type if fields else arrow.binary())


def storage(kind: Any) -> Any:
    """Return the type that an extension type is stored as."""
    return getattr(kind, "storage_type", kind)


def is_list(kind: Any) -> bool:
    types = need("pyarrow.types", "Reading a table")
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def is_number(kind: Any) -> bool:
    types = need("pyarrow.types", "Reading a table")
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def is_struct(kind: Any) -> bool:
    types = need("pyarrow.types", "Reading a table")
    return bool(types.is_struct(storage(kind)) and is_encoded(kind))


def is_text(kind: Any) -> bool:
    types = need("pyarrow.types", "Reading a table")
    return bool(types.is_string(kind) or types.is_large_string(kind))

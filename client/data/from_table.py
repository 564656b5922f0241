"""A table with a user, a label and an input in each row as a data set, wherever the table is stored.

Needs pyarrow, an extra: `client.data.by_user_tables` imports it where it is needed.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
import pyarrow as pa

from client.data.arrays import pieces
from client.data.by_user_npz import classified
from client.data.by_user_text import OfText, Texts, from_texts, refuse_given
from client.data.dataset import Dataset
from client.data.labels import LEARNT_NAMES, read_labels
from client.data.pictures import ColumnBytes, FileBytes, Pictures, Rows, pictures, shape_of_all
from client.data.table import (
    MARK,
    Column,
    Columns,
    Table,
    check_names,
    feature_names,
    is_encoded,
    is_list,
    is_number,
    is_text,
    numbers,
    test_rows,
    users_of,
    value_of,
)
from client.data.text import words
from client.settings import LEVELS
from fedmf.checks import check_choice
from fedmf.errors import DataError


def from_table(
    name: str,
    table: Table,
    columns: Columns,
    of_text: OfText,
    *,
    classes: int | None = None,
    labels: Sequence[str] | None = None,
    clients_only: bool = False,
) -> Dataset:
    """Return the data set `name` in a table; without a split a fifth of each user's rows is the test set.

    With `clients_only` no input of a test row is made, but among 25 rows spread over all for their shape.
    """
    check_names("labels", labels)
    columns.refuse_near(table.path, table.names)
    users = users_of(table, columns.user)
    said = test_rows(table, columns.split)
    refuse_given(
        "text is not given" if columns.text is None else "text is given",
        vars(of_text) if columns.text is None else {"classes": classes, "labels": labels},
    )
    test = users.test(table.path, said, mark=MARK, clients_only=clients_only)
    if columns.text is not None:
        level = of_text.level or LEVELS[0]
        check_choice("level", level, LEVELS)
        texts = Texts(users, _sentences(table, columns.text, level), test)
        return from_texts(name, table.path, texts, of_text, clients_only=clients_only)
    known = read_labels(table, columns.label, test, classes, labels, clients_only=clients_only)
    x = _inputs(table, columns, test, clients_only)
    dataset = classified(
        name,
        table.path,
        x,
        known.y,
        users,
        test,
        known.classes,
        uncovered=(LEARNT_NAMES,) * known.learnt,
        clients_only=clients_only,
    )
    # Pictures are whole numbers, and decoding all of them once more would take long.
    if not isinstance(x, Pictures) and not all(np.isfinite(part).all() for part in pieces(dataset.test.x)):
        raise DataError(
            f"The test rows of {table.path} hold inputs that are empty or not finite; all must be numbers."
        )
    return dataset


def _inputs(table: Table, columns: Columns, test: np.ndarray, clients_only: bool) -> np.ndarray | Rows:
    """Return the inputs of all rows. With `clients_only` no single row says what the others are; test rows are no different."""
    shown = np.ones_like(test) if clients_only else test  # the rows that say the shape of all
    if columns.file is not None:
        return _files(table, columns.file, shown)
    if columns.image is not None:
        column = table.column(columns.image, "image", may_be_empty=True)
        if is_encoded(column.type):
            return pictures(ColumnBytes(table.path, column), len(table), shown)
        return _lists(table, columns.image, column, "image", shown)
    names = columns.features
    if names is None:
        names = feature_names(table, columns, test, clients_only=clients_only)
    if len(names) == 1 and is_list(table.type_of(names[0])):
        column = table.column(names[0], "features", may_be_empty=True)
        return _lists(table, names[0], column, "features", shown)
    return numbers(table, names, test, clients_only=clients_only)


def _files(table: Table, name: str, shown: np.ndarray) -> Pictures:
    """Return the pictures whose files a column names, below the table's `folder`."""
    column = table.column(name, "file", may_be_empty=True)
    if not is_text(column.type):
        raise DataError(f"The column {name!r} of {table.path} is {column.type}; it must name files.")
    assert table.folder is not None  # of a table of pictures
    names = np.array([os.fsencode(value_of(cell) or "") for cell in column])
    return pictures(FileBytes(table.folder, names), len(table), shown)


@dataclass(frozen=True)
class Lists(Rows):
    """A column of lists of numbers, nested or not; `starts` [chunks + 1] says where each chunk of it begins."""

    where: str
    column: Column
    starts: np.ndarray
    shape: tuple[int, ...]

    def take(self, rows: np.ndarray) -> np.ndarray:
        """Return the lists `rows` in the type of their numbers, or raise `DataError` for one of another shape."""
        chunks = np.searchsorted(self.starts, rows, side="right") - 1
        parts = []
        for place in np.flatnonzero(np.diff(chunks, prepend=-1)):  # where another chunk begins
            stop = place + np.argmax(np.append(chunks[place:], -1) != chunks[place])
            parts.append(self._taken(int(chunks[place]), rows[place:stop]))
        return np.concatenate(parts) if parts else np.empty((0, *self.shape[1:]), dtype=np.float32)

    def _taken(self, chunk: int, rows: np.ndarray) -> np.ndarray:
        """Return rows of one chunk."""
        held = self.column.chunk(chunk)
        values = getattr(held, "storage", held).take(pa.array(rows - self.starts[chunk]))
        for size in self.shape[1:]:
            if not is_list(values.type) or values.null_count or not _have_length(values, size):
                raise DataError(
                    f"A list in {self.where} is not of the shape {list(self.shape[1:])}; all must be."
                )
            values = values.flatten()
        if not is_number(values.type) or values.null_count:
            raise DataError(f"A list in {self.where} holds what is no number.")
        made: np.ndarray = values.to_numpy(zero_copy_only=False).reshape(len(rows), *self.shape[1:])
        return made


def _have_length(values: Any, size: int) -> bool:
    """Return whether all lists of an Arrow array have `size` entries."""
    fixed = getattr(values.type, "list_size", None)
    return bool(fixed == size if fixed is not None else (np.diff(values.offsets.to_numpy()) == size).all())


def _lists(table: Table, name: str, column: Column, key: str, shown: np.ndarray) -> Lists:
    """Return a column of lists; `shown` [rows] says which rows show the shape of all, see `shape_of_all`."""
    if not is_list(column.type):
        raise DataError(
            f"The column {name!r} of {table.path} is {column.type}; {key} must name lists of numbers."
        )

    def shape_of(row: int) -> tuple[int, ...]:
        first, shape = column[row].as_py(), []
        while isinstance(first, list):
            shape.append(len(first))
            first = first[0] if first else None
        return tuple(shape)

    shape = shape_of_all(shape_of, shown)
    starts = np.cumsum([0, *(len(chunk) for chunk in column.chunks[:-1])])
    return Lists(f"{name!r} of {table.path}", column, starts, (len(table), *shape))


def _sentences(table: Table, name: str, level: str) -> "Sentences":
    """Return a column of texts or lists of tokens."""
    column = table.column(name, "text", may_be_empty=True)
    if not is_text(column.type.value_type if is_list(column.type) else column.type):
        raise DataError(
            f"The column {name!r} of {table.path} is {column.type}; it must hold texts, or lists of tokens."
        )
    return Sentences(column, level)


@dataclass(frozen=True)
class Sentences(Sequence[Sequence[str] | None]):
    """A column of texts, or of lists of tokens, as tokens of one level, None for an empty cell; made at each access."""

    column: Column
    level: str

    def __len__(self) -> int:
        """Return the number of texts."""
        return len(self.column)

    @overload
    def __getitem__(self, index: int) -> Sequence[str] | None: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Sequence[str] | None]: ...
    def __getitem__(self, index: int | slice) -> Sequence[str] | Sequence[Sequence[str] | None] | None:
        """Return the tokens of one text, or of several."""
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        value = value_of(self.column[index])
        if value is None:
            return None
        if isinstance(value, str):
            return value if self.level == "characters" else words(value)
        return " ".join(value) if self.level == "characters" else [token.lower() for token in value]

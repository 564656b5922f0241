"""A table with a user, a label and an input in each row as a data set, wherever the table is stored.

Needs pyarrow, an extra: `client.data.by_user_tables` imports it where it is needed.
"""

import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from client.data.arrays import pieces
from client.data.by_user_npz import classified
from client.data.by_user_text import OfText, Texts, from_texts, refuse_given
from client.data.checked import UNREADABLE, count_classes
from client.data.dataset import Dataset
from client.data.pictures import ColumnBytes, FileBytes, Pictures, Rows, pictures, shape_of_all
from client.data.split import Parted
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
    ranked,
    test_rows,
    users_of,
    value_of,
)
from client.data.text import words
from client.settings import LEVELS
from fedmf.checks import check_choice
from fedmf.errors import DataError, SettingError

LEARNT_NAMES = (
    "The names of the classes were collected from all rows, those of the training users too: an uncovered release. "
    "Give a public list of them as labels."
)

_WHOLE = re.compile(r"[+-]?[0-9]{1,40}(\.0*)?")


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
    rows = users.parted(table.path, said, mark=MARK, clients_only=clients_only)
    if columns.text is not None:
        level = of_text.level or LEVELS[0]
        check_choice("level", level, LEVELS)
        texts = Texts(users, _tokens(table, columns.text, level), rows)
        return from_texts(name, table.path, texts, of_text)
    known = read_labels(table, columns.label, rows, classes, labels)
    x = _inputs(table, columns, rows)
    uncovered = (LEARNT_NAMES,) * known.learnt
    dataset = classified(name, table.path, x, known.y, users, rows, known.classes, uncovered)
    # Pictures are whole numbers, and decoding all of them once more would take long.
    if not isinstance(x, Pictures) and not all(np.isfinite(part).all() for part in pieces(dataset.test.x)):
        raise DataError(
            f"The test rows of {table.path} hold inputs that are empty or not finite; all must be numbers."
        )
    return dataset


def _inputs(table: Table, columns: Columns, rows: Parted) -> np.ndarray | Rows:
    """Return the inputs of all rows."""
    if columns.file is not None:
        return _files(table, columns.file, rows.shown)
    if columns.image is not None:
        column = table.column(columns.image, "image", may_be_empty=True)
        if is_encoded(column.type):
            return pictures(ColumnBytes(table.path, column), len(table), rows.shown)
        return _lists(table, columns.image, column, "image", rows.shown)
    names = feature_names(table, columns, rows) if columns.features is None else columns.features
    if len(names) == 1 and is_list(table.type_of(names[0])):
        column = table.column(names[0], "features", may_be_empty=True)
        return _lists(table, names[0], column, "features", rows.shown)
    return numbers(table, names, rows)


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


def _tokens(table: Table, name: str, level: str) -> Callable[[int], Sequence[str] | None]:
    """Return what returns the tokens of one row of a column of texts or lists of tokens, None for an empty cell."""
    column = table.column(name, "text", may_be_empty=True)
    if not is_text(column.type.value_type if is_list(column.type) else column.type):
        raise DataError(
            f"The column {name!r} of {table.path} is {column.type}; it must hold texts, or lists of tokens."
        )

    def tokens(row: int) -> Sequence[str] | None:
        value = value_of(column[row])
        if value is None or isinstance(value, str):
            return value if value is None or level == "characters" else words(value)
        return " ".join(value) if level == "characters" else [token.lower() for token in value]

    return tokens


@dataclass(frozen=True)
class Labels:
    """Class numbers `y` int64 [rows] below `classes`; whether the names were `learnt` from all rows."""

    y: np.ndarray
    classes: int
    learnt: bool = False


def read_labels(
    table: Table, name: str, rows: Parted, classes: int | None, labels: Sequence[str] | None
) -> Labels:
    """Return the labels in the column `name` of a table.

    Whole numbers are class numbers, unless `labels` lists the names of the classes, class 0 first. In a table without
    types they are such if most of the rows that are shown hold whole numbers, whatever another row holds. With `labels`,
    numbers in a column whose schema declares class names stand for these. Names without such a list
    are in alphabetical order: those of the test rows where `classes` says how many there are, else those of all rows,
    which are `learnt` then, whether or not training rows have more than test rows. The number of classes is `classes`,
    or what the schema, the list, the names or the test rows say. Raises `DataError` for a row that must be right and has
    none of the classes; another such row is `UNREADABLE`. Where no row must be right, of more names than `classes` the
    commonest count, so that no row is a reason to refuse the others.
    """
    where = f"The column {name!r} of {table.path}"
    column = table.column(name, "label", may_be_empty=True)
    whole = pa.types.is_integer(column.type)
    if not (whole or is_text(column.type)):
        raise DataError(f"{where} is {column.type}; it must hold whole numbers or names.")
    declared = table.class_names.get(name, ())
    _check_settings(where, classes, labels, declared)
    ranks, values = _ranked(column, strip=not table.typed)
    rows.refuse(ranks < 0, f"{where} is empty, or not UTF-8, in {{}}", "every one must have a label")
    tested = np.unique(ranks[rows.test & (ranks >= 0)]).tolist()
    if (
        labels is None
        and not table.typed
        and _are_whole(values, ranks[rows.shown] if rows.shown.any() else ranks)
    ):
        strange = [rank for rank, value in enumerate(values) if not _WHOLE.fullmatch(value)]
        advice = "correct it as most of these rows have it, or list the names of all classes in labels"
        rows.refuse(np.isin(ranks, strange), f"{where} holds no whole number in {{}}", advice)
        values = [int(value.partition(".")[0]) if _WHOLE.fullmatch(value) else UNREADABLE for value in values]
        whole = True
    if whole and labels is None:
        who = f"A test row in the column {name!r} of {table.path}"
        shown = [values[rank] for rank in tested]
        known = count_classes(
            table.path, who, shown, classes, len(declared) or None, is_needed=rows.is_needed
        )
        # Before they are an array: a training row may hold a number that no int64 is.
        counted = [value if 0 <= value < known else UNREADABLE for value in values]
        return Labels(np.array([*counted, UNREADABLE], dtype=np.int64)[ranks], known)
    if whole and declared:
        values = [declared[value] if 0 <= value < len(declared) else None for value in values]
    elif whole:
        values = [str(value) for value in values]
    learnt = labels is None and (classes is None or not tested)
    if labels is None:
        labels = _collected(
            ranks if learnt else ranks[rows.test], values, None if rows.is_needed else classes
        )
    elif not table.typed:
        labels = [label.strip() for label in labels]
    if not labels or len(set(labels)) != len(labels):
        raise SettingError(f"labels is {list(labels)}; it must list the name of each class once.")
    known = len(labels) if classes is None else classes
    if known < len(labels):
        raise SettingError(
            f"classes is {classes}, but there are {len(labels)} names; it must be at least as many."
        )
    place = {label: number for number, label in enumerate(labels)}
    y = np.array([*(place.get(value, UNREADABLE) for value in values), UNREADABLE], dtype=np.int64)[ranks]
    lacking = f"{where} holds in {{}}, what labels=[{', '.join(labels)}] lacks"
    rows.refuse(y == UNREADABLE, lacking, "add it there, or correct the row")
    return Labels(y, known, learnt)


def _check_settings(
    where: str, classes: int | None, labels: Sequence[str] | None, declared: Sequence[str]
) -> None:
    """Raise `SettingError` for fewer `classes`, or other `labels`, than the schema has declared."""
    if classes is not None and classes < len(declared):
        raise SettingError(
            f"classes is {classes}, but {where[0].lower()}{where[1:]} declares {len(declared)} names of classes; "
            "it must be at least as many."
        )
    if labels is not None and (lost := [label for label in declared if label not in labels]):
        raise SettingError(
            f"labels is [{', '.join(labels)}], which lacks {lost[0]!r}; it must name all classes that "
            f"{where[0].lower()}{where[1:]} declares: {', '.join(declared)}."
        )


def _ranked(column: Any, *, strip: bool) -> tuple[np.ndarray, list[Any]]:
    """Return `ranked` of a column of labels; an empty cell is no name (-1), nor are blanks around one where `strip`."""
    numbers, values = ranked(column)
    if strip:
        values = [value.strip() for value in values]
    kept = sorted({value for value in values if value != ""})
    place = {value: number for number, value in enumerate(kept)}
    return np.array([*(place.get(value, -1) for value in values), -1], dtype=np.int64)[numbers], kept


def _are_whole(values: Sequence[str], numbers: np.ndarray) -> bool:
    """Say whether more than half of the labels `values[numbers]` are whole numbers, empty cells (-1) left out."""
    counts = np.bincount(numbers[numbers >= 0], minlength=len(values))
    whole = np.array([_WHOLE.fullmatch(value) is not None for value in values], dtype=bool)
    return bool(2 * counts[whole].sum() > counts.sum())


def _collected(numbers: np.ndarray, values: Sequence[str | None], most: int | None) -> list[str]:
    """Return the names among `values[numbers]` in alphabetical order, of more than `most` the commonest."""
    held, counts = np.unique(numbers[numbers >= 0], return_counts=True)
    found = Counter({str(values[number]): int(count) for number, count in zip(held, counts, strict=True)})
    return sorted(name for name, _ in found.most_common(most))

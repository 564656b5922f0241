"""Tables of your own as datasets: what the columns of an Arrow table (`client.data.table_files`) mean.

Each row has a user, a label and an input. What one row holds is its user's affair: a cell that is no number is NaN, a label
that is no class is `UNREADABLE`, and a list, picture or text that cannot be read fails its client. Only a test row, which is
public, must be right. Needs pyarrow, an extra: `client.data.registry` imports this module where it is needed.
"""

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from client.data.dataset import CLASSIFICATION, UNREADABLE, Dataset, Public, Rows
from client.data.own import TEXT_SETTINGS, Owned, OwnSettings, count_classes, owned, task_of
from client.data.reading import pixels_of, reading
from client.data.table_files import (
    BYTES,
    FLOAT,
    LIST,
    NUMBERS,
    READERS,
    TEXT,
    TRUTH,
    WHOLE,
    Table,
    kind_of,
    value_of,
)
from client.data.text import from_texts, split_text
from fedmf.errors import DataError, SettingError

_MEANINGS = {"train": 0, "test": 1, "0": 0, "1": 1, "false": 0, "true": 1}
_ENOUGH = 5  # test rows that tell whether a column counts the rows
_NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
MODES = {"L": "1-bit or 8-bit grey", "RGB": "8-bit RGB"}
_DIGITS = "[+-]?[0-9]{1,40}"
_WHOLE = re.compile(rf"{_DIGITS}(\.0*)?")


def load_table(name: str, path: Path, settings: OwnSettings, public: Public | None) -> Dataset:
    """Return the dataset `name` in a table; without a split a fifth of each user's rows is the test set.

    With `public` only clients are made, whose labels are numbers or the names that `public` has.
    """
    user, split, labels = settings.user or "user", settings.split or "split", settings.label_columns
    one = settings.text or settings.image or (settings.file or "file_name") * (name == "by_user_images")
    roles = [user, split, *(labels if settings.text is None else [])]
    inputs = [one] if one else settings.features
    table = READERS[name](path, None if inputs is None else [*roles, *inputs], settings)
    for role in roles:  # a column that differs by a blank or a capital letter would be an input, or ignored
        for near in table.names:
            is_like = near != role and near.strip().casefold() == role.strip().casefold()
            if is_like and (inputs is None or role not in table.names):
                raise DataError(
                    f"{table.path} has a column {near!r}, which differs from {role!r} in blanks or capital letters alone; rename "
                    "one of them."
                )
    users, names = users_of(table, user) if settings.has_users else (np.zeros(table.held.num_rows, int), [0])
    said = test_rows(table, settings.split)
    rows = owned(table.path, users, names, said, "{} in the split column", public, settings)
    if settings.text is not None:
        settings.refuse("text is given", "task", "classes", "labels")
        return from_texts(name, rows, _tokens(table, settings.text, settings.level), settings)
    settings.refuse("text is not given", *TEXT_SETTINGS)
    task = read_task(table, labels, rows, settings)
    if task == CLASSIFICATION:
        if len(labels) > 1:
            raise SettingError(
                f"label is {labels}, but of classification there is one column of labels; name it alone."
            )
        y, classes, named, learnt = read_labels(table, labels[0], rows, settings)
    else:
        settings.refuse(f"the task is {task}", "classes", "labels")
        y = read_numbers(table, labels, rows)
        classes, named, learnt = y.shape[1], (), False
    x, columns = _inputs(table, roles, one, settings, rows)
    return rows.dataset(
        name,
        x,
        y,
        classes,
        task=task,
        uncovered=(
            "The names of the classes were collected from all rows, those of the training users too: an uncovered release. Give "
            "a public list of them as labels.",
        )
        * learnt,
        labels=tuple(named),
        columns=tuple(columns),
    )


def users_of(table: Table, name: str) -> tuple[np.ndarray, list[Any]]:
    """Return (places int64 [rows], names): the users of the rows, in the order of their names (numbers, or texts).

    Names are whole numbers or texts, taken as they are: "7" and "007" are two users.
    """
    places, names = ranked(table.column(name, "user", (WHOLE, TEXT), "; users are whole numbers or texts"))
    if not len(places):
        raise DataError(f"{table.path} holds no rows; it must hold one for each example.")
    if nameless := int((places < 0).sum()):
        raise DataError(
            f"{table.about(name)} names no user in {nameless} of {len(places)} rows; every example must belong to a user."
        )
    return places, names


def test_rows(table: Table, name: str | None) -> np.ndarray | None:
    """Return which rows are test rows: by the files, by the column `name` (None: `split`, if there is one), or None."""
    if name is None and (table.test is not None or "split" not in table.names):
        return table.test
    name, right = name or "split", "; it must hold 0 or train, 1 or test"
    places, values = ranked(table.column(name, "split", (WHOLE, TRUTH, TEXT), right))
    meanings = np.array([*(_MEANINGS.get(str(value).lower(), -1) for value in values), -1])[places]
    if (meanings < 0).any():
        raise DataError(
            f"{table.about(name)} holds neither in row {int(np.argmax(meanings < 0)) + 1}{right}."
        )
    return meanings == 1  # type: ignore[no-any-return]


def ranked(column: Any, *, strip: bool = False) -> tuple[np.ndarray, list[Any]]:
    """Return (places int64 [rows], values): each row's place among the distinct values in increasing order.

    -1 stands for an empty cell, and for a text that is empty or not UTF-8; with `strip` blanks around a text do not count.
    """
    coded = column.dictionary_encode().unify_dictionaries()
    held = [value_of(cell) for cell in coded.chunk(0).dictionary] if coded.num_chunks else []
    held = [value.strip() for value in held] if strip else held
    values = sorted({value for value in held if value is not None and value != ""})
    place = {value: number for number, value in enumerate(values)}
    of_code = np.array([*(place.get(value, -1) for value in held), -1], dtype=np.int64)  # the last: of a null
    codes = [chunk.indices.fill_null(-1).to_numpy(zero_copy_only=False) for chunk in coded.chunks]
    return of_code[np.concatenate([np.empty(0, np.int64), *codes]).astype(np.int64)], values


def read_task(table: Table, names: Sequence[str], rows: Owned, settings: OwnSettings) -> str:
    """Return the task of the columns of labels: what the settings or `public` say, or what the test rows make plain.

    One column of integers or names is of classes; in a table without types one of texts is no such where most test rows hold
    numbers and most of them no integers. Raises `DataError` as `task_of`.
    """
    if task := rows.public.task if rows.public else settings.task:
        return task
    if len(names) == 1:
        column = table.column(
            names[0], "label", (WHOLE, TEXT, FLOAT, LIST), "; it must hold numbers or names"
        )
        if kind_of(column.type) in (WHOLE, TEXT) and (table.typed or settings.labels or settings.classes):
            return CLASSIFICATION
        if not table.typed:
            cells = pc.utf8_trim(column.filter(pa.array(rows.test)), characters=" \t")
            found = (pc.sum(pc.match_substring_regex(cells, form)) for form in (_NUMBER, f"^{_DIGITS}$"))
            numbers, integers = (2 * (count.as_py() or 0) for count in found)
            if numbers <= len(cells) or integers > len(cells):
                return CLASSIFICATION
    y = read_numbers(table, names, rows)[rows.test]
    return task_of(y[:, 0] if y.shape[1] == 1 else y, table.about(", ".join(names)), typed=table.typed)


def read_numbers(
    table: Table,
    names: Sequence[str],
    rows: Owned,
    advice: str = "; it must hold numbers",
    key: str = "label",
) -> np.ndarray:
    """Return columns of numbers, float32 [rows, names], each read as `_numbers` does; of one column of lists of labels their places.

    A list without a number at some place, or of another length than in the first test row, or than `public` says, is a
    `DataError` in a row that must be right, and else NaN.
    """
    if key == "label" and names[0] in table.names and kind_of(table.held.column(names[0]).type) == LIST:
        column, where = table.column(names[0], key, (LIST,), advice), table.about(names[0])
        if len(names) > 1 or kind_of(column.type.value_type) not in NUMBERS:
            raise DataError(
                f"{where} is {column.type}; it must be the only label, of numbers: 0 or 1 for each label, such as [0, 1, 1]."
            )
        sizes, first = pc.list_value_length(column), int(np.argmax(rows.test))
        size = rows.public.classes if rows.public else sizes[first].as_py() or 1
        column = pc.if_else(pc.equal(sizes, size), column, pa.scalar(None, column.type))
        y = np.stack(
            [pc.list_element(column, place).cast(pa.float32(), safe=False) for place in range(size)], axis=1
        )
        rows.check(
            np.isnan(y).any(axis=1),
            f"{where} holds no list of numbers in {{}}, or not as many as in the first test row",
            "each must hold as many, and at least one",
        )
        return y
    numbers = np.empty((len(rows.test), len(names)), dtype=np.float32)
    for place, name in enumerate(names):
        numbers[:, place] = _numbers(table, name, rows, advice, key)
    return numbers


def read_labels(
    table: Table, name: str, rows: Owned, settings: OwnSettings
) -> tuple[np.ndarray, int, Sequence[str], bool]:
    """Return (class numbers int64 [rows]; the number of classes; their names, if any; whether these were learnt).

    Labels are whole numbers, or names where `labels`, `public` or the schema of a table lists these, class 0 first.
    Without a list they are names in a column of texts, but in a table without types only if fewer than half of the test
    rows hold whole numbers. Names without a list are in alphabetical order: those of the test rows where `classes` says how
    many there are, else those of all rows, which are learnt then, whether or not training rows have more than test rows.
    The number of classes is `classes`, or what the list, the names or the test rows say. Raises `DataError` for a row that
    must be right and has none of the classes; another such row is `UNREADABLE`.
    """
    where, public, classes = table.about(name), rows.public, settings.classes
    column = table.column(name, "label", (WHOLE, TEXT), "; it must hold whole numbers or names")
    whole, declared = kind_of(column.type) == WHOLE, table.class_names.get(name, ())
    labels = settings.labels or (public.labels if public else ()) or declared
    places, values = ranked(column, strip=not table.typed)
    rows.check(places < 0, f"{where} is empty, or not UTF-8, in {{}}", "every one must have a label")
    if not labels and not whole and (public or not table.typed):
        numbers = np.array([_WHOLE.fullmatch(value) is not None for value in values], dtype=bool)
        whole = public is not None or bool(2 * numbers[places[rows.test]].sum() > rows.test.sum())
        if whole:
            remedy = "correct it as most of these rows have it, or list the names of all classes in labels"
            rows.check(~numbers[places], f"{where} holds no whole number in {{}}", remedy)
            values = [
                int(value.partition(".")[0]) if is_number else UNREADABLE
                for value, is_number in zip(values, numbers, strict=True)
            ]
    learnt = not (whole or labels or classes)
    if whole and not labels:
        shown = [values[place] for place in np.unique(places[rows.shown]).tolist()]
        who = f"A test row in the column {name!r} of {table.path}"
        known = public.classes if public else count_classes(who, shown, classes)
        number_of = {value: value for value in values if abs(value) < 2**63}  # of int64
    else:
        if whole:
            names = dict(enumerate(declared)) if declared else {value: str(value) for value in values}
            values = [names.get(value) for value in values]
        if not labels:
            used = np.unique(places if learnt else places[rows.test])
            labels = [values[place] for place in used if place >= 0]
        elif not table.typed:
            labels = [label.strip() for label in labels]
        known = (public.classes if public else classes) or len(labels)
        number_of = {label: number for number, label in enumerate(labels)}
        if len(number_of) != len(labels):
            raise SettingError(f"labels is {list(labels)}; it must list the name of each class once.")
        if known < len(labels):
            raise SettingError(
                f"classes is {known}, but there are {len(labels)} names; it must be at least as many."
            )
    y = np.array([*(number_of.get(value, UNREADABLE) for value in values), UNREADABLE], np.int64)[places]
    lacking = f"{where} holds in {{}}, what labels=[{', '.join(labels)}] lacks"
    rows.check(y == UNREADABLE, lacking, "add it there, or correct the row")
    return y, known, labels, learnt


def _inputs(
    table: Table, roles: Sequence[str], one: str, settings: OwnSettings, rows: Owned
) -> tuple[np.ndarray | Rows, Sequence[str]]:
    """Return (the inputs of all rows, the columns of their numbers, if any); the column `one` names pictures in files."""
    first, public = int(np.argmax(rows.test)), rows.public.shape if rows.public else None
    names, advice = settings.features, "; it must hold numbers"
    name_them = f"set features to the columns of the inputs, {'set text to one, or set image' if table.typed else 'or set text'} to one"
    if single := one or (names[0] if names is not None and len(names) == 1 else ""):
        asked: tuple[str, Sequence[str], str] = "features", (BYTES, LIST, TEXT, *NUMBERS), advice
        if table.folder is not None:
            asked = "file", (TEXT,), "; it must name files"
        elif settings.image is not None:
            asked = "image", (BYTES, LIST), "; image must name lists of numbers"
        column = table.column(single, *asked)
        if table.folder is not None or kind_of(column.type) == BYTES:
            pictures = Pictures(table.path, column, (len(column),), table.folder)
            shape = public or pictures.decoded(first)[1].shape
            return replace(pictures, shape=(len(column), *shape)), ()
        if kind_of(column.type) == LIST:
            with reading(table.about(single), "lists of one shape"):
                shape = public or np.shape(column[first].as_py())
            return Lists(f"{single!r} of {table.path}", column, (len(rows.test), *shape)), ()
    if names is None:
        advice = f", no number; {name_them}"
        if any(not name.strip() for name in table.names):
            raise DataError(
                f"{table.path} has a column without a name, as pandas writes row numbers. Write the file without its "
                f"index, or {name_them}."
            )
        # Without the row numbers that pandas writes.
        names = [name for name in table.names if not (name in roles or name.startswith("__index_level_"))]
        if not names:
            raise DataError(f"{table.path} has no column of numbers besides {', '.join(roles)}; {name_them}.")
    x = read_numbers(table, names, rows, advice, "features")
    shown = np.flatnonzero(rows.shown)
    if settings.features is None and len(shown) >= _ENOUGH:
        # A column that grows by one step from row to row, in enough rows that this is no chance, has their numbers.
        steps = np.diff(x[shown].astype(np.float64), axis=0) / np.diff(shown)[:, None]
        counting = (steps[0] != 0) & np.isclose(steps, steps[0], atol=0).all(axis=0)
        if counting.any():
            raise DataError(
                f"{table.about(names[int(counting.argmax())])} counts the rows, as pandas writes their numbers. Write the file "
                f"without its index, or {name_them}."
            )
    return x, names


def _numbers(table: Table, name: str, rows: Owned, advice: str, key: str) -> np.ndarray:
    """Return a column of numbers, float32 [rows]; an empty cell, and what is no number in a table of texts, is NaN.

    Arrow rounds, as in `read_numbers`: where one row is empty, numpy would round all by way of float64, or get objects of bools.
    What a cell of a table without types means follows from the cell alone: 1 for true, 0 for false. One that is none of
    these is a `DataError` in a row that must be right.
    """
    column = table.column(name, key, NUMBERS if table.typed else (TEXT,), advice)
    if table.typed:
        return column.cast(pa.float32(), safe=False).to_numpy()  # type: ignore[no-any-return]
    with suppress(pa.ArrowInvalid):  # several times faster, where all cells are plain numbers
        return column.cast(pa.float32()).to_numpy()  # type: ignore[no-any-return]
    cells = pc.fill_null(pc.utf8_trim(column, characters=" \t"), "")
    lower = pc.utf8_lower(cells)
    known = pc.if_else(pc.equal(lower, "true"), "1", pc.if_else(pc.equal(lower, "false"), "0", cells))
    is_right, is_empty = pc.match_substring_regex(known, _NUMBER), pc.equal(cells, "").to_numpy()
    where = table.about(name)
    rows.check(
        ~(is_right.to_numpy() | is_empty), f"{where} holds no number in {{}}", advice.rpartition("; ")[2]
    )
    rows.check(is_empty, f"{where} is empty in {{}}", "every test row must have a number")
    return pc.if_else(is_right, known, pa.scalar(None, cells.type)).cast(pa.float32()).to_numpy()  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Pictures(Rows):
    """Pictures of one shape, uint8 [n, H, W] or [n, H, W, 3], decoded when they are taken.

    A `column` of the table at `path` holds their bytes, or the names of files below `folder`. A table of names may come
    from somebody else: one that leads out of the folder, by `..` or from the root, is an error of its row. Links in the
    folder are followed: only who may write there can have made them, and stores of big files (the hub's cache, git-annex)
    consist of them.
    """

    path: Path
    column: Any
    shape: tuple[int, ...]
    folder: Path | None = None

    def take(self, rows: np.ndarray) -> np.ndarray:
        shape = self.shape[1:]
        x = np.empty((len(rows), *shape), dtype=np.uint8)
        for place, row in enumerate(rows):
            name, picture = self.decoded(row)
            if picture.shape != shape:
                raise DataError(
                    f"{name} has the shape {list(picture.shape)}, but a picture of this dataset has {list(shape)}; all must "
                    "have one size and be all grey or all RGB."
                )
            x[place] = picture
        return x

    def decoded(self, row: int) -> tuple[str, np.ndarray]:
        """Return (what an error calls a picture, its pixels uint8 [H, W] or [H, W, 3]), or raise `DataError`."""
        name = f"The picture in row {row + 1} of {self.folder or self.path}"
        with reading(name, "a file"):
            content = self.column[int(row)].as_py()
            if self.folder is not None:
                file = PurePath(content or "")
                if file.is_absolute() or ".." in file.parts:
                    raise DataError(
                        f"{name} is no file of it; it must be one below the folder, named without .. and without a / at the "
                        "beginning."
                    )
                name = str(self.folder / file)
                content = Path(name).read_bytes()
        mode, array = pixels_of(content, name)
        if mode not in MODES:
            raise DataError(f"{name} is a picture of mode {mode}; it must be {' or '.join(MODES.values())}.")
        return name, array


@dataclass(frozen=True)
class Lists(Rows):
    """A column of lists of numbers, nested or not, of one shape."""

    where: str
    column: Any
    shape: tuple[int, ...]

    def take(self, rows: np.ndarray) -> np.ndarray:
        """Return the lists `rows` in the type of their numbers, or raise `DataError` for one of another shape."""
        values = pa.concat_arrays([self.column.slice(int(row), 1).chunk(0) for row in rows])
        for size in self.shape[1:]:
            is_right = kind_of(values.type) == LIST and not values.null_count
            if not is_right or set(pc.unique(pc.list_value_length(values)).to_pylist()) != {size}:
                raise DataError(
                    f"A list in {self.where} is not of the shape {list(self.shape[1:])}; all must be."
                )
            values = values.flatten()
        if kind_of(values.type) not in NUMBERS or values.null_count:
            raise DataError(f"A list in {self.where} holds what is no number.")
        return values.to_numpy(zero_copy_only=False).reshape(len(rows), *self.shape[1:])  # type: ignore[no-any-return]


def _tokens(table: Table, name: str, level: str) -> list[Sequence[str] | None]:
    """Return the tokens of each row of a column of texts or lists of tokens, None for an empty cell."""
    right = "; it must hold texts, or lists of tokens"
    column = table.column(name, "text", (TEXT, LIST), right)
    if kind_of(column.type) == LIST and kind_of(column.type.value_type) != TEXT:
        raise DataError(f"{table.about(name)} is {column.type}{right}.")
    return [None if value is None else split_text(value, level) for value in map(value_of, column)]

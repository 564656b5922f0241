"""A table of examples as Arrow holds it: whose each row is, which are test rows, and its columns of numbers.

Needs pyarrow, an extra: `client.data.by_user_tables` imports it where it is needed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from client.data.reading import reading
from client.data.split import Parted, Users
from fedmf.errors import DataError, SettingError

Column = Any
"""A pyarrow.ChunkedArray."""

MARK = "{} in the split column"
_SPLITS = {"train": 0, "test": 1, "0": 0, "1": 1, "false": 0, "true": 1}
# As Arrow's parser of CSV has it, so that a column is the same numbers whichever of the two read it.
_NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"


@dataclass(frozen=True)
class Columns:
    """Which columns of a table hold what. One of `features`, `text` and `image`, or none: all numbers are features.

    `file` is the column that names files of pictures; no other column is an input then.
    """

    user: str
    label: str
    features: Sequence[str] | None = None
    text: str | None = None
    image: str | None = None
    split: str | None = None
    file: str | None = None

    def __post_init__(self) -> None:
        """Raise `SettingError` for more than one kind of input, or for an input that is something else too."""
        given = [name for name in ("features", "text", "image") if getattr(self, name) is not None]
        if len(given) > 1:
            raise SettingError(f"{' and '.join(given)} are given; an input is one of them.")
        check_names("features", self.features)
        for role in ("user", "label", "split"):
            if self.features is not None and (name := getattr(self, role) or role) in self.features:
                raise SettingError(
                    f"features holds {name!r}, which is the column of {role}; a column is either an input or that."
                )

    @property
    def roles(self) -> list[str]:
        """The columns that say more of a row than its input."""
        return [self.user, self.split or "split", *([self.label] if self.text is None else [])]

    @property
    def inputs(self) -> Sequence[str] | None:
        """The columns of the input; None: all columns that have no role."""
        one = self.text or self.image or self.file
        return self.features if one is None else [one]

    def used(self, names: Sequence[str]) -> list[str]:
        """Return which of the columns `names` of a table are read."""
        return [name for name in names if self.inputs is None or name in (*self.roles, *self.inputs)]

    def refuse_near(self, path: Path, names: Sequence[str]) -> None:
        """Raise `DataError` where a column of the table at `path` would be an input, or ignored, for a blank or a capital letter."""
        for role in self.roles:
            near = [name for name in names if name != role and _plain(name) == _plain(role)]
            if near and (self.inputs is None or role not in names):
                raise DataError(
                    f"{path} has a column {near[0]!r}, which differs from {role!r} in blanks or capital letters alone; "
                    "rename one of them."
                )


def check_names(key: str, given: object) -> None:
    """Raise `SettingError` unless a setting is a list of texts, or None; one text is no list of its letters."""
    if given is not None and (
        isinstance(given, str)
        or not isinstance(given, Sequence)
        or not all(isinstance(name, str) for name in given)
    ):
        raise SettingError(f"{key} is {given!r}; it must be a list of names, such as ['one', 'two'].")


def _plain(name: str) -> str:
    """Return a name of a column without what is easily overlooked."""
    return name.strip().casefold()


@dataclass(frozen=True)
class Table:
    """The used columns of the table at `path`, whose columns are called `names`.

    `test` [rows] says which rows are test rows where the files are split already. `class_names` are those that the
    table's schema declares for a column of label numbers. A table that is not `typed` may hold numbers as texts.
    `folder`: where the files lie that a table of pictures names.
    """

    path: Path
    held: Any
    names: Sequence[str]
    test: np.ndarray | None = None
    class_names: dict[str, tuple[str, ...]] = field(default_factory=dict)
    typed: bool = True
    folder: Path | None = None

    def __len__(self) -> int:
        """Return the number of rows."""
        return int(self.held.num_rows)

    def type_of(self, name: str) -> Any:
        """Return the Arrow type of a column that is used, the null type for one that is not there."""
        return self.held.schema.field(name).type if name in self.held.column_names else pa.null()

    def column(self, name: str, key: str, *, may_be_empty: bool = False) -> Column:
        """Return a column without its dictionary, or raise `DataError` about the setting `key` that names it.

        Empty cells, and texts that are not UTF-8, are refused unless they are one user's values (`may_be_empty`), which
        `value_of` reads when that client is read: they must not decide whether a run happens.
        """
        if name not in self.names:
            # The first line of a text file that names no columns is somebody's row.
            held = (
                f"it has {', '.join(self.names) or 'none'}: set {key} to one of them"
                if self.typed
                else f"set {key} to one of the {len(self.names)} columns that its first line names"
            )
            raise DataError(f"{self.path} has no column {name!r}; {held}.")
        column = self.held.column(name)
        with reading(f"The column {name!r} of {self.path}", "a table", also=(pa.ArrowException,)):
            if may_be_empty and is_encoded(column.type):
                column = encoded(column)  # what else such a row holds is not looked at
            for chunk in column.chunks:
                (_as_bytes(chunk) if may_be_empty else chunk).validate(full=True)
        if column.null_count and not may_be_empty:
            raise DataError(
                f"The column {name!r} of {self.path} is empty in {column.null_count} of {len(self)} rows; it must hold a "
                "value in each."
            )
        return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def _as_bytes(chunk: Any) -> Any:
    """Return texts, or lists of them, as bytes, which need not be UTF-8; other values as they are."""
    if pa.types.is_dictionary(chunk.type):
        return pa.DictionaryArray.from_arrays(chunk.indices, _as_bytes(chunk.dictionary))
    kind = _bytes_for(chunk.type)
    return chunk if kind.equals(chunk.type) else chunk.view(kind)


def _bytes_for(kind: Any) -> Any:
    """Return the type of bytes for one of texts, or of lists of them, and others as they are."""
    if is_text(kind):
        return pa.binary() if pa.types.is_string(kind) else pa.large_binary()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        of = pa.list_ if pa.types.is_list(kind) else pa.large_list
        return of(kind.value_field.with_type(_bytes_for(kind.value_type)))
    return kind


def value_of(cell: Any) -> Any:
    """Return the value of a cell, None for an empty one and for a text, or a list of texts, that is not UTF-8."""
    try:
        value = cell.as_py()
    except UnicodeDecodeError:
        return None
    return None if isinstance(value, list) and None in value else value


def users_of(table: Table, name: str) -> Users:
    """Return the users of the rows, in the order of their names (numbers, or texts).

    Names are whole numbers or texts, taken as they are: "7" and "007" are two users.
    """
    column = table.column(name, "user")
    if not (pa.types.is_integer(column.type) or is_text(column.type)):
        raise DataError(
            f"The column {name!r} of {table.path} is {column.type}; it must name users by whole numbers or texts."
        )
    numbers, ids = ranked(column)
    if not ids:
        raise DataError(f"{table.path} holds no rows; it must hold one for each example.")
    if "" in ids:
        raise DataError(
            f"The column {name!r} of {table.path} names no user in {int((numbers == ids.index('')).sum())} of "
            f"{len(table)} rows; every example must belong to a user."
        )
    return Users(numbers, ids)


def test_rows(table: Table, name: str | None) -> np.ndarray | None:
    """Return which rows are test rows: by the files, by the column `name` (None: `split`, if there is one), or None."""
    if name is None and (table.test is not None or "split" not in table.names):
        return table.test
    name = name or "split"
    column = table.column(name, "split")
    if not (pa.types.is_integer(column.type) or pa.types.is_boolean(column.type) or is_text(column.type)):
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
    """Return (numbers int64 [rows], values): each row's place among the distinct values in increasing order.

    -1 stands for an empty cell, and for a text that is not UTF-8.
    """
    coded = column.dictionary_encode().unify_dictionaries()
    values = [value_of(cell) for cell in coded.chunk(0).dictionary] if coded.num_chunks else []
    order = sorted((place for place, value in enumerate(values) if value is not None), key=values.__getitem__)
    place = np.full(len(values) + 1, -1, dtype=np.int64)  # the last: where the code of an empty cell points
    place[order] = np.arange(len(order))
    codes = [chunk.indices.fill_null(-1).to_numpy(zero_copy_only=False) for chunk in coded.chunks]
    numbers = place[np.concatenate([np.empty(0, np.int64), *codes]).astype(np.int64)]
    return numbers, [values[number] for number in order]


def feature_names(table: Table, columns: Columns, rows: Parted) -> list[str]:
    """Return the columns that are features when none are named: all that have no role, which must be numbers.

    In a table without types each row that must be right holds a number; where none must, most rows do, so that no single
    one says what the column is.
    """
    names = [
        name for name in table.names if name not in columns.roles and not name.startswith("__index_level_")
    ]
    advice = "name the columns of the inputs in features, or set text or image to one"
    for name in names:
        check_numbers(table, name, rows, f", no number; {advice}")
        if not rows.is_needed and is_text(table.type_of(name)):
            right, empty = _kinds_of_cells(table.column(name, "features", may_be_empty=True))
            if 2 * (right & ~empty).sum() <= (~empty).sum() and not empty.all():
                raise DataError(
                    f"The column {name!r} of {table.path} holds other things in most rows, no number; {advice}."
                )
    if not names:
        raise DataError(
            f"{table.path} has no column of numbers besides {', '.join(columns.roles)}; {advice}."
        )
    return names


def check_numbers(table: Table, name: str, rows: Parted, advice: str = "; it must hold numbers") -> None:
    """Raise `DataError` for a column of no numbers: by its type, or in a table without types by the rows that must be right."""
    kind = table.type_of(name)
    if is_number(kind):
        return
    where = f"The column {name!r} of {table.path}"
    if table.typed or not is_text(kind):
        raise DataError(f"{where} is {kind}{advice}.")
    right, empty = _kinds_of_cells(table.column(name, "features", may_be_empty=True))
    what, _, remedy = f"{where} holds something else in {{}}{advice}".rpartition("; ")
    rows.refuse(~(right | empty), what, remedy)


def numbers(table: Table, names: Sequence[str], rows: Parted) -> np.ndarray:
    """Return float32 [rows, columns] of columns of numbers; an empty cell is not a number.

    Nor is what else is no number in a table without types, which is a `DataError` in a row that must be right.
    """
    x = np.empty((len(table), len(names)), dtype=np.float32)
    for place, name in enumerate(names):
        column = table.column(name, "features", may_be_empty=True)
        check_numbers(table, name, rows)
        if is_text(column.type):
            x[:, place] = _numbers_of(column)
        else:
            x[:, place] = (column.cast("int8") if pa.types.is_boolean(column.type) else column).to_numpy()
    return x


# What a cell of a table without types means is said by the cell alone: no user's cell changes what others' cells mean.


def _trimmed(column: Column) -> Column:
    """Return the cells of a column without blanks around them."""
    return pc.fill_null(pc.utf8_trim(column, characters=" \t"), "")


def _kinds_of_cells(column: Column) -> tuple[np.ndarray, np.ndarray]:
    """Return which cells [rows] are numbers, or true or false, and which ones CSV takes as empty: "", NA, nan and the like."""
    cells = _trimmed(column)
    words = pc.is_in(pc.utf8_lower(cells), pa.array(["true", "false"], cells.type))
    empty = pc.is_in(cells, pa.array(pyarrow.csv.ConvertOptions().null_values, cells.type))
    return pc.or_(words, pc.match_substring_regex(cells, _NUMBER)).to_numpy(), empty.to_numpy()


def _numbers_of(column: Column) -> np.ndarray:
    """Return float32 [rows] of a column of texts: numbers, 1 for true and 0 for false, NaN for all else."""
    cells = _trimmed(column)
    lower = pc.utf8_lower(cells)
    cells = pc.if_else(pc.equal(lower, "true"), "1", pc.if_else(pc.equal(lower, "false"), "0", cells))
    known = pc.if_else(pc.match_substring_regex(cells, _NUMBER), cells, pa.scalar(None, cells.type))
    held: np.ndarray = known.cast(pa.float32()).to_numpy()
    return held


def encoded(column: Column) -> Column:
    """Return the bytes of a column of encoded pictures."""
    chunks = [getattr(chunk, "storage", chunk) for chunk in column.chunks]
    fields = [chunk.field("bytes") if pa.types.is_struct(chunk.type) else chunk for chunk in chunks]
    return pa.chunked_array(fields, type=fields[0].type if fields else pa.binary())


def is_encoded(kind: Any) -> bool:
    """Return whether an Arrow type holds encoded pictures: bytes, or the hub's {bytes, path}."""
    kind = getattr(kind, "storage_type", kind)
    if pa.types.is_struct(kind):
        return bool(kind.get_field_index("bytes") >= 0)
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def is_list(kind: Any) -> bool:
    """Return whether an Arrow type holds lists."""
    kind = getattr(kind, "storage_type", kind)
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def is_number(kind: Any) -> bool:
    """Return whether an Arrow type holds numbers, or true and false."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def is_text(kind: Any) -> bool:
    """Return whether an Arrow type holds texts."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))

"""Tables of your own: CSV, parquet, a saved Hugging Face data set, and folders of pictures, each as one Arrow table.

Each row has a user, a label and an input. What one row holds is its user's affair: a cell that is no number is NaN, a label
that is no class is `UNREADABLE`, and a list, picture or text that cannot be read fails its client. Only a test row, which is
public, must be right. Needs pyarrow, an extra: `client.data.registry` imports this module where it is needed.
"""

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from client.data.dataset import UNREADABLE, Dataset, Public
from client.data.own import TEXT_SETTINGS, Owned, OwnSettings, count_classes, owned
from client.data.reading import reading
from client.data.rows import Pictures, Rows
from client.data.text import Tokens, from_texts, split_text, text_level
from client.imports import need
from fedmf.errors import DataError, SettingError

Column = Any
"""A pyarrow.ChunkedArray."""

AT_ONCE = 1 << 14
"""Rows of parquet that are decoded together: of lists, what parquet needs for it is ten times what they are."""
KINDS = (".png", ".jpg", ".jpeg")
SPLITS = ("train", "test")
TABLES_OF_PICTURES = ("metadata.csv", "metadata.parquet")
LEARNT_NAMES = (
    "The names of the classes were collected from all rows, those of the training users too: an uncovered release. "
    "Give a public list of them as labels."
)
NAME_THEM = "name the columns of the inputs in features, or set text or image to one"
_MEANINGS = {"train": 0, "test": 1, "0": 0, "1": 1, "false": 0, "true": 1}
_OF_SYSTEMS = {"thumbs.db", "desktop.ini"}  # besides hidden files: what a system puts next to pictures
_NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
_WHOLE = re.compile(r"[+-]?[0-9]{1,40}(\.0*)?")


@dataclass(frozen=True)
class Columns:
    """Which columns of a table are read: those that have one of the `roles`, and the `inputs` (None: all others)."""

    roles: Sequence[str]
    inputs: Sequence[str] | None

    def used(self, names: Sequence[str]) -> list[str]:
        """Return which of the columns `names` of a table are read."""
        return [name for name in names if self.inputs is None or name in (*self.roles, *self.inputs)]

    def check_near(self, path: Path, names: Sequence[str]) -> None:
        """Raise `DataError` where a column would be an input, or ignored, for a blank or a capital letter."""
        for role in self.roles:
            near = [
                name for name in names if name != role and name.strip().casefold() == role.strip().casefold()
            ]
            if near and (self.inputs is None or role not in names):
                raise DataError(
                    f"{path} has a column {near[0]!r}, which differs from {role!r} in blanks or capital letters alone; "
                    "rename one of them."
                )


@dataclass(frozen=True)
class Table:
    """The used columns of the table at `path`, whose columns are called `names`.

    `test` [rows] says which rows are test rows where the files are split already. `class_names` are those that the
    table's schema declares for a column of label numbers. A table that is not `typed` holds texts alone.
    `folder`: where the files are that a table of pictures names.
    """

    path: Path
    held: Any
    names: Sequence[str]
    test: np.ndarray | None = None
    class_names: dict[str, tuple[str, ...]] = field(default_factory=dict)
    typed: bool = True
    folder: Path | None = None

    def column(self, name: str, key: str) -> Column:
        """Return a column, or raise `DataError` about the setting `key` that names it.

        Of encoded pictures its bytes are returned; dictionaries and types of extensions are resolved. Empty cells, and texts
        that are not UTF-8, are one user's values and stay.
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
        chunks = [getattr(chunk, "storage", chunk) for chunk in column.chunks]
        if chunks and pa.types.is_struct(chunks[0].type) and chunks[0].type.get_field_index("bytes") >= 0:
            chunks = [chunk.field("bytes") for chunk in chunks]  # the hub's {bytes, path}
        with reading(self.about(name), "a table", also=(pa.ArrowException,)):
            for chunk in chunks:
                _as_bytes(chunk).validate(full=True)
        column = pa.chunked_array(chunks, type=chunks[0].type if chunks else column.type)
        return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column

    def about(self, name: str) -> str:
        """Return what an error calls a column."""
        return f"The column {name!r} of {self.path}"


def load_table(name: str, path: Path, settings: OwnSettings, public: Public | None) -> Dataset:
    """Return the data set `name` in a table; without a split a fifth of each user's rows is the test set.

    With `public` only clients are made, whose labels are numbers or the names that `public` has.
    """
    user, label, split = (getattr(settings, role) or role for role in ("user", "label", "split"))
    one = settings.text or settings.image or (settings.file or "file_name") * (name == "by_user_images")
    roles = [user, split, *([label] if settings.text is None else [])]
    columns = Columns(roles, [one] if one else settings.features)
    table = READERS[name](path, columns, settings)
    columns.check_near(table.path, table.names)
    users, names = users_of(table, user)
    rows = owned(table.path, users, names, test_rows(table, settings.split), "{} in the split column", public)
    if settings.text is not None:
        settings.refuse("text is given", "classes", "labels")
        return from_texts(name, rows, _tokens(table, settings.text, text_level(settings)), settings)
    settings.refuse("text is not given", *TEXT_SETTINGS)
    y, classes, labels, learnt = read_labels(table, label, rows, settings)
    x = _inputs(table, columns, settings, rows)
    return rows.dataset(name, x, y, classes, uncovered=(LEARNT_NAMES,) * learnt, labels=tuple(labels))


def users_of(table: Table, name: str) -> tuple[np.ndarray, list[Any]]:
    """Return (places int64 [rows], names): the users of the rows, in the order of their names (numbers, or texts).

    Names are whole numbers or texts, taken as they are: "7" and "007" are two users.
    """
    column = table.column(name, "user")
    if not (pa.types.is_integer(column.type) or is_text(column.type)):
        raise DataError(
            f"{table.about(name)} is {column.type}; it must name users by whole numbers or texts."
        )
    places, names = ranked(column)
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
    name = name or "split"
    column = table.column(name, "split")
    if not (pa.types.is_integer(column.type) or pa.types.is_boolean(column.type) or is_text(column.type)):
        raise DataError(f"{table.about(name)} is {column.type}; it must hold 0 or train, 1 or test.")
    places, values = ranked(column)
    meanings = np.array([*(_MEANINGS.get(str(value).lower(), -1) for value in values), -1])[places]
    if (meanings < 0).any():
        row = int(np.argmax(meanings < 0)) + 1
        raise DataError(
            f"{table.about(name)} holds neither in row {row}; it must hold 0 or train, 1 or test."
        )
    is_test: np.ndarray = meanings == 1
    return is_test


def ranked(column: Column, *, strip: bool = False) -> tuple[np.ndarray, list[Any]]:
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
    column, declared = table.column(name, "label"), table.class_names.get(name, ())
    whole = pa.types.is_integer(column.type)
    if not (whole or is_text(column.type)):
        raise DataError(f"{where} is {column.type}; it must hold whole numbers or names.")
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
        number_of = {value: value for value in values if 0 <= value < known}
    else:
        if whole:
            values = [_named(value, declared) for value in values]
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


def _named(number: int, declared: Sequence[str]) -> str | None:
    """Return the name of a class number: that which a schema has `declared`, if it has any."""
    if not declared:
        return str(number)
    return declared[number] if 0 <= number < len(declared) else None


def _inputs(table: Table, columns: Columns, settings: OwnSettings, rows: Owned) -> np.ndarray | Rows:
    """Return the inputs of all rows."""
    first, public = int(np.argmax(rows.test)), rows.public.shape if rows.public else None
    if table.folder is not None:
        (name,) = columns.inputs or ()
        column = table.column(name, "file")
        if not is_text(column.type):
            raise DataError(f"{table.about(name)} is {column.type}; it must name files.")
        return Pictures.of(table.path, column, public, first, table.folder)
    one = settings.image or (
        settings.features[0] if settings.features and len(settings.features) == 1 else None
    )
    if one is not None:
        column = table.column(one, "image" if settings.image else "features")
        if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
            return Pictures.of(table.path, column, public, first)
        if is_list(column.type):
            with reading(table.about(one), "lists of one shape"):
                shape = public or np.shape(column[first].as_py())
            return Lists(f"{one!r} of {table.path}", column, (len(rows.test), *shape))
        if settings.image:
            raise DataError(f"{table.about(one)} is {column.type}; image must name lists of numbers.")
    names, advice = settings.features, "; it must hold numbers"
    if names is None:
        advice = f", no number; {NAME_THEM}"
        names = [
            name
            for name in table.names
            if name not in columns.roles and not name.startswith("__index_level_")
        ]
        if not names:
            raise DataError(
                f"{table.path} has no column of numbers besides {', '.join(columns.roles)}; {NAME_THEM}."
            )
    x = np.empty((len(rows.test), len(names)), dtype=np.float32)
    for place, name in enumerate(names):
        x[:, place] = _numbers(table, name, rows, advice)
    return x


def _numbers(table: Table, name: str, rows: Owned, advice: str) -> np.ndarray:
    """Return a column of numbers, float32 [rows]; an empty cell, and what is no number in a table of texts, is NaN.

    What a cell of a table without types means follows from the cell alone: 1 for true, 0 for false. One that is none of
    these is a `DataError` in a row that must be right.
    """
    column = table.column(name, "features")
    if not (is_text(column.type) and not table.typed):
        if not is_number(column.type):
            raise DataError(f"{table.about(name)} is {column.type}{advice}.")
        made: np.ndarray = (column.cast("int8") if pa.types.is_boolean(column.type) else column).to_numpy()
        return made
    with suppress(pa.ArrowInvalid):  # several times faster, where all cells are plain numbers
        plain: np.ndarray = column.cast(pa.float32()).to_numpy()
        return plain
    cells = pc.fill_null(pc.utf8_trim(column, characters=" \t"), "")
    lower = pc.utf8_lower(cells)
    known = pc.if_else(pc.equal(lower, "true"), "1", pc.if_else(pc.equal(lower, "false"), "0", cells))
    is_right = pc.match_substring_regex(known, _NUMBER)
    what, _, remedy = f"{table.about(name)} holds something else in {{}}{advice}".rpartition("; ")
    rows.check(~is_right.to_numpy(), what, remedy)
    numbers: np.ndarray = (
        pc.if_else(is_right, known, pa.scalar(None, cells.type)).cast(pa.float32()).to_numpy()
    )
    return numbers


@dataclass(frozen=True)
class Lists(Rows):
    """A column of lists of numbers, nested or not, of one shape."""

    where: str
    column: Column
    shape: tuple[int, ...]

    def take(self, rows: np.ndarray) -> np.ndarray:
        """Return the lists `rows` in the type of their numbers, or raise `DataError` for one of another shape."""
        if not len(rows):
            return np.empty((0, *self.shape[1:]), dtype=np.float32)
        values = pa.concat_arrays([self.column.slice(int(row), 1).chunk(0) for row in rows])
        for size in self.shape[1:]:
            if not is_list(values.type) or values.null_count or not (_lengths(values) == size).all():
                raise DataError(
                    f"A list in {self.where} is not of the shape {list(self.shape[1:])}; all must be."
                )
            values = values.flatten()
        if not is_number(values.type) or values.null_count:
            raise DataError(f"A list in {self.where} holds what is no number.")
        made: np.ndarray = values.to_numpy(zero_copy_only=False).reshape(len(rows), *self.shape[1:])
        return made


def _lengths(values: Any) -> np.ndarray:
    """Return how many entries each list of an Arrow array has."""
    lengths: np.ndarray = pc.list_value_length(values).to_numpy(zero_copy_only=False)
    return lengths


def _tokens(table: Table, name: str, level: str) -> Tokens:
    """Return what returns the tokens of one row of a column of texts or lists of tokens, None for an empty cell."""
    column = table.column(name, "text")
    if not is_text(column.type.value_type if is_list(column.type) else column.type):
        raise DataError(f"{table.about(name)} is {column.type}; it must hold texts, or lists of tokens.")

    def tokens(row: int) -> Sequence[str] | None:
        value = value_of(column[row])
        return None if value is None else split_text(value, level)

    return tokens


def value_of(cell: Any) -> Any:
    """Return the value of a cell, None for an empty one and for a text, or a list of texts, that is not UTF-8."""
    try:
        value = cell.as_py()
    except UnicodeDecodeError:
        return None
    return None if isinstance(value, list) and None in value else value


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


def is_list(kind: Any) -> bool:
    """Return whether an Arrow type holds lists."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def is_number(kind: Any) -> bool:
    """Return whether an Arrow type holds numbers, or true and false."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def is_text(kind: Any) -> bool:
    """Return whether an Arrow type holds texts."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def read_csv(path: Path, columns: Columns, delimiter: str = ",", folder: Path | None = None) -> Table:
    """Return a CSV file, or the CSV files of a folder, as a table of texts, so that 7 and 007 stay two users."""
    files = _listed(path, "CSV", ["*.csv"])
    parsing = pyarrow.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    with reading(files[0], "CSV"), pyarrow.csv.open_csv(files[0], parse_options=parsing) as reader:
        names = reader.schema.names  # decoded here
    if twice := [name for name in names if names.count(name) > 1]:
        # By their places: in a file that names no columns the first line is somebody's row.
        first, second = [place for place, name in enumerate(names, start=1) if name == twice[0]][:2]
        raise DataError(
            f"{files[0]} names its columns {first} and {second} alike; every column must have a name of its own."
        )
    used, parts = columns.used(names), []
    types = dict.fromkeys(used, pa.string())
    converting = pyarrow.csv.ConvertOptions(column_types=types, include_columns=used)
    for file in files:
        with reading(file, "CSV", also=(pa.ArrowException,)):
            parts.append(pyarrow.csv.read_csv(file, parse_options=parsing, convert_options=converting))
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


def read_parquet(path: Path, columns: Columns, folder: Path | None = None) -> Table:
    """Return a parquet file, or those of a folder, as a table."""
    files = _listed(path, "parquet", ["*.parquet", "data/*.parquet"])
    with reading(path, "parquet", also=(pa.ArrowException,)):
        opened = [pyarrow.parquet.ParquetFile(file) for file in files]
        schema = opened[0].schema_arrow
        used = columns.used(schema.names)
        batches = (batch for part in opened for batch in part.iter_batches(AT_ONCE, columns=used))
        held = pa.Table.from_batches(batches, pa.schema([schema.field(name) for name in used]))
    return Table(path, held, schema.names, folder=folder)


def read_file(path: Path, columns: Columns, folder: Path | None = None) -> Table:
    """Return a parquet file, called so, or a CSV file as a table."""
    read = read_parquet if path.suffix == ".parquet" else read_csv
    return read(path, columns, folder=folder)


def read_saved(path: Path, columns: Columns) -> Table:
    """Return a data set that `save_to_disk` wrote, memory-mapped: of a `DatasetDict` the rows of train, then of test."""
    if not path.is_dir():
        problem = "is no folder" if path.exists() else "does not exist"
        raise DataError(
            f"The data folder {path} {problem}; path must name the folder that save_to_disk wrote."
        )
    library = need("datasets", f"Reading {path}")
    with reading(
        path, "a data set that save_to_disk wrote", also=(Exception,)
    ):  # of many kinds, by what is damaged
        saved = library.load_from_disk(str(path))
        parts, test = [saved], None
        if isinstance(saved, library.DatasetDict):
            if absent := [name for name in SPLITS if name not in saved]:
                raise DataError(
                    f"{path} has the splits {', '.join(saved)} but no {absent[0]}; it must have train and test, or set path "
                    "to the folder of one split."
                )
            parts = [saved[name] for name in SPLITS]
            test = np.repeat([False, True], [len(part) for part in parts])
        stored = [part.flatten_indices() if part._indices is not None else part for part in parts]
        used = columns.used(stored[0].column_names)
        held = pa.concat_tables([part.data.table.select(used) for part in stored])
    names = {
        name: tuple(kind.names)
        for name, kind in stored[0].features.items()
        if isinstance(kind, library.ClassLabel)
    }
    return Table(path, held, stored[0].column_names, test, names)


def read_images(folder: Path, columns: Columns, settings: OwnSettings) -> Table:
    """Return a table of the pictures below `folder`: at USER/LABEL/FILE, or as a table names them.

    That is the CSV or parquet file `table`, or metadata.csv or metadata.parquet in the folder. Without a table the pictures
    may also be at train/USER/LABEL/FILE and test/USER/LABEL/FILE.
    """
    if not folder.is_dir():
        raise DataError(f"The data folder {folder} does not exist; path must name a folder of pictures.")
    listed = next((folder / name for name in TABLES_OF_PICTURES if (folder / name).is_file()), None)
    if settings.table is not None:
        listed = Path(settings.table).expanduser()
        if not listed.is_file():
            raise DataError(
                f"table is {settings.table}, which does not exist; it must be a CSV or parquet file."
            )
    if listed is not None:
        return read_file(listed, columns, folder)
    settings.refuse("there is no table, and folders say it", "file", "user", "label", "split")
    found = []
    for file in sorted(file for depth in range(1, 5) for file in folder.glob("/".join("*" * depth))):
        place = file.relative_to(folder).parts
        if any(part[0] == "." or part.lower() in _OF_SYSTEMS for part in place):
            continue
        if file.suffix.lower() in KINDS and len(place) > 2:
            found.append(place)
        elif not file.is_dir() or len(place) == 4:
            raise DataError(f"{file} is no picture at USER/LABEL/FILE; a picture ends in {', '.join(KINDS)}.")
    if not found:
        raise DataError(f"{folder} holds no pictures; they must lie at {folder}/USER/LABEL/FILE.")
    splits = [place[0] if len(place) == 4 else "" for place in found]
    if {*splits} not in ({""}, {*SPLITS}):
        raise DataError(
            f"{folder} holds pictures at USER/LABEL/FILE and below other folders than train and test."
        )
    with reading(folder, "pictures in folders whose names are UTF-8"):
        held = pa.table(
            {
                "file_name": ["/".join(place) for place in found],
                "user": [place[-3] for place in found],
                "label": [place[-2] for place in found],
            }
        )
    test = None if "" in splits else np.array(splits) == "test"
    return Table(folder, held, held.column_names, test, typed=False, folder=folder)


READERS: dict[str, Callable[[Path, Columns, OwnSettings], Table]] = {
    "by_user_csv": lambda path, columns, settings: read_csv(path, columns, settings.delimiter),
    "by_user_parquet": lambda path, columns, settings: read_parquet(path, columns),
    "by_user_hub": lambda path, columns, settings: read_saved(path, columns),
    "by_user_images": read_images,
}

"""Files of tables, each as one Arrow table: CSV, parquet, a saved Hugging Face dataset, and folders of pictures.

Needs pyarrow, an extra: it is imported where a table is read.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from client.data.own import OwnSettings
from client.data.reading import open_text, reading
from client.imports import need
from fedmf.errors import DataError

# A pyarrow.ChunkedArray.
Column = Any

# Rows of parquet that are decoded together: of lists, what parquet needs for it is ten times what they are.
AT_ONCE = 1 << 14
TEXT, BYTES, LIST, WHOLE, FLOAT, TRUTH = "text", "bytes", "list", "whole number", "float", "true or false"
NUMBERS = (WHOLE, FLOAT, TRUTH)
PICTURES = (".png", ".jpg", ".jpeg")
SPLITS = ("train", "test")
TABLES_OF_PICTURES = ("metadata.csv", "metadata.parquet")
_USUAL = OwnSettings()
_OF_SYSTEMS = {"thumbs.db", "desktop.ini"}  # besides hidden files: what a system puts next to pictures


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

    def column(self, name: str, key: str, kinds: Sequence[str], right: str) -> Column:
        """Return a column of one of the `kinds`; raise `DataError` about the setting `key`, or state what would be `right`.

        Of encoded pictures its bytes are returned; dictionaries, views and types of extensions are resolved. Empty cells, and texts
        that are not UTF-8, are one user's values and stay.
        """
        if name not in self.names:
            # The first line of a text file that names no columns is somebody's row.
            right = (
                f"set {key} to one of the {len(self.names)} columns that its first line names, or with header=false to one of f0, "
                "f1 and so on"
            )
            if self.typed:
                right = f"it has {', '.join(self.names) or 'none'}: set {key} to one of them"
            elif [*self.names] == [f"f{place}" for place in range(len(self.names))]:
                right = f"set {key} to one of f0 to {self.names[-1]}"
            raise DataError(f"{self.path} has no column {name!r}; {right}.")
        column = self.held.column(name)
        chunks = [getattr(chunk, "storage", chunk) for chunk in column.chunks]
        if chunks and pa.types.is_struct(chunks[0].type) and chunks[0].type.get_field_index("bytes") >= 0:
            chunks = [chunk.field("bytes") for chunk in chunks]  # the hub's {bytes, path}
        with reading(self.about(name), "a table"):
            chunks = [chunk.cast(_plain_type(chunk.type)) for chunk in chunks]
            for chunk in chunks:
                _as_bytes(chunk).validate(full=True)
        column = pa.chunked_array(chunks, type=chunks[0].type if chunks else column.type)
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        if kind_of(column.type) not in kinds:
            if key == "features" and kind_of(column.type) == BYTES:
                right = f", no number; set image={name} if these are pictures"
            raise DataError(f"{self.about(name)} is {self.held.column(name).type}{right}.")
        return column

    def about(self, name: str) -> str:
        """Return what an error calls a column."""
        return f"The column {name!r} of {self.path}"


def _plain_type(kind: Any) -> Any:
    """Return the type that a column is read as: of a view of texts or bytes, or of bytes of a fixed size, the usual one.

    Views of lists are no such: pyarrow 26 casts them to lists whose last offset is missing.
    """
    if pa.types.is_string_view(kind):
        return pa.large_string()
    is_other = pa.types.is_binary_view(kind) or pa.types.is_fixed_size_binary(kind)
    return pa.large_binary() if is_other else kind


def _as_bytes(chunk: Any) -> Any:
    """Return texts, or lists of them, as bytes, which need not be UTF-8; other values as they are."""
    if pa.types.is_dictionary(chunk.type):
        return pa.DictionaryArray.from_arrays(chunk.indices, _as_bytes(chunk.dictionary))
    kind = _bytes_for(chunk.type)
    return chunk if kind.equals(chunk.type) else chunk.view(kind)


def _bytes_for(kind: Any) -> Any:
    """Return the type of bytes for one of texts, or of lists of them, and others as they are."""
    if kind_of(kind) == TEXT:
        return pa.binary() if pa.types.is_string(kind) else pa.large_binary()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        of = pa.list_ if pa.types.is_list(kind) else pa.large_list
        return of(kind.value_field.with_type(_bytes_for(kind.value_type)))
    return kind


_TYPES: dict[str, tuple[Callable[[Any], bool], ...]] = {
    TEXT: (pa.types.is_string, pa.types.is_large_string),
    BYTES: (pa.types.is_binary, pa.types.is_large_binary),
    LIST: (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list),
    WHOLE: (pa.types.is_integer,),
    FLOAT: (pa.types.is_floating,),
    TRUTH: (pa.types.is_boolean,),
}


def kind_of(kind: Any) -> str:
    """Return which of `_TYPES` an Arrow type is, "" for another."""
    return next((name for name, tests in _TYPES.items() if any(test(kind) for test in tests)), "")


def value_of(cell: Any) -> Any:
    """Return the value of a cell, None for an empty one and for a text, or a list of texts, that is not UTF-8."""
    try:
        value = cell.as_py()
    except UnicodeDecodeError:
        return None
    return None if isinstance(value, list) and None in value else value


def rows_of(batch: Any) -> list[dict[str, Any]]:
    """Return the rows of a record batch, values by column; None for an empty cell and for a text that is not UTF-8."""
    try:
        return batch.to_pylist()  # type: ignore[no-any-return]
    except UnicodeDecodeError:  # cell by cell is several times slower
        columns, names = [map(value_of, column) for column in batch.columns], batch.schema.names
        return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def used_columns(names: Sequence[str], wanted: Sequence[str] | None) -> list[str]:
    """Return which of the columns `names` of a table are read: those `wanted`, or all."""
    return [name for name in names if wanted is None or name in wanted]


def read_csv(
    path: Path, wanted: Sequence[str] | None, settings: OwnSettings = _USUAL, folder: Path | None = None
) -> Table:
    """Return a CSV file, or the CSV files of a folder, as a table of texts, so that 7 and 007 stay two users.

    Lines that begin with `settings.comment` are left out: those that are rows by their number of cells after all is read.
    """
    files, comment = _listed(path, "CSV", ["*.csv"]), settings.comment
    parsing = pyarrow.csv.ParseOptions(
        delimiter=settings.delimiter,
        newlines_in_values=True,
        invalid_row_handler=comment and (lambda row: "skip" if row.text.startswith(comment) else "error"),
    )
    with (
        reading(files[0], "CSV"),
        _in_blocks(pyarrow.csv.open_csv, files[0], settings, parse_options=parsing) as reader,
    ):
        names = reader.schema.names  # decoded here
    if twice := [name for name in names if names.count(name) > 1]:
        # By their places: in a file that names no columns the first line is somebody's row.
        first, second = [place for place, name in enumerate(names, start=1) if name == twice[0]][:2]
        raise DataError(
            f"{files[0]} names its columns {first} and {second} alike; every column must have a name of "
            "its own. If the first line is a row, set header to False."
        )
    used, parts = used_columns(names, wanted), []
    if comment and names[0] not in used:
        used = [names[0], *used]
    options = {
        "parse_options": parsing,
        "convert_options": pyarrow.csv.ConvertOptions(
            column_types=dict.fromkeys(used, pa.string()), include_columns=used
        ),
    }
    for file in files:
        with reading(file, "CSV"):
            parts.append(_in_blocks(pyarrow.csv.read_csv, file, settings, **options))
    held = pa.concat_tables(parts)
    if comment:
        held = held.filter(pc.invert(pc.starts_with(held.column(names[0]), comment)))
    return Table(path, held, names, typed=False, folder=folder)


def _in_blocks(read: Callable[..., Any], file: Path, settings: OwnSettings, **options: Any) -> Any:
    """Return `read(file, ...)` with blocks in which all rows fit: else one user's long cell would refuse the file.

    Larger blocks are tried where the usual ones, of a MiB, do not do: they take many times the file in memory.
    """
    skipped = 0
    if comment := settings.comment:
        with open_text(file) as lines:
            skipped = len([*takewhile(lambda line: line.startswith(comment), lines)])
    *usual, largest = (
        pyarrow.csv.ReadOptions(
            block_size=1 << power,
            autogenerate_column_names=not settings.header,
            skip_rows=skipped,
        )
        for power in (20, 25, 30)
    )
    for blocks in usual:
        try:
            return read(file, read_options=blocks, **options)
        except pa.ArrowInvalid as error:
            if "straddling" not in str(error):  # a row that ends beyond the next block
                raise
    return read(file, read_options=largest, **options)


def _listed(path: Path, kind: str, patterns: Sequence[str]) -> list[Path]:
    """Return a file, or the files of a folder that have one of the `patterns`, in the order of their names."""
    files = (
        [path] if path.is_file() else sorted({file for pattern in patterns for file in path.glob(pattern)})
    )
    if not files:
        problem = f"folder {path} holds no {kind} file" if path.is_dir() else f"file {path} does not exist"
        raise DataError(f"The data {problem}; path must name a {kind} file, or a folder of them.")
    return files


def read_parquet(path: Path, wanted: Sequence[str] | None, folder: Path | None = None) -> Table:
    """Return a parquet file, or those of a folder, as a table."""
    files = _listed(path, "parquet", ["*.parquet", "data/*.parquet"])
    with reading(path, "parquet"):
        opened = [pyarrow.parquet.ParquetFile(file) for file in files]
        names = opened[0].schema_arrow.names
        used = used_columns(names, wanted)
        try:
            held = _decoded(opened, used)
        except pa.ArrowInvalid:
            held = _decoded([_with_wide_indices(file) for file in files], used)
    return Table(path, held, names, folder=folder)


def _decoded(opened: Sequence[Any], used: Sequence[str]) -> Any:
    batches = (batch for part in opened for batch in part.iter_batches(AT_ONCE, columns=used))
    return pa.Table.from_batches(batches, pa.schema([opened[0].schema_arrow.field(name) for name in used]))


def _with_wide_indices(file: Path) -> Any:
    """Open a parquet file as if its dictionaries had been written with indices of int32, which is what parquet decodes.

    pyarrow 26 casts to the indices that were written (int8, for a category of pandas), which fails where one user's text is not UTF-8.
    """
    metadata = pyarrow.parquet.read_metadata(file)
    schema = metadata.schema.to_arrow_schema()
    for place, field_ in enumerate(schema):
        if pa.types.is_dictionary(field_.type):
            schema = schema.set(place, field_.with_type(pa.dictionary(pa.int32(), field_.type.value_type)))
    written = BytesIO()
    pyarrow.parquet.write_metadata(schema, written, metadata_collector=[metadata])
    written.seek(0)
    return pyarrow.parquet.ParquetFile(file, metadata=pyarrow.parquet.read_metadata(written))


def read_file(path: Path, wanted: Sequence[str] | None, folder: Path | None = None) -> Table:
    """Return a parquet file, called so, or a CSV file as a table."""
    return (read_parquet if path.suffix == ".parquet" else read_csv)(path, wanted, folder=folder)


def read_saved(path: Path, wanted: Sequence[str] | None) -> Table:
    """Return a dataset that `save_to_disk` wrote, memory-mapped: of a `DatasetDict` the rows of train, then of test."""
    library = need("datasets", f"Reading {path}")
    with reading(path, "a dataset that save_to_disk wrote"):
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
        used = used_columns(stored[0].column_names, wanted)
        held = pa.concat_tables([part.data.table.select(used) for part in stored])
    names = {
        name: tuple(kind.names)
        for name, kind in stored[0].features.items()
        if isinstance(kind, library.ClassLabel)
    }
    return Table(path, held, stored[0].column_names, test, names)


def read_images(folder: Path, wanted: Sequence[str] | None, settings: OwnSettings) -> Table:
    """Return a table of the pictures below `folder`: at USER/LABEL/FILE, or as a table names them; without users at LABEL/FILE.

    That is the CSV or parquet file `table`, or metadata.csv or metadata.parquet in the folder. Without a table the pictures
    may also be at train/USER/LABEL/FILE and test/USER/LABEL/FILE.
    """
    parts = ("user", "label") if settings.has_users else ("label",)
    depth, right = len(parts) + 1, "/".join([*parts, "file"]).upper()
    if not folder.is_dir():
        raise DataError(f"{folder} is no folder; path must name a folder of pictures, unpacked.")
    listed = next((folder / name for name in TABLES_OF_PICTURES if (folder / name).is_file()), None)
    if settings.table is not None:
        listed = Path(settings.table).expanduser()
        if not listed.is_file():
            raise DataError(
                f"table is {settings.table}, which does not exist; it must be a CSV or parquet file."
            )
    if listed is not None:
        return read_file(listed, wanted, folder)
    settings.refuse("there is no table, and folders say it", "file", "user", "label", "split")
    found = []
    for file in sorted(file for level in range(1, depth + 2) for file in folder.glob("/".join("*" * level))):
        place = file.relative_to(folder).parts
        if any(part[0] == "." or part.lower() in _OF_SYSTEMS for part in place):
            continue
        if file.suffix.lower() in PICTURES and len(place) >= depth:
            found.append(place)
        elif not file.is_dir() or len(place) > depth:
            raise DataError(
                f"{file} is no picture at {right}; a picture ends in {', '.join(PICTURES)}. Move it out of {folder}."
            )
    if not found:
        raise DataError(f"{folder} holds no pictures; they must lie at {folder}/{right}.")
    splits = [place[0] if len(place) > depth else "" for place in found]
    if {*splits} not in ({""}, {*SPLITS}):
        raise DataError(f"{folder} holds pictures at {right} and below other folders than train and test.")
    with reading(folder, "pictures in folders whose names are UTF-8"):
        columns = {part: [place[-depth + number] for place in found] for number, part in enumerate(parts)}
        held = pa.table({"file_name": ["/".join(place) for place in found], **columns})
    test = None if "" in splits else np.array(splits) == "test"
    return Table(folder, held, held.column_names, test, typed=False, folder=folder)


READERS: dict[str, Callable[[Path, Sequence[str] | None, OwnSettings], Table]] = {
    "by_user_csv": read_csv,
    "by_user_parquet": lambda path, wanted, settings: read_parquet(path, wanted),
    "by_user_hub": lambda path, wanted, settings: read_saved(path, wanted),
    "by_user_images": read_images,
}

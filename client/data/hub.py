"""Flower's copies of LEAF on the Hugging Face hub, read from disk or, when asked, downloaded.

A download happens only with `download=True`. The files as the hub holds them (parquet or CSV), put in
a folder by hand, are read without any network.
"""

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from client.data.pictures import pixels_of
from client.data.reading import reading
from client.imports import need
from fedmf.errors import DataError

AT_ONCE = 1000  # rows of a table that are in memory together


@dataclass(frozen=True)
class Rows:
    """Some rows of a table: columns by name, the number of the first row (0-based), and the share of its file."""

    columns: Mapping[str, Sequence[Any]]
    first: int
    share: float

    def __getitem__(self, name: str) -> Sequence[Any]:
        """Return a column."""
        return self.columns[name]


@dataclass(frozen=True)
class Download:
    """The train split of a hub data set as `datasets` holds it on this machine."""

    table: Any

    @property
    def files(self) -> list[Path]:
        """Return the files that hold it, none where it is only in memory."""
        return [Path(held["filename"]) for held in getattr(self.table, "cache_files", [])]

    def read(self, columns: Sequence[str], user: str) -> Iterator[Rows]:
        """Yield its rows, some at a time; `user` is one of the `columns`. Pictures are left encoded, for `pixels`."""
        held_by = self.table.select_columns(list(columns)).with_format(None)
        library = need("datasets", "Reading a download")
        for name, kind in held_by.features.items():
            if isinstance(kind, library.Image):
                held_by = held_by.cast_column(name, library.Image(decode=False))
        count = len(held_by)
        for start in range(0, count, AT_ONCE):
            stop = min(count, start + AT_ONCE)
            held = held_by[start:stop]
            yield Rows(held, start, (stop - start) / count)


@dataclass(frozen=True)
class Files:
    """The files of a hub data set that lie in a folder: parquet or CSV."""

    files: list[Path]

    def read(self, columns: Sequence[str], user: str) -> Iterator[Rows]:
        """Yield the rows of all files, some at a time, or raise `DataError` when a column, or a row's `user`, is missing.

        Other values may be None: they are one user's mistake.
        """
        first = 0
        for file in self.files:
            parts = _read_parquet(file, columns) if file.suffix == ".parquet" else _read_csv(file, columns)
            begin = first
            for part, share in parts:
                if None in part[user]:
                    row = first - begin + list(part[user]).index(None) + 1
                    raise DataError(f"Row {row} of {file} has no {user}; every row must have one.")
                yield Rows(part, first, share)
                first += len(part[columns[0]])
        if not first:
            raise DataError(f"{self.files[-1]} holds no rows; it must hold examples.")


def source(name: str, path: Path | None) -> Files | Download:
    """Return the tables at `path`, or where that is None the data set `name`, downloaded."""
    return download(name) if path is None else Files(table_files(path))


def download(name: str) -> Download:
    """Return a hub data set's train split through flwr-datasets, or raise `DataError`."""
    module = need("flwr_datasets", f"Downloading {name}")
    partitioner = need("flwr_datasets.partitioner", f"Downloading {name}").IidPartitioner(num_partitions=1)
    try:
        table = module.FederatedDataset(dataset=name, partitioners={"train": partitioner}).load_split("train")
    except Exception as error:  # the hub's client raises errors of many libraries
        raise DataError(
            f"{name} could not be downloaded ({type(error).__name__}: {error}); on a machine without the "
            "network put its files (*.parquet or *.csv, as the hub holds them) into a folder and set "
            "path to it."
        ) from error
    return Download(table)


def is_table(path: Path) -> bool:
    """Return whether `path` is a parquet or CSV file, or a folder of them."""
    return bool(table_files(path))


def table_files(path: Path) -> list[Path]:
    """Return the parquet or CSV files at `path`, also below a folder data/."""
    if path.is_file():
        return [path] if path.suffix in (".parquet", ".csv") else []
    found = [*path.glob("*.parquet"), *path.glob("data/*.parquet"), *path.glob("*.csv")]
    return sorted(found)


def pixels(image: Any, shape: tuple[int, int]) -> np.ndarray:
    """Return one image of the hub, {"bytes": PNG}, as uint8 [H, W].

    Raises `DataError` for what is no such picture of `shape`.
    """
    if not isinstance(image, Mapping) or not isinstance(image.get("bytes"), bytes):
        raise DataError("There is no picture.")
    mode, array = pixels_of(image["bytes"], "A picture")
    if mode != "L" or array.shape != shape:
        raise DataError(
            f"A picture is {mode} {array.shape[1]} x {array.shape[0]}; it must be 8-bit grey (L), {shape[1]} x {shape[0]}."
        )
    return array


def _read_parquet(file: Path, columns: Sequence[str]) -> Iterator[tuple[dict[str, list[Any]], float]]:
    """Yield columns of a parquet file, some rows at a time, and which share of the file these are."""
    parquet = need("pyarrow.parquet", f"Reading {file}")
    library = need("pyarrow", f"Reading {file}")
    with reading(file, "parquet", also=(library.ArrowException,)):
        opened = parquet.ParquetFile(file)
        _refuse_absent(file, columns, opened.schema_arrow.names)
        for batch in opened.iter_batches(AT_ONCE, columns=list(columns)):
            yield batch.to_pydict(), batch.num_rows / opened.metadata.num_rows


def _read_csv(file: Path, columns: Sequence[str]) -> Iterator[tuple[dict[str, list[Any]], float]]:
    """Yield columns of a CSV file with a header, some rows at a time, and which share of the file these are."""
    size = max(1, file.stat().st_size)
    with reading(file, "CSV in UTF-8"), file.open("rb") as raw:
        reader = csv.DictReader(io.TextIOWrapper(raw, newline="", encoding="utf-8-sig"), strict=True)
        _refuse_absent(file, columns, reader.fieldnames or ())
        done = before = 0
        while rows := list(islice(reader, AT_ONCE)):
            for number, row in enumerate(rows, start=done + 1):
                if None in row or None in row.values():  # what csv makes of too many and of too few cells
                    raise DataError(
                        f"Row {number} of {file} has not as many cells as the header; each row must have one for each "
                        "column."
                    )
            yield (
                {name: [row[name] for row in rows] for name in columns},
                ((read := raw.tell()) - before) / size,
            )
            done, before = done + len(rows), read


def _refuse_absent(file: Path, columns: Sequence[str], held: Sequence[str]) -> None:
    """Raise `DataError` unless a file holds all `columns`."""
    if absent := [name for name in columns if name not in held]:
        raise DataError(f"{file} lacks the column {absent[0]}; it holds {', '.join(held) or 'nothing'}.")

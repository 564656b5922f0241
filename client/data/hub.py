"""Flower's copies of LEAF on the Hugging Face hub, read from disk or, when asked, downloaded.

A download happens only with `download=True`. The files as the hub holds them (parquet or CSV), put in
a folder by hand, are read without any network.
"""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from client.data.reading import reading
from client.imports import need
from fedmf.errors import DataError


def download(name: str, columns: Sequence[str]) -> Mapping[str, list[Any]]:
    """Return columns of a hub data set's train split through flwr-datasets, or raise `DataError`."""
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
    return {column: table[column][:] for column in columns}


def is_table(path: Path) -> bool:
    """Return whether `path` is a parquet or CSV file, or a folder of them."""
    return bool(table_files(path))


def table_files(path: Path) -> list[Path]:
    """Return the parquet or CSV files at `path`, also below a folder data/."""
    if path.is_file():
        return [path] if path.suffix in (".parquet", ".csv") else []
    found = [*path.glob("*.parquet"), *path.glob("data/*.parquet"), *path.glob("*.csv")]
    return sorted(found)


def read_table(path: Path, columns: Sequence[str]) -> Mapping[str, list[Any]]:
    """Return columns of all files at `path`, one after another; raise `DataError` when one is missing."""
    table: dict[str, list[Any]] = {column: [] for column in columns}
    file = path
    for file in table_files(path):
        part = _read_parquet(file) if file.suffix == ".parquet" else _read_csv(file)
        absent = [column for column in columns if column not in part]
        if absent:
            held = ", ".join(map(str, part)) or "nothing"
            raise DataError(f"{file} lacks the column {absent[0]}; it holds {held}.")
        for column in columns:
            if any(value is None for value in part[column]):
                row = part[column].index(None)
                raise DataError(f"Row {row + 1} of {file} has no {column}; every row must have one.")
            table[column].extend(part[column])
    if not table[columns[0]]:
        raise DataError(f"{file} holds no rows; it must hold examples.")
    return table


def pixels(image: Any, shape: tuple[int, int]) -> np.ndarray:
    """Return one image of the hub as uint8 [H, W]: a decoded picture, or parquet's {"bytes": PNG}.

    Raises `DataError` for what is no such picture of `shape`.
    """
    library = need("PIL.Image", "Decoding pictures")
    with reading("A picture", "PNG or another format", also=(library.DecompressionBombError,)):
        if isinstance(image, Mapping):
            image = library.open(io.BytesIO(image["bytes"]))
        if isinstance(image, library.Image) and (image.mode, image.size) != ("L", shape[::-1]):
            raise DataError(
                f"A picture is {image.mode} {image.size[0]} x {image.size[1]}; it must be 8-bit grey (L), "
                f"{shape[1]} x {shape[0]}."
            )
        array = np.asarray(image)
    if array.shape != shape or array.dtype != np.uint8:
        raise DataError(f"A picture is {array.dtype} {array.shape}; it must be 8-bit grey, {shape}.")
    return array


def _read_parquet(file: Path) -> dict[str, list[Any]]:
    """Return the columns of a parquet file."""
    parquet = need("pyarrow.parquet", f"Reading {file}")
    library = need("pyarrow", f"Reading {file}")
    with reading(file, "parquet", also=(library.ArrowException,)):
        columns: dict[str, list[Any]] = parquet.read_table(file).to_pydict()
    return columns


def _read_csv(file: Path) -> dict[str, list[Any]]:
    """Return the columns of a CSV file with a header."""
    with reading(file, "CSV in UTF-8"), file.open(newline="", encoding="utf-8-sig") as lines:
        rows = list(csv.DictReader(lines, strict=True))
    for number, row in enumerate(rows, start=1):
        if None in row or None in row.values():  # what csv makes of too many and of too few cells
            raise DataError(
                f"Row {number} of {file} has not as many cells as the header; each row must have one for each column."
            )
    return {column: [row[column] for row in rows] for column in (rows[0] if rows else {})}

"""Inputs that stay as they are stored until a client takes its turn, and encoded pictures, PNG or JPEG, among them."""

import io
import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from client.data.reading import reading
from client.imports import need
from fedmf.errors import DataError

_SHOWN = 25  # rows that say the shape of all
MODES = {"L": "8-bit grey", "RGB": "8-bit RGB"}
FORMATS = ("PNG", "JPEG")
"""What is decoded. Pillow knows others, of which some start programs on what a user put into the file (EPS)."""


class Rows(ABC):
    """Inputs [n, ...] of which `rows[numbers]` makes some; a subclass has their `shape`.

    One that cannot be made raises `DataError`, which concerns its client alone.
    """

    dtype = np.dtype(object)  # not comparable as stored: clients are identified by what is made of them
    shape: tuple[int, ...]

    @abstractmethod
    def take(self, rows: np.ndarray) -> np.ndarray:
        """Return the inputs `rows`, as an array [len(rows), ...]."""

    def __len__(self) -> int:
        """Return the number of inputs."""
        return self.shape[0]

    def __getitem__(self, rows: np.ndarray | slice) -> np.ndarray:
        """Return the inputs `rows`."""
        return self.take(np.arange(len(self))[rows] if isinstance(rows, slice) else rows)


def shape_of_all(shape_of: Callable[[int], tuple[int, ...]], shown: np.ndarray) -> tuple[int, ...]:
    """Return the shape that inputs have: the commonest of up to 25 rows spread over those where `shown` [rows] is true.

    No single row decides so. One that cannot be read is left out; where none of them can, what `shape_of(row)` raises for the
    first of them is raised.
    """
    held = np.flatnonzero(shown)
    rows = held[np.unique(np.linspace(0, len(held) - 1, _SHOWN).astype(int))].tolist()
    shapes: Counter[tuple[int, ...]] = Counter()
    for row in rows:
        with suppress(DataError):  # its client's mistake alone
            shapes[shape_of(row)] += 1
    return shapes.most_common(1)[0][0] if shapes else shape_of(rows[0])


@dataclass(frozen=True)
class FileBytes:
    """Files below `folder`; `names` are their names as bytes [n].

    A table of names may come from somebody else: one that leads out of the folder, by `..` or from the root, is an error
    of its row. Links in the folder are followed: only who may write there can have made them, and stores of big
    files (the hub's cache, git-annex) consist of them.
    """

    folder: Path
    names: np.ndarray

    def __call__(self, row: int) -> bytes:
        """Return the content of one file, or raise `DataError` for one outside the folder."""
        name = PurePath(os.fsdecode(bytes(self.names[row])))
        if name.is_absolute() or ".." in name.parts:
            raise DataError(
                f"The picture in row {row + 1} of {self.folder} is no file of it; it must be one below the folder, named "
                "without .. and without a / at the beginning."
            )
        return (self.folder / name).read_bytes()

    def name(self, row: int) -> str:
        """Return what an error calls the picture of a row."""
        return str(self.folder / os.fsdecode(bytes(self.names[row])))


@dataclass(frozen=True)
class ColumnBytes:
    """A column of bytes of a table."""

    path: Path
    column: Any

    def __call__(self, row: int) -> bytes:
        """Return the bytes in one row."""
        content: bytes = self.column[int(row)].as_py()
        return content

    def name(self, row: int) -> str:
        """Return what an error calls the picture of a row."""
        return f"the picture in row {row + 1} of {self.path}"


@dataclass(frozen=True)
class Pictures(Rows):
    """Pictures of one shape, uint8 [n, H, W] or [n, H, W, 3], decoded when they are taken."""

    source: FileBytes | ColumnBytes
    shape: tuple[int, ...]

    def take(self, rows: np.ndarray) -> np.ndarray:
        """Return the pictures `rows`, or raise `DataError`."""
        shape = self.shape[1:]
        x = np.empty((len(rows), *shape), dtype=np.uint8)
        for place, row in enumerate(rows):
            picture = decode(self.source, row)
            if picture.shape != shape:
                raise DataError(
                    f"{self.source.name(row)} is {_size(picture.shape)}, but a picture of this data set is {_size(shape)}; "
                    "all must have one size and be all grey or all RGB."
                )
            x[place] = picture
        return x


def pictures(source: FileBytes | ColumnBytes, count: int, shown: np.ndarray) -> Pictures:
    """Return the `count` pictures of `source`; `shown` [count] says which rows show the shape of all, see `shape_of_all`."""
    return Pictures(source, (count, *shape_of_all(lambda row: decode(source, row).shape, shown)))


def decode(source: FileBytes | ColumnBytes, row: int) -> np.ndarray:
    """Return one picture as uint8 [H, W] or [H, W, 3], or raise `DataError`."""
    name = source.name(row)
    with reading(name, "a file"):
        content = source(row)
    mode, array = pixels_of(content, name)
    if mode not in MODES:
        raise DataError(f"{name} is a picture of mode {mode}; it must be {' or '.join(MODES.values())}.")
    return array


def pixels_of(content: object, name: str) -> tuple[str, np.ndarray]:
    """Return (mode, pixels) of a PNG or JPEG; raise `DataError` about `name` whatever its decoder raises."""
    library: Any = need("PIL.Image", "Decoding pictures")
    if not isinstance(content, bytes):
        raise DataError(f"{name} is empty; it must be PNG or JPEG.")
    with reading(name, "a picture", also=(Exception,)):
        try:
            with library.open(io.BytesIO(content), formats=FORMATS) as opened:
                return opened.mode, np.asarray(opened)
        except library.UnidentifiedImageError as error:  # which would name a buffer
            raise DataError(f"{name} is no picture of a known format; it must be PNG or JPEG.") from error


def _size(shape: tuple[int, ...]) -> str:
    """Return a picture's shape in words."""
    return f"{shape[1]} x {shape[0]} {'grey' if len(shape) == 2 else 'RGB'}"

"""Arrays whose rows are made when they are asked for: a test set too big to be held, and encoded pictures, PNG or JPEG."""

import io
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any, cast

import numpy as np

from client.data.reading import reading
from client.imports import need
from fedmf.errors import DataError

HELD = 1 << 26
"""Bytes of converted inputs, or targets, up to which they are made once and held; more are made batch by batch."""
MODES = {"L": "8-bit grey", "RGB": "8-bit RGB"}
FORMATS = ("PNG", "JPEG")
"""What is decoded. Pillow knows others, of which some start programs on what a user put into the file (EPS)."""
_AT_ONCE = 1 << 24  # bytes that are looked at together


class Rows(ABC):
    """An array [n, ...] as far as clients and test sets need one: `rows[numbers]` and `rows[start:stop]` are arrays.

    A subclass has `shape`. A row that cannot be made raises `DataError`, which concerns its client alone.
    """

    dtype = np.dtype(object)  # not comparable as stored: clients are identified by what is made of them
    shape: tuple[int, ...]

    @abstractmethod
    def take(self, rows: np.ndarray) -> np.ndarray:
        """Return the rows with these numbers, as an array [len(rows), ...]."""

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.shape[0]

    def __getitem__(self, rows: np.ndarray | slice) -> np.ndarray:
        """Return rows by a slice or an array of numbers."""
        return self.take(np.arange(*rows.indices(len(self))) if isinstance(rows, slice) else rows)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Return all rows in memory."""
        return np.asarray(self[:], dtype=dtype)


@dataclass(frozen=True, eq=False)
class Converted(Rows):
    """`convert(stored[rows])` of this shape and type; `stored` may be mapped, or make its rows itself."""

    stored: Any
    rows: np.ndarray
    convert: Callable[[np.ndarray], np.ndarray]
    shape: tuple[int, ...]
    dtype: np.dtype

    def take(self, rows: np.ndarray) -> np.ndarray:
        """Return converted rows."""
        return self.convert(self.stored[self.rows[rows]])


def converted(stored: Any, rows: np.ndarray, convert: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Return `convert(stored[rows])`: in memory where that is small, else as `Converted`, which serves as an array."""
    first = convert(stored[rows[:1]])
    if len(rows) * first.nbytes <= HELD:
        return convert(stored[rows])
    shape = (len(rows), *first.shape[1:])
    return cast(np.ndarray, Converted(stored, rows, convert, shape, first.dtype))


def pieces(array: np.ndarray) -> Iterator[np.ndarray]:
    """Yield all rows of an array [n, ...], some at a time, so that no copy of all is made."""
    at_once = max(1, _AT_ONCE // max(1, array[:1].nbytes))
    for start in range(0, len(array), at_once):
        yield array[start : start + at_once]


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

    @classmethod
    def of(
        cls,
        path: Path,
        column: Any,
        shape: tuple[int, ...] | None,
        first: int,
        folder: Path | None = None,
    ) -> "Pictures":
        """Return the pictures of a column, of one `shape`: without it that of the `first` test row."""
        pictures = cls(path, column, (len(column),), folder)
        shape = shape or pictures.decoded(first)[1].shape
        return replace(pictures, shape=(len(column), *shape))

    def take(self, rows: np.ndarray) -> np.ndarray:
        """Return the pictures `rows`, or raise `DataError`."""
        shape = self.shape[1:]
        x = np.empty((len(rows), *shape), dtype=np.uint8)
        for place, row in enumerate(rows):
            name, picture = self.decoded(row)
            if picture.shape != shape:
                raise DataError(
                    f"{name} has the shape {list(picture.shape)}, but a picture of this data set has {list(shape)}; all must "
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

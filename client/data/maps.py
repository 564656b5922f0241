"""Arrays that are written to a file part by part and mapped afterwards, so that none is ever whole in memory.

What a program maps is read when it is touched, is shared by all processes that map the same file, and may be dropped
by the system at any time.
"""

from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from client.data.dataset import as_float32

_AT_ONCE = 1 << 24  # bytes that are converted at once


class ArrayFile:
    """A .npy file that grows at its end; all parts have one type and one shape but for the first axis.

    With `pixels` float32 is written as bytes as long as every number is exactly k / 255 as `as_float32` makes it; the
    first part that is not turns the file into float32, so that no bit is lost.
    """

    def __init__(self, path: Path, *, pixels: bool = False) -> None:
        self._path, self._pixels = path, pixels
        self._file = path.open("w+b")
        self._type: np.dtype | None = None
        self._shape: tuple[int, ...] = ()
        self._count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Write the head, which says how much was appended, and close the file."""
        with self._file:
            if self._type is not None:
                self._write_head()

    def append(self, part: np.ndarray) -> None:
        """Write the rows of `part` [n, ...] behind those that are there."""
        stored = as_bytes(part) if self._pixels and part.dtype == np.float32 else part
        if stored is None:
            if self._type == np.uint8:
                self._widen()
            stored = part
        elif self._type == np.float32 and stored is not part:
            stored = part
        if self._type is None:
            self._type, self._shape = stored.dtype, stored.shape[1:]
            self._write_head()
        assert (stored.dtype, stored.shape[1:]) == (self._type, self._shape)
        self._file.write(np.ascontiguousarray(stored).reshape(-1).view(np.uint8).data)
        self._count += len(stored)

    def _write_head(self) -> None:
        """Write the head over the old one: numpy leaves room in it for any number of rows."""
        assert self._type is not None
        end = self._file.seek(0, 2)
        self._file.seek(0)
        head = {
            "descr": np.lib.format.dtype_to_descr(self._type),
            "fortran_order": False,
            "shape": (self._count, *self._shape),
        }
        np.lib.format.write_array_header_1_0(self._file, head)
        if self._count == 0:
            self._begin = self._file.tell()
        assert self._file.tell() == self._begin
        self._file.seek(max(end, self._begin))

    def _widen(self) -> None:
        """Turn the bytes that were written into float32, in a new file under the same name."""
        self._write_head()
        self._file.close()
        old = np.load(self._path, mmap_mode="r")
        self._path.unlink()
        self._file = self._path.open("w+b")
        self._type, self._count = np.dtype(np.float32), 0
        self._write_head()
        rows = max(1, _AT_ONCE // max(1, 4 * old[:1].size))
        for start in range(0, len(old), rows):
            part = as_float32(old[start : start + rows])
            self._file.write(part.reshape(-1).view(np.uint8).data)
            self._count += len(part)


def as_bytes(x: np.ndarray) -> np.ndarray | None:
    """Return float32 numbers as the bytes of which `as_float32` makes them again to the bit; None where some are others.

    >>> as_bytes(np.array([0, 1, 0.2], dtype=np.float32)).tolist(), as_bytes(np.array([0.21], dtype=np.float32))
    ([0, 255, 51], None)
    """
    with np.errstate(invalid="ignore"):
        bytes_ = np.clip(np.rint(x * np.float32(255)), 0, 255).astype(np.uint8)
    again = as_float32(bytes_)
    # Bit for bit: 0 and -0 are equal numbers.
    return bytes_ if np.array_equal(again.view(np.uint32), x.view(np.uint32)) else None


def mapped(path: Path) -> np.ndarray:
    """Return the array in a .npy file, mapped."""
    array: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    return array

"""Examples of a benchmark's users as arrays: in memory, or in the folder that `fedmf data import SOURCE OUT` writes.

The folder holds a folder of .npy files for each split, which are mapped: all processes share them. They are the data,
decoded and unencrypted; only their owner may read the folder.
"""

import importlib
import io
import shutil
import tarfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO

import numpy as np

from client.data.arrays import pieces
from client.data.dataset import ArrayClients, as_float32
from client.data.reading import PACKED, reading
from fedmf.errors import DataError

_TARS = (".tgz", ".tbz2", ".txz")


@dataclass(frozen=True)
class Texts:
    """Texts [n] one behind the other in `text` [bytes]; `ends` [n] says where each ends."""

    text: np.ndarray
    ends: np.ndarray

    def __getitem__(self, row: int) -> bytes:
        """Return one text."""
        return self.text[self.ends[row - 1] if row else 0 : self.ends[row]].tobytes()


@dataclass(frozen=True)
class Split:
    """Examples in the files' order, `x` [n, ...] and `y` [n, ...]; user i, called `names[i]`, owns `order[bounds[i]:bounds[i + 1]]`.

    The names are in alphabetical order, and each user has an example.
    """

    x: Any
    y: np.ndarray
    order: np.ndarray
    bounds: np.ndarray
    names: np.ndarray

    @classmethod
    def of(cls, arrays: Mapping[str, np.ndarray]) -> "Split":
        """Return the examples whose arrays have these names: those of the fields, or in place of x those of `Texts`."""
        x = arrays["x"] if "x" in arrays else Texts(arrays["text"], arrays["ends"])
        return cls(x, *(arrays[name] for name in ("y", "order", "bounds", "names")))

    @classmethod
    def mapped(cls, folder: Path) -> "Split":
        """Return the examples that `written` has written."""
        return cls.of({file.stem: _mapped(file) for file in folder.glob("*.npy")})

    @property
    def counts(self) -> np.ndarray:
        """How many examples each user has, int64 [users]."""
        return np.diff(self.bounds)

    @property
    def users(self) -> np.ndarray:
        """The user of each example in the files' order, as a place in `names`; -1: of none, since it was left out."""
        users = np.full(len(self.y), -1, dtype=np.int64)
        users[self.order] = np.repeat(np.arange(len(self.names)), self.counts)
        return users

    def only(self, chosen: np.ndarray) -> "Split":
        """Return the examples of which `chosen` [n] is true, and the users who have some."""
        kept = self.order[chosen[self.order]]
        held, counts = np.unique(self.users[kept], return_counts=True)
        bounds = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        return replace(self, order=kept, bounds=bounds, names=self.names[held])

    def clients(self, convert: Callable[[np.ndarray], np.ndarray] = as_float32) -> ArrayClients:
        """Return the users as clients."""
        return ArrayClients(self.x, self.y, self.order, self.bounds, convert)

    def shuffled(self, seed: int) -> np.ndarray:
        """Return the examples user after user, the users in an order drawn from a public seed."""
        drawn = np.random.default_rng(seed).permutation(len(self.names))
        return np.concatenate([self.order[self.bounds[user] : self.bounds[user + 1]] for user in drawn])


class Grown:
    """An array that grows at its end, in memory or in a file of raw numbers."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._file: BinaryIO = io.BytesIO() if path is None else path.open("wb")
        self._empty: np.ndarray = np.empty(0)

    def append(self, part: np.ndarray) -> None:
        """Put the rows of `part` [n, ...] behind those that are there; all parts have one type and one shape of rows."""
        self._empty = part[:0]
        self._file.write(np.ascontiguousarray(part).reshape(-1).view(np.uint8).data)

    def finished(self) -> np.ndarray:
        """Return the whole array, mapped if it is in a file."""
        kind, shape = self._empty.dtype, (-1, *self._empty.shape[1:])
        if isinstance(self._file, io.BytesIO):
            return np.frombuffer(self._file.getvalue(), kind).reshape(shape)
        self._file.close()
        assert self._path is not None
        empty = not self._path.stat().st_size  # which cannot be mapped
        return (np.empty(0, kind) if empty else np.memmap(self._path, kind, "r")).reshape(shape)

    def close(self) -> None:
        """Close the file, whole or not."""
        self._file.close()


def written(arrays: Mapping[str, np.ndarray], folder: Path) -> None:
    """Write the arrays of a split into a folder."""
    for name, array in arrays.items():
        if (kind := compact(array)) == array.dtype:
            np.save(folder / f"{name}.npy", array)
            continue
        small = np.lib.format.open_memmap(folder / f"{name}.npy", "w+", kind, array.shape)
        start = 0
        for part in pieces(array):
            small[start : start + len(part)] = as_bytes(part)
            start += len(part)
        small.flush()


def _mapped(path: Path) -> np.ndarray:
    """Return the array in a .npy file, mapped; one without bytes cannot be."""
    empty = path.stat().st_size <= np.lib.format.ARRAY_ALIGN * 2
    array: np.ndarray = np.load(path, mmap_mode=None if empty else "r", allow_pickle=False)
    return array


def compact(array: np.ndarray) -> np.dtype:
    """Return the type that an array is kept in: bytes for float32 that `as_float32` makes again of them to the bit."""
    is_exact = array.dtype == np.float32 and all(as_bytes(part) is not None for part in pieces(array))
    return np.dtype(np.uint8) if is_exact else array.dtype


def as_bytes(x: np.ndarray) -> np.ndarray | None:
    """Return float32 numbers as the bytes of which `as_float32` makes them again to the bit; None where some are others.

    >>> as_bytes(np.array([0, 1, 0.2], dtype=np.float32)).tolist(), as_bytes(np.array([0.21], dtype=np.float32))
    ([0, 255, 51], None)
    """
    with np.errstate(invalid="ignore"):
        bytes_ = np.clip(np.rint(x * np.float32(255)), 0, 255).astype(np.uint8)
    # Bit for bit: 0 and -0 are equal numbers.
    same = np.array_equal(as_float32(bytes_).view(np.uint32), np.ascontiguousarray(x).view(np.uint32))
    return bytes_ if same else None


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Give the block a folder to fill that becomes `out` when all went well, and is gone otherwise; for its owner alone."""
    if out.exists():
        raise DataError(f"{out} exists already; name a new folder.")
    try:
        with TemporaryDirectory(prefix=f"{out.name}.", dir=out.parent) as temporary:
            folder = Path(temporary, "folder")
            folder.mkdir(mode=0o700)
            yield folder
            folder.rename(out)
    except OSError as error:
        raise DataError(
            f"{out} cannot be written ({error.strerror or error}); name a folder in one that can be, and has room."
        ) from error


@contextmanager
def unpacked(path: Path, room: Path) -> Iterator[Path]:
    """Give the block the files that `path` packs (.gz, .bz2, .xz, .lzma, also of a tar archive), or `path` as it is.

    They lie in a temporary folder in `room`. An archive of one folder is that folder.
    """
    suffix = path.suffix.lower()
    if not path.is_file() or suffix not in (*PACKED, *_TARS):
        yield path
        return
    with TemporaryDirectory(prefix="unpacked.", dir=room) as temporary:
        target = Path(temporary, path.stem)
        with reading(path, f"a {suffix} file", also=(tarfile.TarError,)):
            if suffix in _TARS or target.suffix.lower() == ".tar":
                with tarfile.open(path) as archive:
                    archive.extractall(target, filter=_plain)
                entries = list(target.iterdir())
                target = entries[0] if len(entries) == 1 else target
            else:
                with importlib.import_module(PACKED[suffix]).open(path) as packed, target.open("wb") as file:
                    shutil.copyfileobj(packed, file)
        yield target


def _plain(member: tarfile.TarInfo, folder: str) -> tarfile.TarInfo | None:
    """Leave out what macOS adds to each file, and refuse what would lie outside of the folder."""
    return None if Path(member.name).name.startswith("._") else tarfile.data_filter(member, folder)

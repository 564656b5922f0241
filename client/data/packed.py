"""Packed files as they are distributed: .gz, .bz2, .xz and .lzma, also of a tar archive, unpacked once into the cache."""

import importlib
import tarfile
from collections.abc import Callable
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any

from client.data.made import made
from client.data.progress import Preparation
from client.data.reading import PARSERS_RAISE, brief
from fedmf.errors import DataError, FedmfError

MODULES = {".gz": "gzip", ".bz2": "bz2", ".xz": "lzma", ".lzma": "lzma"}
TARS = {".tgz": "gzip", ".tbz2": "bz2", ".txz": "lzma"}  # of a tar archive, in one word
MODULES |= TARS
"""Of Python itself, which may be built without some: they are imported where a file needs them."""
_CHUNK = 1 << 20
_DAMAGED: tuple[type[Exception], ...] = (*PARSERS_RAISE, tarfile.TarError)


def is_packed(path: Path) -> bool:
    """Return whether the name of `path` is that of a packed file.

    >>> is_packed(Path("emnist_all.sqlite.lzma")), is_packed(Path("emnist_all.sqlite"))
    (True, False)
    """
    return path.suffix.lower() in MODULES


def unpacked(path: Path) -> Path:
    """Return the unpacked form of `path` in the cache: a file, or what a tar archive holds.

    A tar archive becomes its only entry where it has one, else a folder. The first call unpacks, with a line of
    progress on stderr. Raises `DataError` for a damaged file.
    """
    name = _name_inside(path)
    folder = made(path, "unpacked", partial(_unpack, path, name))
    if name is not None:
        return folder / name
    entries = sorted(folder.iterdir())
    if not entries:
        raise DataError(f"{path} holds no file; it must be a tar archive of data files.")
    return entries[0] if len(entries) == 1 else folder


def _name_inside(path: Path) -> str | None:
    """Return the name of the file that `path` packs, or None for a tar archive."""
    stem = Path(path.stem)
    return None if stem.suffix.lower() == ".tar" or path.suffix.lower() in TARS else stem.name


def _unpack(path: Path, name: str | None, folder: Path) -> None:
    """Unpack `path` into a folder: as the file `name`, or as what a tar archive holds."""
    try:
        text, size = f"unpacking {path} into the cache", path.stat().st_size
        with (
            path.open("rb") as raw,
            _opener(path)(raw, "rb") as content,
            Preparation(text, size, patience=0) as progress,
        ):
            watched = _Watched(content, raw, progress)
            progress.advance(0)  # also said of a file that is damaged from its first byte
            if name is None:
                with tarfile.open(fileobj=watched, mode="r|") as archive:  # type: ignore[call-overload]
                    _extract(path, archive, folder)
            else:
                with (folder / name).open("wb") as target:
                    while block := watched.read(_CHUNK):
                        target.write(block)
    except FedmfError:
        raise
    except _DAMAGED as error:
        if (
            isinstance(error, OSError) and error.errno is not None
        ):  # such as a full disk; the packed form has no number
            raise
        raise _damaged(path, error) from error


def _opener(path: Path) -> Callable[..., Any]:
    """Return what opens a packed file."""
    module = MODULES[path.suffix.lower()]
    try:
        return importlib.import_module(module).open  # type: ignore[no-any-return]
    except ImportError as error:
        raise DataError(
            f"{path} needs Python's module {module}, which this Python lacks; unpack the file."
        ) from error


def _damaged(path: Path, error: Exception) -> DataError:
    """Return what to say of a file that cannot be unpacked."""
    return DataError(
        f"{path} cannot be read: it is no whole {path.suffix.lower()} file ({brief(error)}); fetch it again, or rename it if it is "
        "not packed."
    )


def _extract(path: Path, archive: tarfile.TarFile, folder: Path) -> None:
    """Write the plain files of an archive below `folder`. Raises `DataError` for one that would lie outside."""
    for member in archive:
        parts = [part for part in PurePosixPath(member.name).parts if part != "."]
        if member.isdir() or (parts and parts[-1].startswith("._")):  # macOS adds the latter beside each file
            continue
        if not member.isreg() or not parts or ".." in parts or PurePosixPath(member.name).is_absolute():
            raise DataError(
                f"{path} holds {member.name!r}, which is no plain file below the archive; unpack it by hand if you trust it."
            )
        target = folder.joinpath(*parts)
        target.parent.mkdir(parents=True, exist_ok=True)
        content = archive.extractfile(member)
        assert content is not None  # of a plain file
        with target.open("wb") as out:
            while block := content.read(_CHUNK):
                out.write(block)


class _Watched:
    """A stream that tells `progress` how much of a packed file was read."""

    def __init__(self, content: IO[bytes], raw: IO[bytes], progress: Preparation) -> None:
        self._content, self._raw, self._progress = content, raw, progress
        self._told = 0

    def read(self, size: int) -> bytes:
        """Return up to `size` bytes."""
        block = self._content.read(size)
        self._progress.advance((read := self._raw.tell()) - self._told)
        self._told = read
        return block

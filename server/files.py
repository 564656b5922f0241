"""Files that are whole or not there: written aside, forced to disk, renamed, the folder forced to disk."""

import contextlib
import errno
import fcntl
import io
import os
import stat
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fedmf.errors import RunDirectoryError

# What reading a file of arrays raises where it is gone, cut short, damaged, or lacks one of them.
UNREADABLE = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile)


def write_atomically(
    path: Path, data: bytes, *, mode: int = 0o644, erase_old: bool = False, aside: Path | None = None
) -> None:
    """Replace `path` by `data` so that a crash leaves the old content or the new. `mode` holds from the start.

    `erase_old` overwrites what was there with zeros before its blocks are given back (docs/reliability.md says
    what a file system may keep all the same). `aside`: where it is written first, a name of its own where several
    processes write the same path. A link at `path` is replaced, and what it points to stays as it is.
    """
    aside = aside or temporary_path(path)
    if erase_old:
        erase(aside)  # a half-written file left by a crash holds secrets too
    with contextlib.suppress(FileNotFoundError):
        aside.unlink()
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with open(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    with _old_content(path) as old:
        os.replace(aside, path)
        sync_folder(path.parent)
        if erase_old and old is not None:
            _overwrite(old)


def temporary_path(path: Path) -> Path:
    """Return where the new content of `path` is written before it takes its name."""
    return path.with_name(path.name + ".new")


def erase(path: Path) -> None:
    """Overwrite `path` with zeros and remove it, if it is there. A link is removed; what it points to stays as it is."""
    if not os.path.lexists(path):
        return
    with _old_content(path) as old:
        if old is not None:
            _overwrite(old)
        path.unlink()
        sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Return when the names in a folder are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def packed(**arrays: Any) -> bytes:
    """Return arrays as the bytes of an .npz file."""
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def unpacked(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of an .npz file by name, read whole. Raises one of `UNREADABLE` where it is gone or damaged."""
    return unpacked_bytes(path.read_bytes())


def unpacked_bytes(data: bytes) -> dict[str, np.ndarray]:
    """Return the arrays in the bytes of an .npz file by name. Raises one of `UNREADABLE` where they are damaged."""
    with np.load(io.BytesIO(data), allow_pickle=False) as stored:
        return {name: stored[name] for name in stored.files}


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of `data`; one call of the system may take less."""
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file `path`: one process at a time. The kernel releases it when the process ends, however.

    The descriptor is not inherited by worker processes. Raises `RunDirectoryError` if another process holds it, and
    for a link, which would make a file elsewhere.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise RunDirectoryError(
            f"{path} is a link, and a lock must be a file of its folder; remove it."
        ) from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise RunDirectoryError(
            f"another process is running in {path.parent.parent}; wait for it or end it, then try again."
        ) from None
    try:
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _old_content(path: Path) -> Iterator[int | None]:
    """Give a descriptor of the file at `path`, which stays valid when the name is taken away; None if it is no file.

    Links are not followed: whoever made the folder must not choose which file of its reader is overwritten.
    """
    try:
        if not stat.S_ISREG(os.lstat(path).st_mode):
            yield None
            return
        descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _overwrite(descriptor: int) -> None:
    """Fill an open file with zeros and return when they are on disk."""
    left = os.fstat(descriptor).st_size
    os.lseek(descriptor, 0, os.SEEK_SET)
    while left > 0:
        left -= os.write(descriptor, bytes(min(left, 1 << 20)))
    os.fsync(descriptor)

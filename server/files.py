"""Files that are whole or not there: written aside, forced to disk, renamed, the folder forced to disk."""

import contextlib
import errno
import fcntl
import io
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from fedmf.errors import RunDirectoryError


def write_atomically(
    path: Path, data: bytes, *, mode: int = 0o644, erase_old: bool = False, aside: Path | None = None
) -> None:
    """Replace `path` by `data` so that a crash leaves the old content or the new. `mode` holds from the start.

    `erase_old` overwrites what was there with zeros before its blocks are given back (docs/reliability.md says
    what a file system may keep). `aside`: where it is written first, a name of its own where several processes write the
    same path. A link at `path` is replaced, and what it points to stays as it is.
    """
    aside = aside or temporary_path(path)
    if path.exists() and not path.is_file():  # a folder, a device, a pipe
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    try:
        if erase_old:
            erase(aside)  # a half-written file left by a crash holds secrets too
        aside.unlink(missing_ok=True)
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
    except OSError as error:
        if error.filename == str(aside):  # `path` is what the caller knows
            error.filename, error.filename2 = str(path), None
        raise


def write_output(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Replace `path` by `data`, in a folder of the user's: written first under a name that no other file or writer has."""
    aside = path.with_name(f"{path.name}.{secrets.token_hex(4)}.new")
    try:
        write_atomically(path, data, mode=mode, aside=aside)
    finally:
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)


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


@contextlib.contextmanager
def locked(path: Path, patience: float = 0.0) -> Iterator[None]:
    """Hold the lock file `path`: one process at a time. The kernel releases it when the process ends, however.

    The descriptor is not inherited by worker processes. Raises `RunDirectoryError` if another process holds it for
    `patience` seconds, and for a link, which would make a file elsewhere.
    """
    deadline = time.monotonic() + patience
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise RunDirectoryError(
            f"{path} is a link; a lock must be a file of its folder. Remove it."
        ) from None
    with open(descriptor, "rb"):
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise RunDirectoryError(
                        f"another process is running in {path.parent.parent}; wait for it or end it, then try again."
                    ) from None
                time.sleep(0.1)
        yield


def is_locked(path: Path) -> bool:
    """Return whether a process holds the lock file `path`, which is not made; the question holds it for a moment itself."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return isinstance(error, BlockingIOError)
    return False


def _old_content(path: Path) -> contextlib.AbstractContextManager[BinaryIO | None]:
    """Give the file at `path`, open also when its name is taken away; None if it is no file.

    Links are not followed: the author of the folder must not choose which file of its reader is overwritten.
    """
    if path.is_symlink() or not path.is_file():
        return contextlib.nullcontext()
    return open(os.open(path, os.O_WRONLY | os.O_NOFOLLOW), "wb")


def _overwrite(file: BinaryIO) -> None:
    """Fill an open file with zeros and return when they are on disk."""
    size = os.fstat(file.fileno()).st_size
    for start in range(0, size, 1 << 20):
        file.write(bytes(min(size - start, 1 << 20)))
    file.flush()
    os.fsync(file.fileno())

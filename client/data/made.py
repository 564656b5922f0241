"""Files made once from a user's files, such as unpacked ones: kept in the cache folder, never beside their source.

The folder is `data` below the environment variable FEDMF_CACHE, or below ~/.cache/fedmf; only its owner may read it,
for it holds other people's data. What is made is found again by a digest of its source's content. Of two
processes that want the same, one makes it and the other waits.
"""

import fcntl
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fedmf.errors import DataError

_SETTLED = 2.0  # seconds after its last change from which a file's times tell two contents apart


def directory() -> Path:
    """Return where files are kept; it is made when something is."""
    from fedmf.mechanisms.cache import directory as results  # with all mechanisms: only for who needs it

    return results() / "data"


def made(source: Path, kind: str, make: Callable[[Path], None]) -> Path:
    """Return the folder that `make(folder)` fills from `source`, or what an earlier call of the same `kind` made.

    Another content or another name of the source is another folder. Raises `DataError` where the cache cannot be
    written, and whatever `make` raises; nothing half made is left.
    """
    text = f"{kind} {source.name} {digest_of(source)}"
    place = directory() / f"{kind}-{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"
    if place.is_dir():
        return place
    try:
        with _alone(place.with_suffix(".lock")):
            if not place.is_dir():  # the other process may have made it while this one waited
                _make(place, make)
    except OSError as error:
        raise DataError(
            f"{source} cannot be prepared in {place.parent} ({error.strerror or error}); set the environment variable "
            "FEDMF_CACHE to a folder that can be written and has room."
        ) from error
    return place


def digest_of(path: Path) -> str:
    """Return a digest of a file's content, as 64 hexadecimal digits.

    It is remembered with the file's size and times, so that a big file is read once and not at every start.
    """
    try:
        state = path.stat()
        known = f"{path.resolve()} {state.st_size} {state.st_mtime_ns} {state.st_ctime_ns} {state.st_ino}"
        note = (
            directory() / "digests" / hashlib.sha256(known.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        )
        if note.is_file() and len(digest := note.read_text()) == 64:
            return digest
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror or error}).") from error
    if time.time() - max(state.st_mtime, state.st_ctime) > _SETTLED:
        _remember(note, digest)
    return digest


def _remember(note: Path, digest: str) -> None:
    """Write a digest down, whole or not at all; it is only a matter of speed."""
    try:
        _private(note.parent)
        with tempfile.NamedTemporaryFile("w", dir=note.parent, delete=False) as file:
            file.write(digest)
        Path(file.name).replace(note)
    except OSError:
        return


def _make(place: Path, make: Callable[[Path], None]) -> None:
    """Let `make` fill a folder of another name, which becomes `place` when it is whole."""
    folder = Path(tempfile.mkdtemp(prefix=f"{place.name}.", dir=place.parent))  # for its owner alone
    try:
        make(folder)
        folder.rename(place)
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # nothing is left of it when it was renamed


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Hold a lock file, which the system gives back when this process ends in whatever way."""
    _private(lock.parent)
    descriptor = os.open(lock, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _private(folder: Path) -> None:
    """Make a folder in the cache; what lies below `directory()` only its owner may read."""
    directory().mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)

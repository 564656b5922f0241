"""Files made once from a user's files, such as unpacked ones: kept in the cache folder, never beside their source.

The folder is FEDMF_DATA_CACHE, an environment variable, or `data` below FEDMF_CACHE, or below ~/.cache/fedmf; only its
owner may read it, for it holds other people's data. With FEDMF_DATA_CACHE=off nothing is kept: each process makes its
own in a temporary folder, which is removed as soon as it is opened. What is made is found again by a digest of its
source's content and of the code that makes it, and made anew where it is no longer as it was written. Of two processes that want the same, one makes
it and the other waits.
"""

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from fedmf.errors import DataError

_SETTLED = 2.0  # seconds after its last change from which a file's times tell two contents apart
LIBRARIES = ("numpy", "pyarrow", "pillow")
"""What parses besides the code in this folder."""
_PRIVATE = 0o077  # what nobody but the owner may do


def code_version(folder: Path) -> str:
    """Return a digest of what parses files: of all sources in `folder` and the versions of `LIBRARIES`."""
    digest = hashlib.sha256(json.dumps([_version(library) for library in LIBRARIES]).encode())
    for source in sorted(folder.rglob("*.py")):
        content = source.read_bytes()
        digest.update(f"{source.relative_to(folder)} {len(content)} ".encode() + content)
    return digest.hexdigest()


def _version(library: str) -> str | None:
    try:
        return version(library)
    except PackageNotFoundError:  # of an extra
        return None


CODE = code_version(Path(__file__).parent)
"""When this process began: what is edited later is not what it runs."""


def is_off() -> bool:
    """Return whether nothing may be kept."""
    return os.environ.get("FEDMF_DATA_CACHE", "").lower() == "off"


def directory() -> Path:
    """Return where files are kept; it is made when something is."""
    from fedmf.mechanisms.cache import directory as results  # with all mechanisms: only for who needs it

    given = os.environ.get("FEDMF_DATA_CACHE")
    return Path(given).expanduser() if given else results() / "data"


@contextmanager
def opened(sources: Sequence[Path], kind: str, make: Callable[[Path], None]) -> Iterator[Path]:
    """Give the block the folder that `make(folder)` fills from `sources`, to open its files in.

    Where the cache is off, or there are no files to tell contents apart by, the folder is gone after the block; a file
    that was mapped in it stays until it is let go.
    """
    if sources and not is_off():
        yield made_from(sources, kind, make)
        return
    try:
        with tempfile.TemporaryDirectory(prefix="fedmf-") as folder:  # for its owner alone
            make(Path(folder))
            yield Path(folder)
    except OSError as error:
        raise DataError(
            f"{kind} cannot be prepared in {tempfile.gettempdir()} ({error.strerror or error}); set the environment "
            "variable TMPDIR to a folder that has room."
        ) from error


def made(source: Path, kind: str, make: Callable[[Path], None]) -> Path:
    """Return what `made_from` does of one source."""
    return made_from([source], kind, make)


def made_from(sources: Sequence[Path], kind: str, make: Callable[[Path], None]) -> Path:
    """Return the folder that `make(folder)` fills from `sources`, or what an earlier call of the same `kind` made.

    Another content or another name of a source, and other code, is another folder. Raises `DataError` where the cache is off or cannot
    be written, and whatever `make` raises; nothing half made is left.
    """
    source = sources[0]
    if is_off():
        raise DataError(
            f"{source} must be unpacked into the cache, which FEDMF_DATA_CACHE=off forbids; unpack it yourself and set path "
            "to what it holds."
        )
    text = f"{kind} {CODE}" + "".join(f" {file.name} {digest_of(file)}" for file in sources)
    place = directory() / f"{kind}-{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"
    if _is_whole(place):
        return place
    try:
        with _alone(place.with_suffix(".lock")):
            if not _is_whole(place):  # the other process may have made it while this one waited
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
    """Let `make` fill a folder of another name, which becomes `place` when it is whole, in place of a damaged one."""
    folder = Path(tempfile.mkdtemp(prefix=f"{place.name}.", dir=place.parent))  # for its owner alone
    note = _written(place)
    try:
        make(folder)
        for path in folder.rglob("*"):
            path.chmod(path.stat().st_mode & ~_PRIVATE)
            if path.is_file():
                _force(path)
        written = json.dumps(_state(folder))
        if place.exists():
            note.unlink(missing_ok=True)
            shutil.rmtree(place)  # who has its files open keeps them
        folder.rename(place)
        with tempfile.NamedTemporaryFile("w", dir=place.parent, delete=False) as file:
            file.write(written)
        Path(file.name).replace(note)
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # nothing is left of it when it was renamed


def _force(path: Path) -> None:
    """Wait until a file is on the disk: a power cut must not leave one of the right size with nothing in it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _written(place: Path) -> Path:
    """Return the file that says how the files of `place` were when they had been written."""
    return place.with_suffix(".json")


def _state(folder: Path) -> dict[str, list[int]]:
    """Return size and time of last change of every file below a folder."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    states = [path.stat() for path in files]
    return {
        os.fsencode(path.relative_to(folder)).hex(): [state.st_size, state.st_mtime_ns]
        for path, state in zip(files, states, strict=True)
    }


def _is_whole(place: Path) -> bool:
    """Return whether `place` is there as it was written: nothing is missing, cut or changed."""
    try:
        return bool(place.is_dir() and json.loads(_written(place).read_text()) == _state(place))
    except (OSError, ValueError):
        return False


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

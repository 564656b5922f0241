"""How far each run got, written outside its directory: what an older copy of the directory cannot know.

A file for each run, named by its random id, holds the number of its released rounds, and "over" once the run has
ended: it stays, so that another copy does not release the last rounds again, and is removed when it is a year old (a
run whose mark is gone is refused). The folder is the environment variable FEDMF_STATE, or ~/.local/state/fedmf. A
folder that cannot be written only warns: a read-only home must not make runs impossible, but an older copy is then not
recognised.
"""

import contextlib
import fcntl
import logging
import os
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from server.files import write_output

log = logging.getLogger(__name__)

_KEPT_SECONDS = 365 * 24 * 3600


def folder() -> Path:
    """Return where the marks are kept. Raises `OSError` where there is no home."""
    try:
        return Path(os.environ.get("FEDMF_STATE") or Path.home() / ".local" / "state" / "fedmf")
    except RuntimeError as error:
        raise OSError(0, str(error)) from error


def read(run: str) -> int | None:
    """Return how many rounds of a run were released, or None where no mark of it can be read."""
    try:
        return int((folder() / run).read_text().removesuffix("over\n"))
    except (OSError, ValueError):
        return None


@contextlib.contextmanager
def held(run: str) -> Iterator[None]:
    """Hold the mark of a run alone until it is written: reading, releasing and counting a round are one step.

    Where there is no mark, or no locks on its file system, nothing is held.
    """
    descriptor = _locked(run)
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def write(run: str, released: int, *, is_over: bool = False) -> bool:
    """Say that `released` rounds of a run are out, and return whether that is on disk; if not, a warning is logged."""
    try:
        place = folder()
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        data = b"%d%s\n" % (released, b" over" if is_over else b"")
        write_output(place / run, data, mode=0o600)  # copies of one run write the same mark
    except OSError as error:
        _warn(f"{error.filename or 'the home directory'} ({error.strerror})")
        return False
    return True


def end(run: str) -> None:
    """Note that a run is over, and `tidy`."""
    with held(run):
        if (released := read(run)) is not None:
            write(run, released, is_over=True)
    tidy()


def tidy() -> None:
    """Remove what ended, or was cut off while it was written, a year ago."""
    with contextlib.suppress(OSError):
        for path in folder().iterdir():
            if path.stat().st_mtime < time.time() - _KEPT_SECONDS and _is_done(path):
                path.unlink()


def _is_done(path: Path) -> bool:
    return path.suffix == ".new" or path.read_bytes().endswith(b" over\n")


def _locked(run: str) -> int | None:
    """Return a locked descriptor of the mark that has its name now, None where there is none."""
    while True:
        descriptor = None
        try:
            path = folder() / run
            descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                return descriptor
        except FileNotFoundError:
            if descriptor is None:
                return None
        except OSError:
            return descriptor  # of a folder that is read-only or has no locks: the count is compared all the same
        os.close(descriptor)  # replaced while this process waited: what it waited for is in the new one


@cache
def _warn(why: str) -> None:
    """Warn once a process."""
    log.warning(
        "how far this run gets cannot be written outside its directory: %s. The run goes on, but an older copy of the "
        "directory would not be recognised; set FEDMF_STATE to a folder that can be written.",
        why,
    )

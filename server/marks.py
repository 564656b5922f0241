"""How far each run got, written outside its directory: what an older copy of the directory cannot know.

A file for each run that is under way, named by its random id, holds the number of its released rounds. The folder is
the environment variable FEDMF_STATE, or ~/.local/state/fedmf. A folder that cannot be written only warns: a read-only
home must not make runs impossible, but an older copy is then not recognised.
"""

import contextlib
import logging
import os
from functools import cache
from pathlib import Path

from server.files import sync_folder, write_atomically

log = logging.getLogger(__name__)


def folder() -> Path:
    """Return where the marks are kept. Raises `OSError` where there is no home."""
    try:
        return Path(os.environ.get("FEDMF_STATE") or Path.home() / ".local" / "state" / "fedmf")
    except RuntimeError as error:
        raise OSError(0, str(error)) from error


def read(run: str) -> int | None:
    """Return how many rounds of a run were released, or None where no mark of it can be read."""
    try:
        return int((folder() / run).read_text())
    except (OSError, ValueError):
        return None


def write(run: str, released: int) -> bool:
    """Say that `released` rounds of a run are out, and return whether that is on disk; if not, a warning is logged."""
    try:
        place = folder()
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(place / run, b"%d\n" % released, mode=0o600)
    except OSError as error:
        _warn(f"{error.filename or 'the home directory'} ({error.strerror})")
        return False
    return True


def remove(run: str) -> None:
    """Forget a run that is over."""
    with contextlib.suppress(OSError):
        (folder() / run).unlink()
        sync_folder(folder())


@cache
def _warn(why: str) -> None:
    """Warn once a process."""
    log.warning(
        "how far this run gets cannot be written outside its directory: %s. The run goes on, but an older copy of the "
        "directory would not be recognised; set FEDMF_STATE to a folder that can be written.",
        why,
    )

"""That a run continues in one directory alone: its rounds are counted outside it, under an id that it noted when it began.

A copy of a run directory, or an older state of it, holds the same key and would release the same noise on other replies.
Other clients under the same names could be heard twice in an epoch. The run's `Origin` tells all of these: a random id,
machine and directory, the number of clients and a keyed digest of who they are, in order. It is kept with the run's key.

The secret file, secrets.npz, is written aside, renamed and forced to disk; what was there before is overwritten with zeros. It
never enters the database. Its arrays:

    about       JSON: epoch, fingerprint of its tables, steps of its noise stream; and the run's `Origin`
    key         (32,) uint8, the epoch's key
    digest_key  (32,) uint8, under which the clients' digest was made
    tables      float32, of the epoch's noise stream
    stream      (buffers, d) float64, the rows of the noise stream; none before the epoch's first round

The count is a file for each run, named by its id, with the number of its released rounds. It stays when the run is over, so
that another copy does not release the last rounds again, and is removed a year after the last release (a run whose
count is gone is an error). The folder is the environment variable FEDMF_STATE, or ~/.local/state/fedmf. A folder that cannot
be written is a warning: a read-only home must not make runs impossible, but an older copy is then not recognised.
"""

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import platform
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np

from fedmf.errors import RunDirectoryError
from fedmf.mechanisms.streams.protocol import StreamState
from fedmf.mechanisms.workload import Floats
from fedmf.npz import read_npz
from fedmf.randomness import SecretKey
from server.files import packed, sync_folder, write_atomically
from server.state import Secrets

log = logging.getLogger(__name__)

SECRETS = "secrets.npz"

_MACHINE_ID = Path("/etc/machine-id")
_RUN = re.compile(r"[0-9a-f]{32}")  # it names a file
_KEPT_SECONDS = 365 * 24 * 3600


@dataclass(frozen=True)
class Clients:
    """The clients of a run: how many, and `digest(key)` of who they are, in order ("" where the server has no data)."""

    count: int = 0
    digest: Callable[[SecretKey], str] = lambda key: ""


@dataclass(frozen=True)
class Place:
    """A directory of a machine. A move changes its path, a reboot may change the number of its device."""

    machine: str
    path: str
    device: int
    inode: int

    @classmethod
    def of(cls, directory: Path) -> Self:
        """Return the place of a directory that exists."""
        about = os.stat(directory)
        return cls(machine_digest(), str(directory.resolve()), about.st_dev, about.st_ino)

    def is_same(self, other: "Place") -> bool:
        """Return whether both are the same directory, moved or not, and no copy of each other."""
        is_like = (self.machine, self.inode) == (other.machine, other.inode)
        return is_like and (self.device == other.device or self.path == other.path)


@dataclass(frozen=True)
class Origin:
    """What a run notes when it begins; `is_counted` is whether its rounds are counted outside its directory."""

    run: str
    place: Place
    is_counted: bool
    clients: int
    key: SecretKey = field(repr=False)
    digest: str = field(repr=False)

    @classmethod
    def begin(cls, directory: Path, clients: Clients, released: int) -> Self:
        """Return the origin of a run that begins in `directory`, with `released` rounds counted; remove old counts."""
        tidy()
        run, key = secrets.token_hex(16), SecretKey.generate()
        is_counted = write_count(run, released)
        return cls(run, Place.of(directory), is_counted, clients.count, key, clients.digest(key))

    def to_json(self) -> dict[str, Any]:
        """Return all but the key."""
        return {name: value for name, value in asdict(self).items() if name != "key"}

    @classmethod
    def from_json(cls, document: Mapping[str, Any], key: SecretKey) -> Self:
        """Return the origin of `to_json`. Raises `TypeError` or `ValueError` for one that this program would not have written."""
        origin = cls(**{**document, "place": Place(**document["place"])}, key=key)
        if not _RUN.fullmatch(origin.run):
            raise ValueError("the id of the run is another one")
        return origin

    def check_clients(self, directory: Path, clients: Clients) -> None:
        """Raise `RunDirectoryError` unless `clients` are those that the run began with, in the same order."""
        if clients.count != self.clients:
            differ = f"began with {self.clients} clients, and the data now hold {clients.count}"
        elif clients.digest(self.key) != self.digest:
            differ = "began with other clients than the data now hold, or with the same in another order"
        else:
            return
        raise RunDirectoryError(
            f"the run in {directory} {differ}: a client could be heard twice in an epoch. Resume it with the data that "
            "it began with."
        )

    @contextlib.contextmanager
    def counting(self, directory: Path, number: int) -> Iterator[None]:
        """Hold the count while round `number` is put on disk, and count it once it is there.

        Raises `RunDirectoryError` before that where it was counted already (another copy of this run has released that
        round) or the count is lost.
        """
        if not self.is_counted:
            yield
            return
        with held(self.run):
            if (counted := read_count(self.run)) is None:
                raise RunDirectoryError(
                    f"{folder()} no longer says how many rounds of the run in {directory} were released; round {number} was "
                    "not. Only if you know that no other copy continues: set accept_copy=True."
                )
            if counted >= number:
                raise RunDirectoryError(
                    f"round {number} of the run in {directory} was released from another copy of this directory; the same "
                    "noise must not cover other replies. End this copy."
                )
            # In this order: after a crash between them the next process sees the round and counts it.
            yield
            write_count(self.run, number)

    def check_place(self, directory: Path, released: int, *, accept_copy: bool) -> None:
        """Raise `RunDirectoryError` unless the run began in `directory`, which has all that it `released`.

        With `accept_copy` a copy is let pass with a warning.
        """
        place, counted = Place.of(directory), read_count(self.run)
        where = self.place.path if place.machine == self.place.machine else "a directory of another machine"
        if not place.is_same(self.place):
            wrong = f"this directory is a copy: the run began in {where}"
        elif self.is_counted and counted is None:
            wrong = f"{folder()} does not say how many of its rounds were released"
        elif self.is_counted and counted is not None and counted > released:
            wrong = f"this is an older state: {counted} of its rounds were released"
        else:
            return
        allow_or_raise(
            accept_copy,
            f"the run in {directory} ends at round {released}, but {wrong}.",
            "Two copies would release the same noise on other replies. Only if you know that no later round than "
            f"{released} was seen, and that no other copy continues: set accept_copy=True.",
        )

    def continued(self, directory: Path, released: int) -> Self:
        """Return the origin in `directory`, with `released` rounds counted where the count was lost or is another."""
        place = Place.of(directory)
        if self.place == place and self.is_counted and read_count(self.run) == released:
            return self
        with held(self.run):
            return replace(self, place=place, is_counted=write_count(self.run, released))


@dataclass(frozen=True)
class Kept:
    """What is in the secret file: the secrets of an epoch, its `mechanism` by fingerprint and tables, the run's origin."""

    secrets: Secrets
    mechanism: str
    tables: Floats
    origin: Origin


def save_secrets(folder: Path, kept: Kept) -> None:
    """Put the secrets into `folder`, for the owner alone; those that were there are overwritten."""
    secrets, origin = kept.secrets, kept.origin
    stream, step = (None, None) if secrets.stream is None else (secrets.stream.buffers, secrets.stream.step)
    about = {"epoch": secrets.epoch, "step": step, "mechanism": kept.mechanism, "origin": origin.to_json()}
    data = packed(
        about=np.array(json.dumps(about)),
        key=np.frombuffer(secrets.key.reveal(), np.uint8),
        digest_key=np.frombuffer(origin.key.reveal(), np.uint8),
        tables=kept.tables,
        **({} if stream is None else {"stream": stream}),
    )
    write_atomically(folder / SECRETS, data, mode=0o600, erase_old=True)


def read_secrets(folder: Path) -> Kept | None:
    """Return the secrets in `folder`; None where they are gone, erased, damaged or not as this program writes them."""
    try:
        arrays = read_npz(folder / SECRETS)
        key, digest_key = (SecretKey(arrays.pop(name).tobytes()) for name in ("key", "digest_key"))
        about = json.loads(str(arrays.pop("about")))
        origin = Origin.from_json(about["origin"], digest_key)
        stream = None if about["step"] is None else StreamState(int(about["step"]), arrays["stream"])
        secrets = Secrets(int(about["epoch"]), key, stream)
        return Kept(secrets, str(about["mechanism"]), arrays["tables"], origin)
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def allow_or_raise(is_allowed: bool, wrong: str, remedy: str) -> None:
    """Log what is `wrong` where the user allowed it. Raises `RunDirectoryError` with the `remedy` otherwise."""
    if not is_allowed:
        raise RunDirectoryError(f"{wrong} {remedy}")
    log.warning("%s It continues nevertheless, because that was allowed.", wrong)


def machine_digest() -> str:
    """Return a name of this machine that does not say which one it is."""
    try:
        known = _MACHINE_ID.read_text().strip()
    except OSError:
        known = ""
    return hashlib.sha256(f"fedmf machine {known or platform.node()}".encode()).hexdigest()[:32]


def folder() -> Path:
    """Return where the counts are kept. Raises `OSError` where there is no home."""
    try:
        return Path(os.environ.get("FEDMF_STATE") or Path.home() / ".local" / "state" / "fedmf")
    except RuntimeError as error:
        raise OSError(0, str(error)) from error


def read_count(run: str) -> int | None:
    """Return how many rounds of a run were released, or None where no count of it can be read."""
    try:
        return int((folder() / run).read_text())
    except (OSError, ValueError):
        return None


def write_count(run: str, released: int) -> bool:
    """Count `released` rounds of a run, and return whether that is on disk; if not, a warning is logged.

    A few bytes are written in their place, so that who waits for the file's lock reads what was written under it.
    """
    try:
        where = folder()
        where.mkdir(mode=0o700, parents=True, exist_ok=True)
        is_new = not (where / run).exists()
        with _opened(run, os.O_CREAT) as file:
            file.write(b"%d\n" % released)
            os.ftruncate(file.fileno(), file.tell())
            os.fsync(file.fileno())
        if is_new:
            sync_folder(where)
    except OSError as error:
        _warn(f"{error.filename or 'the home directory'} ({error.strerror})")
        return False
    return True


def tidy() -> None:
    """Remove the counts that were written last a year ago."""
    with contextlib.suppress(OSError):
        for path in folder().iterdir():
            if _RUN.fullmatch(path.name) and path.stat().st_mtime < time.time() - _KEPT_SECONDS:
                path.unlink()


@contextlib.contextmanager
def held(run: str) -> Iterator[None]:
    """Hold the count of a run alone: reading, releasing and counting a round are one step.

    Where there is no count, or no locks on its file system, nothing is held.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            fcntl.flock(stack.enter_context(_opened(run)), fcntl.LOCK_EX)
        yield


def _opened(run: str, flags: int = 0) -> BinaryIO:
    """Return the count of a run, open at its beginning. Raises `OSError` for a link: a file elsewhere would be written."""
    return open(os.open(folder() / run, os.O_RDWR | os.O_NOFOLLOW | flags, 0o600), "r+b", buffering=0)


@cache
def _warn(why: str) -> None:
    log.warning(
        "how far this run gets cannot be written outside its directory: %s. The run continues, but an older copy of the "
        "directory would not be recognised; set FEDMF_STATE to a folder that can be written.",
        why,
    )

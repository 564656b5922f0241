"""Where a run was begun and with whom: origin.json beside its secrets.

A copy of a run directory, or an older snapshot of it, holds the same key and would release the same noise on other
replies. Other clients behind the same names could be heard twice in an epoch. Both are recognised by what a run
notes when it begins: a random id (under which `server.marks` counts its rounds), machine and directory, the number of
clients and a keyed digest of who they are, in order. The digest's key lies beside it, and both are erased with the
run's own key: a digest without its key says nothing about anyone's data.
"""

import hashlib
import json
import os
import platform
import secrets
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from fedmf.errors import RunDirectoryError
from fedmf.randomness import SecretKey
from server.files import erase, temporary_path, write_atomically

ORIGIN = "origin.json"
_MACHINE_ID = Path("/etc/machine-id")


@dataclass(frozen=True)
class Clients:
    """The clients of a run: how many, and `digest(key)` of who they are, in order ("" where the server has no data)."""

    count: int
    digest: Callable[[SecretKey], str]


def no_digest(key: SecretKey) -> str:
    """Return no digest: the clients are elsewhere."""
    return ""


ELSEWHERE = Clients(0, no_digest)


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
        """Say whether both are the same directory, moved or not, and no copy of each other."""
        if (self.machine, self.inode) != (other.machine, other.inode):
            return False
        return self.device == other.device or self.path == other.path


@dataclass(frozen=True)
class Origin:
    """What a run notes when it begins; `marked` is whether its rounds are counted outside its directory."""

    run: str
    place: Place
    marked: bool
    clients: int
    key: SecretKey = field(repr=False)
    digest: str = field(repr=False)

    @classmethod
    def of(cls, directory: Path, clients: Clients) -> Self:
        """Return the origin of a run that begins in `directory`, not yet counted."""
        key = SecretKey.generate()
        return cls(secrets.token_hex(16), Place.of(directory), False, clients.count, key, clients.digest(key))

    def refuse_other_clients(self, directory: Path, clients: Clients) -> None:
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

    def save(self, folder: Path) -> None:
        """Write origin.json, mode 0600."""
        document = {**asdict(self), "key": self.key.reveal().hex()}
        write_atomically(folder / ORIGIN, json.dumps(document).encode(), mode=0o600, erase_old=True)


def load(folder: Path) -> Origin | None:
    """Return the origin in a folder of checkpoints, None where there is none: the run is over.

    Raises `RunDirectoryError` for a damaged one.
    """
    path = folder / ORIGIN
    try:
        document: dict[str, Any] = json.loads(path.read_text())
        key, place = SecretKey(bytes.fromhex(document.pop("key"))), Place(**document.pop("place"))
        return Origin(**document, key=key, place=place)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunDirectoryError(f"{path} is damaged; restore the checkpoint folder.") from error


def forget(folder: Path) -> None:
    """Overwrite and remove origin.json."""
    erase(folder / ORIGIN)
    erase(temporary_path(folder / ORIGIN))


def machine_digest() -> str:
    """Return a name of this machine that does not say which one it is."""
    try:
        known = _MACHINE_ID.read_text().strip()
    except OSError:
        known = ""
    return hashlib.sha256(f"fedmf machine {known or platform.node()}".encode()).hexdigest()[:32]

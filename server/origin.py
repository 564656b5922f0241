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
import re
import secrets
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Self

from fedmf.errors import RunDirectoryError, SettingError
from fedmf.randomness import SecretKey
from server.files import erase, temporary_path, write_atomically

ORIGIN = "origin.json"
_MACHINE_ID = Path("/etc/machine-id")
_RUN = re.compile(r"[0-9a-f]{32}")  # it names a file of `server.marks`


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
    """Return the origin in a folder of checkpoints, None where there is none or an erased one: the run is over.

    Raises `RunDirectoryError` for a damaged one, or one that this program would not have written: its values name
    files and are compared.
    """
    path = folder / ORIGIN
    try:
        data = path.read_bytes()
        if data.startswith(b"\0"):
            return None  # a crash came between the zeros and the removal
        document = json.loads(data)
        place = Place(**document.pop("place"))
        key = SecretKey(bytes.fromhex(document.pop("key")))
        begun = Origin(**document, key=key, place=place)
        _refuse_other_types(begun)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, SettingError) as error:
        raise RunDirectoryError(f"{path} is damaged; restore the checkpoint folder.") from error
    return begun


def _refuse_other_types(begun: Origin) -> None:
    """Raise `TypeError` or `ValueError` for fields of other types, and for a run that is no random id of ours."""
    for one in (begun, begun.place):
        for about in fields(one):
            if type(value := getattr(one, about.name)) is not about.type:
                raise TypeError(f"{about.name} is {value!r}")
    if not _RUN.fullmatch(begun.run):
        raise ValueError(f"run is {begun.run!r}")


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

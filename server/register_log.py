"""The register of spent clients on disk: a snapshot, and behind it whom each checkpoint added.

    register-ROUND.bin      the register after ROUND, an .npz file; then lines of JSON {"begun": epochs, "spent": [clients]}

A base file refers to the length of it that is the register of its round, with a checksum. What is behind that length belongs
to a later base, or to one that was never finished, so that a file may grow without harming an older base, and a crash
between the two leaves the base before. A process begins with a snapshot, and makes another when the lines behind it have
grown long beside it: what is written in a round is about what its cohort takes, whoever was spent before.
"""

import json
import os
import re
import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from fedmf.errors import ParticipationError, RunDirectoryError
from fedmf.npz import read_npz
from fedmf.register import Register
from server.files import UNREADABLE, packed, write_all, write_atomically

NAME = re.compile(r"register-\d+(-\d+)?\.bin")
FEWEST_BYTES = 1 << 20
"""Lines shorter than this are never worth another snapshot."""
SHARE = 8
"""Lines may take an eighth of what the snapshot takes: reading them back takes longer."""


@dataclass
class RegisterLog:
    """What this process wrote of the register last; nothing at first. Where it is lost a snapshot is written."""

    last: Register | None = None
    file: str = ""
    snapshot: int = 0
    length: int = 0
    checksum: int = 0

    def save(self, folder: Path, number: int, register: Register) -> dict[str, Any]:
        """Put `register`, that after round `number`, on disk in `folder`; return how a base refers to it.

        After an `OSError` nothing that a base refers to has changed.
        """
        line = self._line(register)
        if line is None or not (folder / self.file).is_file():
            self._begin(folder, number, register)
        elif line:
            self._append(folder / self.file, line)
        self.last = register
        return {"file": self.file, "snapshot": self.snapshot, "bytes": self.length, "crc32": self.checksum}

    def _line(self, register: Register) -> bytes | None:
        """Return what leads from the last register to this one; None where a snapshot is due."""
        if self.last is None:
            return None
        if register == self.last:
            return b""
        if (added := register.spent_since(self.last)) is None:
            return None
        line = json.dumps({"begun": register.begun, "spent": added}).encode() + b"\n"
        behind = self.length - self.snapshot + len(line)
        return line if behind <= max(FEWEST_BYTES, self.snapshot // SHARE) else None

    def _begin(self, folder: Path, number: int, register: Register) -> None:
        """Write a snapshot to a file of its own: one that is there may be what an older base refers to."""
        data = packed(**register.to_arrays())
        names = (f"register-{number:06d}{'' if again == 0 else f'-{again}'}.bin" for again in count())
        name = next(name for name in names if not os.path.lexists(folder / name))
        write_atomically(folder / name, data)
        self.file, self.snapshot, self.length, self.checksum = name, len(data), len(data), zlib.crc32(data)

    def _append(self, path: Path, line: bytes) -> None:
        """Add a line behind the known length, and return when it is on disk."""
        descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW)
        try:
            os.ftruncate(descriptor, self.length)  # a line that could not be written whole may be there
            os.lseek(descriptor, self.length, os.SEEK_SET)
            write_all(descriptor, line)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        self.length, self.checksum = self.length + len(line), zlib.crc32(line, self.checksum)


def load(folder: Path, reference: Mapping[str, Any], *, otherwise: str) -> Register:
    """Return the register that a base refers to. Raises `RunDirectoryError`, which ends with `otherwise`, if it is not there."""
    name = str(reference["file"])
    path = folder / name
    if not NAME.fullmatch(name):
        raise RunDirectoryError(f"{name!r} is no file of a register in {folder}.{otherwise}")
    try:
        data = path.read_bytes()[: reference["bytes"]]
    except OSError as error:
        raise RunDirectoryError(
            f"{path} cannot be read ({error}), and holds the clients heard in this epoch.{otherwise}"
        ) from error
    if len(data) != reference["bytes"] or zlib.crc32(data) != reference["crc32"]:
        raise RunDirectoryError(
            f"{path} is cut short or damaged: it held {reference['bytes']} bytes with the checksum "
            f"{reference['crc32']:08x}.{otherwise}"
        )
    try:
        register = Register.from_arrays(read_npz(data[: reference["snapshot"]]))
        for line in data[reference["snapshot"] :].splitlines():
            register = _with_line(register, json.loads(line))
    except (*UNREADABLE, TypeError, ParticipationError) as error:
        raise RunDirectoryError(f"{path} is damaged ({error}).{otherwise}") from error
    return register


def _with_line(register: Register, line: Mapping[str, Any]) -> Register:
    """Return the register after a line of the log."""
    if line["begun"] == register.begun + 1:
        register = register.next_epoch()
    if line["begun"] != register.begun:
        raise ValueError(f"epoch {line['begun']} follows epoch {register.begun}")
    return register.spend(line["spent"])


def remove_others(folder: Path, needed: Collection[str | None]) -> None:
    """Remove the files that no base refers to, an older one's and what a process left that was ended before its base.

    `needed` has the name of each base's file. With None among them, of a base that cannot be read, nothing is removed.
    """
    if None in needed:
        return
    for path in list(folder.iterdir()):
        if NAME.fullmatch(path.name) and path.name not in needed:
            path.unlink()

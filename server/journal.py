"""The journal of releases: one record a round, on disk before anyone can see the round.

A record is a line of JSON (format, round, clients who answered, cohort, sizes, checksum) and the noisy sum as
little-endian float32. Appending it and forcing it to disk IS the release: a record that is whole was
released and is replayed after a crash, a torn one at the end was not.
"""

import json
import os
import zlib
from pathlib import Path
from typing import Any

from fedmf.errors import RunDirectoryError
from fedmf.updates import wire
from server.files import open_no_link, sync_folder, write_all
from server.state import Release

FORMAT = "fedmf-journal-1"
_HEADER = b'{"format": "fedmf-journal-'


def append(path: Path, release: Release) -> None:
    """Add a record and return when it is on disk. After an `OSError` the file is as it was, or ends torn."""
    payload = wire.to_bytes(release.noisy_sum)
    head = {
        "format": FORMAT,
        "round": release.round,
        "answered": release.answered,
        "cohort_size": release.cohort_size,
        "bytes": len(payload),
    }
    line = json.dumps(head).encode()
    checksum = zlib.crc32(payload, zlib.crc32(line))
    # Unbuffered: closing must not write again what failed. A link would add to a file of somebody else.
    with open(path, "ab", buffering=0, opener=open_no_link) as file:
        before = file.tell()
        try:
            write_all(file.fileno(), b"%08x %s\n" % (checksum, line) + payload)
            os.fsync(file.fileno())
            if before == 0:
                sync_folder(path.parent)  # the name of a new file must be on disk as well
        except OSError:
            os.truncate(file.fileno(), before)
            raise


def read(path: Path) -> list[Release]:
    """Return the releases whose records are whole, in order; a torn record at the end was never released.

    Raises `RunDirectoryError` for records of another version, and for damage in the middle: what follows was
    released and must not be lost.
    """
    data = path.read_bytes() if path.exists() else b""
    releases: list[Release] = []
    position = 0
    while (found := _record_at(data, position)) is not None:
        head, payload, position = found
        if head.get("format") != FORMAT:
            raise RunDirectoryError(
                f"format of {path} is {head.get('format')!r}; this version reads {FORMAT!r}."
            )
        try:
            releases.append(_release(head, payload))
        except (KeyError, TypeError, ValueError) as error:
            raise RunDirectoryError(
                f"{path} holds a record that is whole and no release: {type(error).__name__}, {error}; restore the file."
            ) from error
    if data.find(_HEADER, position + 10) >= 0:  # a torn record has no other header after its own
        raise RunDirectoryError(
            f"{path} is damaged after round {releases[-1].round if releases else 0}, and released rounds follow "
            "the damage; they must not be run again. Restore the file."
        )
    return releases


def _release(head: dict[str, Any], payload: bytes) -> Release:
    """Return the release of a record. Raises `KeyError`, `TypeError` or `ValueError` where a field is missing or wrong."""
    for field, kind in (("round", int), ("answered", list), ("cohort_size", int)):
        if type(head[field]) is not kind:
            raise TypeError(f"{field} is {head[field]!r}")
    return Release(head["round"], wire.to_vector(payload), tuple(head["answered"]), head["cohort_size"])


def _record_at(data: bytes, position: int) -> tuple[dict[str, Any], bytes, int] | None:
    """Return head and payload of the whole record at `position` and where it ends, or None."""
    end = data.find(b"\n", position)
    if end < 0:
        return None
    try:
        checksum, line = int(data[position : position + 8], 16), data[position + 9 : end]
        head = json.loads(line)
        payload = data[end + 1 : end + 1 + int(head["bytes"])]
        is_separated = data[position + 8 : position + 9] == b" "
        if not is_separated or len(payload) != head["bytes"]:
            return None
    except (ValueError, KeyError, TypeError):
        return None
    if zlib.crc32(payload, zlib.crc32(line)) != checksum:
        return None
    return head, payload, end + 1 + len(payload)

"""The journal of releases: one record a round, on disk before anyone can see the round.

A record is a line of JSON (format, round, clients who answered, cohort, sizes, checksum) and the noisy sum as
little-endian float32. Appending it and forcing it to disk IS the release: a record that is whole was
released and is replayed after a crash, a torn one at the end was not.
"""

import json
import os
import zlib
from pathlib import Path

from fedmf.updates import wire
from server.state import Release

FORMAT = "fedmf-journal-1"


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
    with path.open("ab") as file:
        before = file.tell()
        try:
            file.write(b"%08x %s\n" % (checksum, line))
            file.write(payload)
            file.flush()
            os.fsync(file.fileno())
        except OSError:
            os.truncate(path, before)
            raise


def read(path: Path) -> list[Release]:
    """Return the releases whose records are whole, in order; what follows a torn record was never released."""
    data = path.read_bytes() if path.exists() else b""
    releases: list[Release] = []
    position = 0
    while (found := _record_at(data, position)) is not None:
        release, position = found
        releases.append(release)
    return releases


def _record_at(data: bytes, position: int) -> tuple[Release, int] | None:
    """Return the whole record at `position` and where it ends, or None."""
    end = data.find(b"\n", position)
    if end < 0:
        return None
    try:
        checksum, line = int(data[position : position + 8], 16), data[position + 9 : end]
        head = json.loads(line)
        payload = data[end + 1 : end + 1 + int(head["bytes"])]
        is_separated = data[position + 8 : position + 9] == b" "
        if not is_separated or head["format"] != FORMAT or len(payload) != head["bytes"]:
            return None
    except (ValueError, KeyError, TypeError):
        return None
    if zlib.crc32(payload, zlib.crc32(line)) != checksum:
        return None
    release = Release(head["round"], wire.to_vector(payload), tuple(head["answered"]), head["cohort_size"])
    return release, end + 1 + len(payload)

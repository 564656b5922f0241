"""Which nodes took part in each epoch of a deployment, by name: attendance.json.

A node's name, its key and the number that it declared are public; which of its clients was heard is not in the file. The key
is there because a name is that of a list, which may change in the midst of an epoch, and a key stays.
"""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.run_files.directory import ATTENDANCE
from fedmf.errors import RunDirectoryError
from server.cohort import Roster
from server.files import write_atomically
from server.known_nodes import KnownNodes

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class AttendanceFile:
    """The file in `folder`; `nodes` says what people call those of an epoch that begins."""

    folder: Path
    nodes: KnownNodes

    def record(self, roster: Roster) -> None:
        """Write who is in the epoch of `roster`.

        What was written of the same roster when the epoch began stays: who has been taken out of the list of nodes since then
        still took part, under the name of then. A damaged file is put aside, with a word in the log: it is there for
        people alone, and no reason to stop a run.
        """
        kept, before = [], None
        for row in self._read():
            if row["epoch"] == roster.epoch + 1:
                before = row
            else:
                kept.append(row)
        if before is not None and _is_of(before, roster):
            return
        keys = dict(sorted((self.nodes.called(key), key) for key in roster.nodes))
        named = {name: roster.nodes[key] for name, key in keys.items()}
        rows = [*kept, {"epoch": roster.epoch + 1, "nodes": named, "keys": keys}]
        rows.sort(key=lambda row: int(row["epoch"]))
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self.folder / ATTENDANCE, (json.dumps({"epochs": rows}, indent=1) + "\n").encode())

    def _read(self) -> list[dict[str, Any]]:
        """Return the rows of the file, none of a damaged one, which is renamed."""
        try:
            return _rows(self.folder)
        except RunDirectoryError as error:
            aside = self.folder / f"{ATTENDANCE}.damaged"
            log.warning("%s It is kept as %s, and another one is begun.", error, aside.name)
            (self.folder / ATTENDANCE).replace(aside)
            return []


def read_attendance(folder: Path) -> list[dict[str, Any]]:
    """Return {"epoch": E, "nodes": {NAME: CLIENTS}} for each epoch; none where there is no file.

    Raises `RunDirectoryError` for a damaged one.
    """
    return [{"epoch": row["epoch"], "nodes": row["nodes"]} for row in _rows(folder)]


def _is_of(row: Mapping[str, Any], roster: Roster) -> bool:
    """Say whether a row was written of the same nodes with the same numbers, whatever the list calls them now."""
    keys, nodes = row["keys"], row["nodes"]
    return {keys[name]: count for name, count in nodes.items()} == {**roster.nodes}


def _rows(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of `read_attendance`, with the "keys" {NAME: KEY} of each; one without gives the names for keys."""
    file = folder / ATTENDANCE
    if not file.is_file():
        return []
    try:
        return [
            {
                "epoch": int(row["epoch"]),
                "nodes": {str(name): int(count) for name, count in row["nodes"].items()},
                "keys": {str(name): str(row.get("keys", {}).get(name, name)) for name in row["nodes"]},
            }
            for row in json.loads(file.read_bytes())["epochs"]
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunDirectoryError(f"{file} is damaged ({error}); restore it or remove it.") from error

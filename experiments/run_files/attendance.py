"""Which nodes took part in each epoch of a deployment, by name: attendance.json.

A node's name and the number that it declared are public; which of its clients was heard is not in the file.
"""

import json
import logging
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
                before = row["nodes"]
            else:
                kept.append(row)
        if before is not None and sorted(before.values()) == sorted(roster.nodes.values()):
            return
        named = {self.nodes.called(key): count for key, count in roster.nodes.items()}
        rows = [*kept, {"epoch": roster.epoch + 1, "nodes": dict(sorted(named.items()))}]
        rows.sort(key=lambda row: int(row["epoch"]))
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self.folder / ATTENDANCE, (json.dumps({"epochs": rows}, indent=1) + "\n").encode())

    def _read(self) -> list[dict[str, Any]]:
        """Return the rows of the file, none of a damaged one, which is renamed."""
        try:
            return read_attendance(self.folder)
        except RunDirectoryError as error:
            aside = self.folder / f"{ATTENDANCE}.damaged"
            log.warning("%s It is kept as %s, and another one is begun.", error, aside.name)
            (self.folder / ATTENDANCE).replace(aside)
            return []


def read_attendance(folder: Path) -> list[dict[str, Any]]:
    """Return {"epoch": E, "nodes": {NAME: CLIENTS}} for each epoch; none where there is no file.

    Raises `RunDirectoryError` for a damaged one.
    """
    file = folder / ATTENDANCE
    if not file.is_file():
        return []
    try:
        rows = json.loads(file.read_bytes())["epochs"]
        return [
            {
                "epoch": int(row["epoch"]),
                "nodes": {str(name): int(count) for name, count in row["nodes"].items()},
            }
            for row in rows
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunDirectoryError(f"{file} is damaged ({error}); restore it or remove it.") from error

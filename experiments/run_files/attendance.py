"""Which nodes took part in each epoch of a deployment, by name: attendance.json.

A node's name and the number that it declared are public; which of its clients was heard is not in the file.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.run_files.directory import ATTENDANCE
from fedmf.errors import RunDirectoryError
from server.cohort import Roster
from server.files import write_atomically
from server.known_nodes import KnownNodes


@dataclass(frozen=True)
class AttendanceFile:
    """The file in `folder`; `nodes` says what people call those of an epoch that begins."""

    folder: Path
    nodes: KnownNodes

    def record(self, roster: Roster) -> None:
        """Write who is in the epoch of `roster`, in place of what was written of it before."""
        kept = [row for row in read_attendance(self.folder) if row["epoch"] != roster.epoch + 1]
        named = {self.nodes.called(key): count for key, count in roster.nodes.items()}
        rows = [*kept, {"epoch": roster.epoch + 1, "nodes": dict(sorted(named.items()))}]
        rows.sort(key=lambda row: int(row["epoch"]))
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self.folder / ATTENDANCE, (json.dumps({"epochs": rows}, indent=1) + "\n").encode())


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

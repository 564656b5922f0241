"""Which nodes took part in each epoch of a deployment, by name: attendance.json.

A node's name, its key and the number that it declared are public; which of its clients was heard is not in the file. The key
is there because a name is that of a list, which may change in the midst of an epoch, and a key stays.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.run_files.directory import ATTENDANCE, set_aside
from fedmf.errors import RunDirectoryError
from server.cohort import Roster
from server.files import write_atomically
from server.known_nodes import KnownNodes


def record_attendance(folder: Path, nodes: KnownNodes, roster: Roster) -> None:
    """Write who is in the epoch of `roster`, under the names that `nodes` has.

    What was written of the same roster when the epoch began stays: who has been taken out of the list of nodes since then
    still took part, under the name of then. A damaged file is put aside: it is there for people alone.
    """
    file, number = folder / ATTENDANCE, roster.epoch + 1
    try:
        rows = _rows(folder)
    except RunDirectoryError as error:
        set_aside(file, error)
        rows = []
    if any(row["epoch"] == number and _members(row) == {**roster.nodes} for row in rows):
        return
    keys = dict(sorted((nodes.called(key), key) for key in roster.nodes))
    named = {name: roster.nodes[key] for name, key in keys.items()}
    rows = [row for row in rows if row["epoch"] != number]
    rows.append({"epoch": number, "nodes": named, "keys": keys})
    rows.sort(key=lambda row: int(row["epoch"]))
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(file, (json.dumps({"epochs": rows}, indent=1) + "\n").encode())


def read_attendance(folder: Path) -> list[dict[str, Any]]:
    """Return {"epoch": E, "nodes": {NAME: CLIENTS}} for each epoch; none where there is no file.

    Raises `RunDirectoryError` for a damaged one.
    """
    return [{"epoch": row["epoch"], "nodes": row["nodes"]} for row in _rows(folder)]


def _members(row: Mapping[str, Any]) -> dict[str, int]:
    """Return how many clients each node of a row has, by key, whatever the list of nodes calls it now."""
    return {row["keys"][name]: count for name, count in row["nodes"].items()}


def _rows(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of `read_attendance`, with the "keys" {NAME: KEY} of each."""
    file = folder / ATTENDANCE
    if not file.is_file():
        return []
    try:
        return [
            {
                "epoch": int(row["epoch"]),
                "nodes": {str(name): int(count) for name, count in row["nodes"].items()},
                "keys": {str(name): str(row["keys"][name]) for name in row["nodes"]},
            }
            for row in json.loads(file.read_bytes())["epochs"]
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunDirectoryError(f"{file} is damaged ({error}); restore it or remove it.") from error

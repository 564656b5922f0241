"""What a run leaves behind while it goes on, kept before the run itself removes it.

A run removes its journals when later bases cover them, and erases its keys: both are needed to say afterwards whether a
round was released twice, and whether its noise is in it once. Journals are held open, which needs no room on a disk that
is full. The keys are those of made-up clients on this machine; no other run's belong here.
"""

import json
import os
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments.run_files.directory import METRICS
from server import journal
from server.cohort import Roster
from server.state import Release
from server.state_files import read_secrets

Seen = tuple[float, int]


@dataclass
class Evidence:
    """What was seen of the run in `directory`: journals, keys and rosters by epoch, and when its rounds were shown."""

    directory: Path
    keys: dict[int, list[bytes]] = field(default_factory=dict, repr=False)
    rosters: dict[int, list[Roster]] = field(default_factory=dict)
    shown: list[Seen] = field(default_factory=list)
    _journals: dict[tuple[int, int], int] = field(default_factory=dict)

    def look(self) -> None:
        """Keep what is there now; to be called several times a round."""
        folder = self.directory / "checkpoint"
        for path in folder.glob("journal-*.bin"):
            with suppress(FileNotFoundError):
                self._hold(path)
        if not any(os.fstat(descriptor).st_size for descriptor in self._journals.values()):
            self.keys, self.rosters = {}, {}  # before its first release a run may begin anew
        if (held := read_secrets(folder)) is not None:
            _remember(self.keys, held.epoch, held.key.reveal())
        with suppress(OSError, ValueError, KeyError, TypeError):
            roster = Roster.from_json((folder / "roster.json").read_text())
            _remember(self.rosters, roster.epoch, roster)
        count = len(self.rows())
        last = self.shown[-1][1] if self.shown else 0
        self.shown += [(time.monotonic(), number) for number in range(last + 1, count + 1)]

    def rows(self) -> list[dict[str, Any]]:
        """Return the whole lines of metrics.jsonl."""
        try:
            text = (self.directory / METRICS).read_bytes()
        except OSError:
            return []
        lines = text[: text.rfind(b"\n") + 1].splitlines()
        return [json.loads(line) for line in lines]

    def releases(self) -> list[Release]:
        """Return all records of all journals that there were, in the order of their rounds."""
        found = []
        for descriptor in self._journals.values():
            found += journal.read(Path(f"/proc/self/fd/{descriptor}"))
        return sorted(found, key=lambda release: release.round)

    def close(self) -> None:
        """Let go of the journals."""
        for descriptor in self._journals.values():
            os.close(descriptor)
        self._journals.clear()

    def _hold(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        state = os.fstat(descriptor)
        if (state.st_dev, state.st_ino) in self._journals:
            os.close(descriptor)
        else:
            self._journals[state.st_dev, state.st_ino] = descriptor


def _remember(known: dict[int, list[Any]], epoch: int, value: Any) -> None:
    values = known.setdefault(epoch, [])
    if value not in values:
        values.append(value)

"""A node that notes each model that it is given, for the soak alone: whether the journal had it, and what it was.

That no round is released twice is not seen from the server's journal alone: a server that hands out a model before the journal
has its round leaves a journal as it should be. So one node writes down, before it trains, the round of the model
that came with a task, the digest of that model, and the last round that the run's files held at that moment. A real node sees
no file of the server; this one is on the same machine, and what it notes goes nowhere else.
"""

import hashlib
import json
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from experiments.deployment import executor_process, resident
from experiments.deployment.node import OVERRIDES
from experiments.settings.compose import split
from fedmf.updates import wire
from fedmf.updates.vectors import Vector
from server import journal

NOTES = "SOAK_NOTES_FILE"  # variable: the file that the notes are added to
_BASE = re.compile(r"base-(\d+)\.npz")


@dataclass(frozen=True)
class Note:
    """That a node was given the model after `round` of the run in `directory`, whose files held `on_disk` rounds then."""

    directory: str
    round: int
    digest: str
    on_disk: int


def noting(app: ClientApp, file: Path) -> ClientApp:
    """Return an app that adds a line to `file` for the model of each task, and answers what `app` answers."""
    noted = ClientApp()

    @noted.train()
    def train(message: Message, context: Context) -> Message:
        with file.open("a") as notes:
            notes.write(json.dumps(asdict(note_of(message, context))) + "\n")
        return app(message, context)

    @noted.query()
    def query(message: Message, context: Context) -> Message:
        return app(message, context)

    return noted


def note_of(message: Message, context: Context) -> Note:
    """Return what there is to note of a task: its model is that after the round before the one it is of."""
    directory = _directory(split(str(context.run_config[OVERRIDES])))
    model = message.content.array_records[wire.MODEL][wire.VECTOR].data
    return Note(directory, int(message.metadata.group_id) - 1, _digest(model), last_on_disk(Path(directory)))


def digest_of(model: Vector) -> str:
    """Return the digest of a flat model, (d,) float32, as notes have it."""
    return _digest(wire.to_bytes(model))


def last_on_disk(directory: Path) -> int:
    """Return the last round that the files of a run hold, in its newest base or in a journal; 0 for none."""
    folder = directory / "checkpoint"
    rounds = [0]
    for path in folder.glob("*"):
        if found := _BASE.fullmatch(path.name):
            rounds.append(int(found[1]))
        elif path.match("journal-*.bin"):
            with suppress(FileNotFoundError):  # a newer base covers it
                rounds += [release.round for release in journal.read(path)]
    return max(rounds)


def read(file: Path, directory: Path) -> list[Note]:
    """Return the notes of the run in `directory`, in their order."""
    lines = file.read_text().splitlines() if file.exists() else []
    notes = [Note(**json.loads(line)) for line in lines]
    return [note for note in notes if note.directory == str(directory)]


def _directory(overrides: Sequence[str]) -> str:
    return next(
        value for name, _, value in (one.partition("=") for one in overrides) if name == "run.directory"
    )


def _digest(model: bytes) -> str:
    return hashlib.sha256(model).hexdigest()


def install() -> None:
    """Let the executor of this process note each model, where the environment names a file for it."""
    if (file := os.environ.get(NOTES)) is None:
        return
    honest = resident.Resident.app
    resident.Resident.app = lambda self: noting(honest(self), Path(file))  # type: ignore[method-assign]


def main() -> None:
    """Play tasks as an honest executor does, and note each model."""
    install()
    executor_process.main()


if __name__ == "__main__":
    os.umask(0o077)
    main()

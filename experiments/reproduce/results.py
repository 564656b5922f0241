"""The file of finished trials: one JSON line each, on disk before the next is begun, never computed again."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path

from experiments.reproduce.trials import Cell, Outcome, Trial
from fedmf.errors import RunDirectoryError
from server.files import sync_folder, write_atomically

_OF_OUTCOME = tuple(field.name for field in fields(Outcome))


class Results:
    """The outcomes in a file of JSON lines, which a call that was cut short and the next one share.

    A last line that a crash tore is left out. Raises `RunDirectoryError` for any other line that is no result.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        whole = path.read_bytes().rpartition(b"\n")[0] if path.exists() else b""
        self._size = len(whole) + bool(whole)
        self._tuned: dict[Cell, float] = {}
        self._outcomes = dict(self._read(number, line) for number, line in enumerate(whole.splitlines(), 1))

    def __len__(self) -> int:
        """Return how many trials are there, of whatever cells."""
        return len(self._outcomes)

    def find(self, trial: Trial) -> Outcome | None:
        """Return the outcome of a trial, or None while there is none."""
        return self._outcomes.get(trial.key)

    def add(self, trial: Trial, outcome: Outcome) -> None:
        """Append an outcome and return when it is on disk."""
        line = json.dumps({**json.loads(trial.key), **asdict(outcome)}) + "\n"
        with self._path.open("ab") as file:
            file.truncate(self._size)  # a torn line is written over
            file.write(line.encode())
            file.flush()
            os.fsync(file.fileno())
        if self._size == 0:
            sync_folder(self._path.parent)
        self._size += len(line.encode())
        self._outcomes[trial.key] = outcome

    def sort(self) -> None:
        """Put the lines in order, so that the file does not tell in which order processes were done."""
        lines = [
            json.dumps({**json.loads(key), **asdict(outcome)}) + "\n"
            for key, outcome in sorted(self._outcomes.items())
        ]
        text = "".join(lines).encode()
        if lines:
            write_atomically(self._path, text)
            self._size = len(text)

    def of(self, cell: Cell, *, held_out: bool) -> Iterator[tuple[float, int, Outcome]]:
        """Yield (learning rate, seed, outcome) of a cell's trials, of those that tune or of those on the test split."""
        for key, outcome in self._outcomes.items():
            said = json.loads(key)
            trial = Trial(cell, said["rate"], said["seed"], said["held_out"])
            if trial.key == key and bool(trial.held_out) == held_out:
                yield trial.learning_rate, trial.seed, outcome

    def prefer(self, rates: Mapping[Cell, float]) -> None:
        """Take the runs at these rates where `final` finds a cell's runs at several: it was tuned more than once."""
        self._tuned = dict(rates)

    def final(self, cell: Cell) -> tuple[float, dict[int, float]]:
        """Return the tuned learning rate of a cell, and the test accuracy by seed of its runs; (nan, {}) if none.

        The rate is the one that `prefer` names; while tuning has not ended there, the one with most runs.
        """
        by_rate: dict[float, dict[int, float]] = {}
        for rate, seed, outcome in self.of(cell, held_out=False):
            by_rate.setdefault(rate, {})[seed] = outcome.accuracy
        if not by_rate:
            return float("nan"), {}
        rate = self._tuned.get(cell, float("nan"))
        if rate not in by_rate:
            rate = max(sorted(by_rate), key=lambda rate: len(by_rate[rate]))
        return rate, by_rate[rate]

    def seconds(self, cells: Sequence[Cell]) -> list[float]:
        """Return the CPU seconds of the cells' runs on the test split."""
        return [outcome.seconds for cell in cells for _, _, outcome in self.of(cell, held_out=False)]

    def _read(self, number: int, line: bytes) -> tuple[str, Outcome]:
        try:
            document = json.loads(line)
            outcome = Outcome(**{name: document.pop(name) for name in _OF_OUTCOME})
            if not {"rate", "seed", "held_out"} <= set(document):
                raise ValueError("it names no trial")
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise RunDirectoryError(
                f"line {number} of {self._path} is no result ({error}); it must be a line that this command wrote: "
                "remove it, or name another directory."
            ) from error
        return json.dumps(document), outcome

"""The file of finished trials: one JSON line each, on disk before the next is begun, never computed again.

Each line names the code that played it, as other code may give other runs of the same law. Lines of different code are
mixed only where that is allowed.
"""

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from experiments.reproduce.result_line import Code, ResultLine, may_be_torn, parsed
from experiments.reproduce.trials import Cell, Outcome, Trial
from experiments.run_files.provenance import own_code
from fedmf.errors import RunDirectoryError, SettingError
from server.files import locked, open_no_link, sync_folder, write_atomically


class Results:
    """The outcomes in a file of JSON lines, which a call that was cut short and the next one share.

    A last line that a crash tore is left out. Raises `RunDirectoryError` for any other line that is no result. With
    `mix_code` runs may be added beside lines of other code.
    """

    def __init__(self, path: Path, *, mix_code: bool = False) -> None:
        self._path, self._mix_code = path, mix_code
        self._codes: dict[str, Code | None] = {}  # None: the line does not say
        whole, _, torn = path.read_bytes().rpartition(b"\n") if path.exists() else (b"", b"", b"")
        self._size = len(whole) + bool(whole)
        self._tuned: dict[Cell, float] = {}
        lines = whole.splitlines()
        self._outcomes = dict(self._read(number, line) for number, line in enumerate(lines, 1))
        if not may_be_torn(torn):
            raise self._refused(len(lines) + 1, ", nor the beginning of one")

    @classmethod
    @contextmanager
    def alone(cls, path: Path, *, mix_code: bool) -> Iterator["Results"]:
        """Yield the results in a file that no other process is adding to, and put them in order when all of the block is done."""
        cls(path)  # a file of something else is refused before a lock stands beside it
        lock = path.parent / ".running" / path.stem
        lock.parent.mkdir(exist_ok=True)
        with locked(lock):
            results = cls(path, mix_code=mix_code)
            yield results
            results.sort()

    def __len__(self) -> int:
        """Return how many trials are there, of whatever cells."""
        return len(self._outcomes)

    def find(self, trial: Trial) -> Outcome | None:
        """Return the outcome of a trial, or None while there is none."""
        return self._outcomes.get(trial.key)

    def add(self, trial: Trial, outcome: Outcome) -> None:
        """Append an outcome, with the code that runs here, and return when it is on disk."""
        self.check_code()
        code = _code()
        line = ResultLine(trial.key, outcome, code).text
        with open(self._path, "ab", opener=open_no_link) as file:
            file.truncate(self._size)  # a torn line is written over
            file.write(line.encode())
            file.flush()
            os.fsync(file.fileno())
        if self._size == 0:
            sync_folder(self._path.parent)
        self._size += len(line.encode())
        self._outcomes[trial.key], self._codes[trial.key] = outcome, code

    def check_code(self) -> None:
        """Raise `SettingError` where a run that is added now would stand beside lines of other code, or of code they do not name."""
        others = Counter(code for code in self._codes.values() if code != _code())
        if others and not self._mix_code:
            raise SettingError(
                f"mix_code is false, but {self._path} has {in_words(others)}, and the code here is {_named(_code())}: "
                "name another directory for its runs, take the code that the file has, or set mix_code=true to "
                "add runs of this code beside them, as the page will say."
            )

    def codes(self, cells: Sequence[Cell]) -> Counter[Code | None]:
        """Return how many of the cells' runs and trials each code played, None for code that is not named."""
        said = {(cell.task, cell.mechanism, cell.fingerprint) for cell in cells}
        keys = ((json.loads(key), code) for key, code in self._codes.items())
        return Counter(code for key, code in keys if (key["task"], key["mechanism"], key["settings"]) in said)

    def sort(self) -> None:
        """Put the lines in order, so that the file does not tell in which order processes were done."""
        lines = [
            ResultLine(key, outcome, self._codes[key]) for key, outcome in sorted(self._outcomes.items())
        ]
        text = "".join(line.text for line in lines).encode()
        if lines:
            write_atomically(self._path, text)
            self._size = len(text)

    def of(self, cell: Cell, *, held_out: bool) -> Iterator[tuple[float, int, Outcome]]:
        """Yield (learning rate, seed, outcome) of a cell's trials, of those that tune or of those on the test split."""
        begin = Trial(cell, 0.0, 0).key.partition(', "rate": ')[0]
        for key, outcome in self._outcomes.items():
            if not key.startswith(begin):
                continue  # thousands of lines, most of them of other cells
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
            found = parsed(line)
        except ValueError as error:
            raise self._refused(number, f" ({error})") from error
        self._codes[found.key] = found.code
        return found.key, found.outcome

    def _refused(self, number: int, why: str) -> RunDirectoryError:
        return RunDirectoryError(
            f"line {number} of {self._path} is no result{why}; it must be a line that this command wrote: "
            "remove it, or name another directory."
        )


def _code() -> Code:
    """Return the code that runs here."""
    here = own_code()
    return here["fedmf"], here["code"]


def _named(code: Code) -> str:
    return f"{code[1]} of fedmf {code[0]}"


def in_words(codes: Mapping[Code | None, int]) -> str:
    """Return how many lines each code played.

    >>> in_words({("0.1.0", "0123456789abcdef"): 1, None: 12})
    '1 line by the code 0123456789abcdef of fedmf 0.1.0, and 12 lines that do not name their code'
    """
    known = [
        f"{_lines(codes[code])} by the code {_named(code)}"
        for code in sorted(code for code in codes if code is not None)
    ]
    unknown = codes.get(None, 0)
    silent = f"{_lines(unknown)} that {'does not name its' if unknown == 1 else 'do not name their'} code"
    return ", and ".join([*known, *([silent] if unknown else [])])


def _lines(number: int) -> str:
    return f"{number} line{'' if number == 1 else 's'}"

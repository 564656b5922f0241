"""The committed results of the studies: one JSON line for each finished trial, sorted by its key."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from experiments.pages.wording import Estimate, estimate
from experiments.reproduce.study import Cell, Trial
from fedmf.errors import RunDirectoryError
from server.files import write_atomically


@dataclass(frozen=True)
class Outcome:
    """The score of a run's last model, CPU and wall seconds, and the code that played it.

    accuracy is 0 and loss None where training diverged; wall, fedmf and code are None in lines older than they are.
    """

    accuracy: float
    loss: float | None
    seconds: float
    wall: float | None = None
    fedmf: str | None = None
    code: str | None = None


@dataclass(frozen=True)
class Runs:
    """The runs of a cell on the test split at one learning rate, by seed."""

    rate: float
    outcomes: Mapping[int, Outcome]

    @property
    def accuracies(self) -> dict[int, float]:
        """Test accuracy by seed."""
        return {seed: outcome.accuracy for seed, outcome in self.outcomes.items()}

    @property
    def accuracy(self) -> Estimate | None:
        """Mean and standard error of the accuracy in percent; None without any run."""
        return estimate([100 * outcome.accuracy for outcome in self.outcomes.values()])

    @property
    def loss(self) -> Estimate | None:
        """Mean and standard error of the loss; None without any run and where one diverged."""
        return estimate([outcome.loss for outcome in self.outcomes.values()])


class Results:
    """The outcomes in a file; raises `RunDirectoryError` for a line that is not one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._outcomes: dict[str, Outcome] = {}
        self._of: dict[tuple[str, str, str, bool], dict[tuple[float, int], Outcome]] = {}
        for number, line in enumerate(path.read_text().splitlines() if path.exists() else (), 1):
            try:
                said = json.loads(line)
                outcome = Outcome(*(said.pop(name, None) for name in Outcome.__dataclass_fields__))
                self._keep(said, outcome)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise RunDirectoryError(
                    f"{path}: line {number} is not a result ({error}). Remove it, or name another directory."
                ) from error

    def _keep(self, key: dict[str, object], outcome: Outcome) -> None:
        """Keep an outcome by its key, and with those of its cell."""
        numbers = {name: float(key[name]) for name in ("keep", "epsilon", "rate", "held_out")}  # type: ignore[arg-type]
        if not 0 <= outcome.accuracy <= 1 or outcome.seconds < 0:
            raise ValueError("an accuracy is between 0 and 1, and a time positive")
        cell = (str(key["task"]), str(key["mechanism"]), str(key["settings"]), numbers["held_out"] > 0)
        self._of.setdefault(cell, {})[numbers["rate"], int(key["seed"])] = outcome  # type: ignore[call-overload]
        self._outcomes[json.dumps({**key, **numbers})] = outcome

    def find(self, trial: Trial) -> Outcome | None:
        """Return the outcome of a trial, or None while there is none."""
        return self._outcomes.get(trial.key)

    def add(self, found: Mapping[str, Outcome]) -> None:
        """Add outcomes by the keys of their trials, and write the file."""
        for key, outcome in found.items():
            self._keep(json.loads(key), outcome)
        lines = [
            json.dumps(
                {
                    **json.loads(key),
                    **{k: v for k, v in asdict(outcome).items() if v is not None or k == "loss"},
                }
            )
            for key, outcome in sorted(self._outcomes.items())
        ]
        if lines:
            write_atomically(self._path, ("\n".join(lines) + "\n").encode())

    def of(self, cell: Cell, *, held_out: bool) -> Mapping[tuple[float, int], Outcome]:
        """Return {(learning rate, seed): outcome} of a cell's trials, of those that tune or of those on the test split."""
        return self._of.get((cell.task, cell.mechanism, cell.fingerprint, held_out), {})

    def runs(self, cell: Cell, rate: float | None) -> Runs:
        """Return the runs of a cell at the `rate` that tuning chose; without one, at the rate with most runs."""
        by_rate: dict[float, dict[int, Outcome]] = {}
        for (at, seed), outcome in sorted(self.of(cell, held_out=False).items(), key=lambda item: item[0]):
            by_rate.setdefault(at, {})[seed] = outcome
        if not by_rate:
            return Runs(float("nan"), {})
        best = rate if rate in by_rate else max(sorted(by_rate), key=lambda at: len(by_rate[at]))
        assert best is not None
        return Runs(best, by_rate[best])

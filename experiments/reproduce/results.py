"""The committed results of the studies, one JSON line for each finished trial, and how mechanisms differ in them.

By independent means where they lie close, and by runs of the same seed in the tables.
"""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path

from experiments.pages.wording import Estimate, estimate
from experiments.reproduce.study import Cell, Study, Task, Trial, tuned
from fedmf.errors import RunDirectoryError
from server.files import write_atomically

CLOSE = 2.0  # standard errors of the difference
NONE = "–"


@dataclass(frozen=True)
class Outcome:
    """The score of a run's last model, CPU and wall seconds, and the code that ran it.

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
    """The outcomes of a study in a file; raises `RunDirectoryError` for a line that is not one."""

    def __init__(self, study: Study, path: Path) -> None:
        self.study, self._path = study, path
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
        vars(self).pop("rates", None)  # found again

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

    @cached_property
    def rates(self) -> dict[Cell, float]:
        """The learning rate of each cell whose search has ended."""

        def known(trials: Sequence[Trial]) -> list[Outcome] | None:
            found = [outcome for outcome in map(self.find, trials) if outcome is not None]
            return found if len(found) == len(trials) else None

        return dict(
            pair for chain in self.study.chains() for pair in tuned(chain, self.study["held_out"], known)
        )

    def runs(self, cell: Cell) -> Runs:
        """Return the runs of a cell at the rate that tuning chose; without one, at the rate with most runs."""
        outcomes = self.of(cell, held_out=False)
        counts = Counter(at for at, _ in outcomes)
        if not counts:
            return Runs(math.nan, {})
        rate = self.rates.get(cell)
        best = rate if rate in counts else max(sorted(counts), key=counts.__getitem__)
        assert best is not None
        return Runs(best, {seed: outcomes[at, seed] for at, seed in sorted(outcomes) if at == best})

    def row(self, task: Task, keep: float, epsilon: float) -> dict[str, Runs]:
        """Return the runs of all mechanisms at a point."""
        return {name: self.runs(cell) for name, cell in task.row(keep, epsilon).items()}


def close_cells(results: Results) -> list[Cell]:
    """Return the cells closer than `CLOSE` standard errors to a neighbour in the order of their row.

    Only the first seeds decide, so that the answer does not depend on which further runs are there already.
    """
    close: list[Cell] = []
    for row in results.study.rows if results.study.more else ():
        first: dict[Cell, Estimate] = {}
        for cell in row.values():
            runs = results.runs(cell).accuracies
            found = estimate(
                [100 * runs[seed] if seed in runs else None for seed in range(results.study.seeds)]
            )
            if found is not None:
                first[cell] = found
        ranked = sorted(first, key=lambda cell: -first[cell].mean)
        pairs = [(a, b) for a, b in pairwise(ranked) if not differ(first[a], first[b])]
        close += [cell for cell in row.values() if any(cell in pair for pair in pairs)]
    return close


def differ(a: Estimate, b: Estimate) -> bool:
    """Return whether independent means differ by at least `CLOSE` standard errors of the difference.

    >>> differ(Estimate(90.0, 0.3), Estimate(89.0, 0.3)), differ(Estimate(90.0, 0.3), Estimate(89.0, 0.5))
    (True, False)
    """
    return a.mean != b.mean and abs(a.mean - b.mean) >= CLOSE * math.hypot(a.error or 0.0, b.error or 0.0)


def paired(a: Mapping[int, float], b: Mapping[int, float]) -> Estimate | None:
    """Return the mean difference of accuracies over the seeds that both have, in percent."""
    return estimate([100 * (a[seed] - b[seed]) for seed in sorted({*a} & {*b})])


def is_paired_above(a: Mapping[int, float], b: Mapping[int, float]) -> bool:
    """Return whether a is above b, accuracies by seed, by `CLOSE` standard errors of the paired difference.

    >>> is_paired_above({0: 0.80, 1: 0.90}, {0: 0.79, 1: 0.89, 2: 0.5}), is_paired_above({0: 0.80, 1: 0.90}, {0: 0.79, 1: 0.92})
    (True, False)
    """
    found = paired(a, b)
    return found is not None and found.error is not None and found.mean > max(0.0, CLOSE * found.error)


def difference(a: Runs, b: Runs) -> str:
    """Return the paired difference with its standard error, in percent."""
    return plus_minus(paired(a.accuracies, b.accuracies), "+.1f")


def plus_minus(found: Estimate | None, form: str = ".1f") -> str:
    """Return a mean and its standard error, a dash for None.

    >>> plus_minus(Estimate(3.04, 0.96), "+.1f"), plus_minus(Estimate(3.0, None)), plus_minus(None)
    ('+3.0 ± 1.0', '3.0', '–')
    """
    if found is None:
        return NONE
    mean = f"{found.mean:{form}}"
    return mean if found.error is None else f"{mean} ± {found.error:{form.removeprefix('+')}}"


def order(found: Mapping[str, Mapping[int, float]]) -> str:
    """Return names in the order of their means: > where runs of the same seed differ significantly, ≈ where they do not.

    >>> order({"b": {0: 0.80, 1: 0.90}, "a": {0: 0.82, 1: 0.92}, "c": {0: 0.79, 1: 0.905}, "d": {}})
    'a > b ≈ c'
    """
    known = {name: runs for name, runs in found.items() if runs}
    ranked = sorted(known, key=lambda name: -sum(known[name].values()) / len(known[name]))
    signs = [" > " if is_paired_above(known[a], known[b]) else " ≈ " for a, b in pairwise(ranked)]
    return (
        "".join(word for pair in zip(ranked, [*signs, ""], strict=True) for word in pair) if ranked else NONE
    )

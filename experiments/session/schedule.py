"""After which rounds a run is scored, and on how many of the test examples.

Both follow from the settings and the data alone: a resumed run scores in the rounds, and on the examples, of one that
nothing disturbed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from experiments.run_files.directory import METRICS
from experiments.run_files.scored import standard_error
from experiments.run_files.values import rows_of
from experiments.settings.schema import RunSettings
from fedmf.randomness import PublicSeed

# The subsample must not follow the seed of a run: runs of different seeds are compared round by round.
_SUBSAMPLE = PublicSeed(0)


@dataclass(frozen=True)
class Schedule:
    """Which of `rounds` are scored: each `every`-th, or where that is None `evaluations` of them; the last in any case.

    The last model is scored on all `test_examples`, the others on `between` of them.
    """

    rounds: int
    evaluations: int
    every: int | None
    test_examples: int
    between: int

    @classmethod
    def of(cls, run: RunSettings, rounds: int, test_examples: int) -> Self:
        """Return the schedule of a run of `rounds` on a test set of `test_examples`."""
        between = min(test_examples, run.evaluation_examples or test_examples)
        return cls(rounds, run.evaluations, run.evaluate_every, test_examples, between)

    def is_due(self, number: int) -> bool:
        """Say whether the model is scored after round `number`, 1-based.

        >>> [number for number in range(1, 10) if Schedule(9, 4, None, 1, 1).is_due(number)]
        [3, 5, 7, 9]
        """
        return number == self.rounds or self._due_up_to(number) > self._due_up_to(number - 1)

    def examples(self, number: int) -> int:
        """Return on how many test examples the model after round `number` is scored, if it is."""
        return self.test_examples if number == self.rounds else self.between

    @cached_property
    def rows(self) -> npt.NDArray[np.int64] | None:
        """The numbers of the test examples that are scored before the last round, in order; None: all of them."""
        if self.between == self.test_examples:
            return None
        shuffled = _SUBSAMPLE.generator("evaluation examples").permutation(self.test_examples)
        return np.sort(shuffled[: self.between])

    @property
    def standard_error(self) -> float:
        """The largest standard error of an accuracy on the subsample as an estimate of that on the whole test set."""
        return standard_error(self.between, self.test_examples)

    def sentences(self) -> tuple[str, ...]:
        """Return what a person must know of how a run is scored; nothing where that is as everybody expects."""
        said = []
        if self.every is not None:
            said.append(
                f"scored every {self.every} rounds: run.evaluate_every counts, run.evaluations does not"
            )
        if self.rows is not None:
            said.append(
                f"until the last round {self.between:,} of {self.test_examples:,} test examples are scored, the same in "
                f"every run on these data (an accuracy on them is that on all within a standard error of "
                f"{100 * self.standard_error:.2f} points, where an example has one target); at the end all are"
            )
        return tuple(said)

    def _due_up_to(self, number: int) -> int:
        """Return how many rounds up to `number` are scored, the last aside if nothing else asks for it."""
        if self.every is not None:
            return number // self.every
        return number * min(self.evaluations, self.rounds) // self.rounds


def last_row(directory: Path) -> Mapping[str, Any] | None:
    """Return the last row of metrics.jsonl, None where there is none."""
    rows = _rows(directory)
    return rows[-1] if rows else None


def last_scored(directory: Path, names: tuple[str, ...]) -> tuple[int, Mapping[str, Any]] | None:
    """Return the round and the values of `names` in the last scored row of metrics.jsonl, None where there is none."""
    for row in reversed(_rows(directory, names)):
        if "accuracy" in row:
            return int(row["round"]), {name: row.get(name) for name in names}
    return None


def _rows(directory: Path, names: tuple[str, ...] = ()) -> tuple[dict[str, Any], ...]:
    """Return the rows of metrics.jsonl, none where there is no such file; `names` are metrics in them."""
    path = directory / METRICS
    return rows_of(path.read_bytes(), path, names) if path.exists() else ()

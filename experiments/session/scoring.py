"""Scoring of a run's models on the test examples: in which rounds, on which examples, by which metrics.

The rounds and examples follow from the settings and the data alone: a resumed run scores in the rounds, and on the examples,
of an undisturbed one."""

import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from client.data import Examples
from client.losses import find_loss
from client.metrics import NamedMetric, find_metrics
from client.parameters import set_parameters
from client.reasons import reason
from client.scoring import SCORED_AT_ONCE, Score, refuse_failures, score
from client.training import pick_device
from experiments.run_files.directory import METRICS
from experiments.run_files.reader import standard_error
from experiments.run_files.values import finite, rows_of
from experiments.settings.experiment import Experiment
from experiments.settings.log import messages
from experiments.settings.schema import RunSettings, Settings
from fedmf.accounting.caveats import CHOOSING
from fedmf.errors import DivergedError, RunStoppedError
from fedmf.randomness import PublicSeed
from server.state import ServerState

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


_REMEDY = "training diverged: lower optimizer.learning_rate or client.learning_rate."


class Scorer:
    """Scores released models; the last score is remembered, and shown until the next one."""

    def __init__(self, experiment: Experiment, schedule: Schedule, metrics: Sequence[NamedMetric]) -> None:
        self._dataset = experiment.dataset
        self._model = deepcopy(experiment.model).to(pick_device(experiment.training.device)).eval()
        self._loss = find_loss(experiment.training.loss)
        self._schedule = schedule
        self._metrics = metrics
        self._failed_metrics: set[str] = set()
        self._scored: tuple[int, bool, Score] | None = None  # round, whether on all test examples, and score
        self._shown: tuple[int, Mapping[str, Any]] | None = None

    @property
    def shown(self) -> tuple[int | None, Mapping[str, Any]]:
        """The last scored round and its accuracy and metrics; None and nothing before the first."""
        return self._shown or (None, {})

    def go_on(self, directory: Path) -> None:
        """Show the last score in the metrics of a run that is taken up again."""
        self._shown = last_scored(directory, ("accuracy", *(metric.name for metric in self._metrics)))

    def score_if_due(self, state: ServerState) -> Score | None:
        """Return the score of a released model, None after a round that is not scored.

        Raises `DivergedError` where the model, the optimizer's state or the loss is no longer finite, whether or not the
        round is scored, and `RunStoppedError` where the model cannot be scored.
        """
        _check_finite(state)
        if not self._schedule.is_due(state.round):
            return None
        return self.score(state, is_last=state.round == self._schedule.rounds)

    def score(self, state: ServerState, *, is_last: bool) -> Score:
        """Return the score of a released model, of the last one on all test examples.

        Raises as `score_if_due` does, but looks at the loss alone.
        """
        rows = None if is_last else self._schedule.rows
        is_whole = rows is None
        if self._scored is None or self._scored[:2] != (state.round, is_whole):
            set_parameters(self._model, state.model)
            try:
                result = score(
                    self._model,
                    self._dataset.test,
                    loss=self._loss,
                    uncounted=self._dataset.uncounted,
                    metrics=self._metrics,
                    rows=rows,
                )
            except (Exception, SystemExit) as error:
                raise RunStoppedError(
                    f"the model could not be scored after round {state.round}: {reason(error).removesuffix('.')}."
                ) from error
            if not math.isfinite(result.loss):
                raise DivergedError(f"the test loss is {result.loss} after round {state.round}; {_REMEDY}")
            self._say_what_failed(state.round, result)
            self._scored = (state.round, is_whole, result)
            self._shown = (state.round, finite({"accuracy": result.accuracy, **result.metrics}))
        return self._scored[2]

    def _say_what_failed(self, number: int, scored: Score) -> None:
        """Name the metrics that could not be computed, each once in a run: the run itself goes on."""
        for name, why in scored.failures.items():
            if name not in self._failed_metrics:
                messages.info(f"metric {name} failed after round {number} and is recorded as null: {why}")
        self._failed_metrics.update(scored.failures)


def _check_finite(state: ServerState) -> None:
    """Raise `DivergedError` if the model, or the optimizer's state, is no longer finite."""
    if not np.isfinite(state.model).all():
        raise DivergedError(f"the model is no longer finite after round {state.round}; {_REMEDY}")
    if not state.is_finite:
        raise DivergedError(
            f"the state of the optimizer is no longer finite after round {state.round}; {_REMEDY}"
        )


def tried_metrics(settings: Settings, experiment: Experiment) -> tuple[NamedMetric, ...]:
    """Return the metrics that the settings name, each of which gave a number, or nan, for the model before training.

    Raises `SettingError` for any other: a run must not find out at its first evaluation, its budget begun. What a
    function of the whole test split needs of memory it needs here for the first time.
    """
    metrics = find_metrics(settings.metrics, classes=experiment.dataset.classes)
    if not metrics:
        return ()
    test = experiment.dataset.test
    if all(metric.path is None for metric in metrics):  # one batch is enough for the project's own
        test = Examples(test.x[:SCORED_AT_ONCE], test.y[:SCORED_AT_ONCE])
    model = deepcopy(experiment.model).to(pick_device(experiment.training.device)).eval()
    tried = score(model, test, uncounted=experiment.dataset.uncounted, metrics=metrics)
    refuse_failures(tried, metrics, "the model before training")
    return metrics


def say_what_choosing_costs(settings: Settings) -> None:
    """Print what the statement of a run does not cover whose value goes to a sweep."""
    if settings.run.optimized_metric is not None:
        messages.info(CHOOSING.format(metric=settings.run.optimized_metric))

"""Scoring of a run's models on the test examples: in which rounds, and by which metrics.

The rounds follow from the settings alone: a resumed run scores in the rounds of an undisturbed one."""

import math
from collections.abc import Iterable, Mapping
from copy import deepcopy
from typing import Any

import numpy as np

from client.data import Examples
from client.losses import find_loss
from client.metrics import find_metrics
from client.parameters import set_parameters
from client.reasons import reason
from client.scoring import SCORED_AT_ONCE, Score, refuse_failures, score
from client.training import pick_device
from experiments.run_files.directory import finite
from experiments.settings.experiment import Experiment
from experiments.settings.log import messages
from experiments.settings.schema import Settings
from fedmf.errors import DivergedError, RunStoppedError
from server.state import ServerState


def is_scored(number: int, rounds: int, evaluations: int) -> bool:
    """Return whether the model is scored after round `number`, 1-based: `evaluations` of `rounds`, the last among them.

    >>> [number for number in range(1, 10) if is_scored(number, 9, 4)]
    [3, 5, 7, 9]
    """
    scored, before = ((n * min(evaluations, rounds)) // rounds for n in (number, number - 1))
    return scored > before


_REMEDY = "training diverged: lower optimizer.learning_rate or client.learning_rate."


class Scorer:
    """Scores released models; the last score is remembered, and shown until the next one.

    Raises `SettingError` for a metric that gives neither a number nor nan for the model before training: a run must not
    find out at its first evaluation, its budget begun. What a function of the whole test split needs of memory it needs
    here for the first time.
    """

    def __init__(self, settings: Settings, experiment: Experiment) -> None:
        self._dataset = experiment.dataset
        self._model = deepcopy(experiment.model).to(pick_device(experiment.training.device)).eval()
        self._loss = find_loss(experiment.training.loss)
        self._rounds, self._evaluations = experiment.plan.participation.rounds, settings.run.evaluations
        self._metrics = find_metrics(settings.metrics, classes=self._dataset.classes)
        self.names = tuple(metric.name for metric in self._metrics)
        self._failed_metrics: set[str] = set()
        self._last: tuple[int, Score] | None = None
        # The last scored round and its accuracy and metrics; None and nothing before the first.
        self.shown: tuple[int | None, Mapping[str, Any]] = (None, {})
        if self._metrics:
            test = self._dataset.test
            if all(
                metric.path is None for metric in self._metrics
            ):  # one batch is enough for the project's own
                test = Examples(test.x[:SCORED_AT_ONCE], test.y[:SCORED_AT_ONCE])
            tried = score(self._model, test, uncounted=self._dataset.uncounted, metrics=self._metrics)
            refuse_failures(tried, self._metrics, "the model before training")

    def resume(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Show the last score in `rows`, the metrics of a run that is resumed."""
        for row in rows:
            if "accuracy" in row:
                self.shown = (row["round"], {name: row.get(name) for name in ("accuracy", *self.names)})

    def score_if_due(self, state: ServerState) -> Score | None:
        """Return the score of a released model, None after a round that is not scored.

        Raises `DivergedError` where the model, the optimizer's state or the loss is no longer finite, whether or not the
        round is scored, and `RunStoppedError` where the model cannot be scored.
        """
        if not state.is_finite:
            what = "the state of the optimizer" if np.isfinite(state.model).all() else "the model"
            raise DivergedError(f"{what} is no longer finite after round {state.round}; {_REMEDY}")
        return self.score(state) if is_scored(state.round, self._rounds, self._evaluations) else None

    def score(self, state: ServerState) -> Score:
        """Return the score of a released model on all test examples. Raises as `score_if_due`, for the loss alone."""
        if self._last is None or self._last[0] != state.round:
            set_parameters(self._model, state.model)
            try:
                result = score(
                    self._model,
                    self._dataset.test,
                    loss=self._loss,
                    uncounted=self._dataset.uncounted,
                    metrics=self._metrics,
                )
            except (Exception, SystemExit) as error:
                raise RunStoppedError(
                    f"the model could not be scored after round {state.round}: {reason(error).removesuffix('.')}."
                ) from error
            if not math.isfinite(result.loss):
                raise DivergedError(f"the test loss is {result.loss} after round {state.round}; {_REMEDY}")
            for name in result.failures.keys() - self._failed_metrics:  # each once: the run itself continues
                messages.info(
                    f"metric {name} failed after round {state.round} and is recorded as null: {result.failures[name]}"
                )
            self._failed_metrics.update(result.failures)
            self._last = (state.round, result)
            self.shown = (state.round, finite({"accuracy": result.accuracy, **result.metrics}))
        return self._last[1]

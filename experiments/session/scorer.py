"""Scores the models of a run on the test examples, in the rounds that its schedule names."""

import math
import sys
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np

from client.losses import find_loss
from client.metrics import NamedMetric
from client.parameters import set_parameters
from client.reasons import reason
from client.scoring import Score, score
from client.training import pick_device
from experiments.run_files.finite import finite
from experiments.session.schedule import Schedule, last_scored
from experiments.settings.experiment import Experiment
from fedmf.errors import DivergedError, RunStoppedError
from server.state import ServerState

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
                print(
                    f"metric {name} failed after round {number} and is recorded as null: {why}",
                    file=sys.stderr,
                )
        self._failed_metrics.update(scored.failures)


def _check_finite(state: ServerState) -> None:
    """Raise `DivergedError` if the model, or the optimizer's state, is no longer finite."""
    if not np.isfinite(state.model).all():
        raise DivergedError(f"the model is no longer finite after round {state.round}; {_REMEDY}")
    if not state.is_finite:
        raise DivergedError(
            f"the state of the optimizer is no longer finite after round {state.round}; {_REMEDY}"
        )

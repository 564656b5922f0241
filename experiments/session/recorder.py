"""Writes what a run does, round by round: scores, metrics, progress, and at the end model, statement and summary.

The rounds that are scored follow from the settings alone: a resumed run scores in the rounds of an undisturbed one."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from client.app import Observed
from client.imports import reason
from client.metrics import check_optimized, find_metrics, headline
from client.parameters import model_arrays, set_parameters
from client.scoring import Score, check_scored, find_loss, score
from client.training import pick_device
from experiments.run_files.directory import (
    MECHANISM,
    METRICS,
    MODEL,
    MODEL_INITIAL,
    PRIVACY,
    SUMMARY,
    append_metrics,
    keep_whole_metrics,
    read_metrics,
    write_json,
)
from experiments.run_files.provenance import ACCEPT_COPY, WITHOUT_UNREADY, Provenance
from experiments.session.learning import learning
from experiments.session.monitoring import Log
from experiments.session.progress import View, standing
from experiments.settings.experiment import Experiment, shape_of
from experiments.settings.groups import lowest_rms_error
from experiments.settings.log import messages
from experiments.settings.schema import RunSettings, Settings
from experiments.settings.values import keyed
from fedmf.accounting import Ledger
from fedmf.checks import rounded_up
from fedmf.errors import DivergedError, RunDirectoryError, RunStoppedError
from fedmf.mechanisms import design_run
from fedmf.plan import Plan
from fedmf.statement import Conduct, write_statement
from fedmf.updates.vectors import Vector
from fedmf.updates.wire import ENVELOPE_BYTES
from server.files import packed, write_atomically
from server.state import Release, ServerState


def mechanism_file(plan: Plan, misgivings: Sequence[str]) -> dict[str, Any]:
    """Return the entries of mechanism.json; `misgivings` are sentences about what was asked for."""
    factorization = plan.factorization
    # What one independent round leaves on a coordinate of the mean update, z Delta_2/(gamma n) for the radius accounted, in
    # units of the update. Times `per_round_error`, which counts the sensitivity, it is the noise in the accumulated updates.
    radius = plan.bounds.radius
    noise = plan.mean_noise_std * radius if plan.noise_multiplier and radius is not None else None
    return {
        "family": factorization.family,
        "epochs": len(factorization.epochs),
        "rounds_per_epoch": factorization.rounds,
        "per_round_error": factorization.per_round_error.tolist(),
        "independent_per_round_error": design_run(
            "independent", factorization.workloads
        ).per_round_error.tolist(),
        "rms_error": factorization.rms_error,
        "lowest_rms_error": lowest_rms_error(factorization),
        "update_noise_std": noise,
        "misgivings": list(misgivings),
    }


def is_scored(number: int, rounds: int, evaluations: int) -> bool:
    """Return whether the model is scored after round `number`, 1-based: `evaluations` of `rounds`, the last among them.

    >>> [number for number in range(1, 10) if is_scored(number, 9, 4)]
    [3, 5, 7, 9]
    """
    scored, before = ((n * min(evaluations, rounds)) // rounds for n in (number, number - 1))
    return scored > before


STOPPED = (
    "The choice to stop after round {number}, which a callback made from released scores: what is stated is the epsilon of the epochs "
    "that began; that of all planned epochs, {epsilon}, covers the choice too."
)
QUANTILES = {"norm_p10": 0.1, "norm_p50": 0.5, "norm_p90": 0.9}
LIVE = ("clipped_share", "norm_p50", "client_loss", "noise_over_sum")  # diagnostics that the live view has

_REMEDY = "training diverged: lower optimizer.learning_rate or client.learning_rate."


class Scorer:
    """Scores released models.

    Raises `SettingError` for a metric that gives neither a number nor nan for the model before training: a run must not
    find out at its first evaluation, its budget begun. What a function of the whole test split needs of memory it needs
    here for the first time.
    """

    def __init__(self, settings: Settings, experiment: Experiment) -> None:
        self._dataset = experiment.dataset
        self._model = deepcopy(experiment.model).to(pick_device(experiment.training.device)).eval()
        self._loss = find_loss(experiment.training.loss, self._dataset.task)
        self._rounds, self._evaluations = experiment.plan.participation.rounds, settings.run.evaluations
        self._metrics = find_metrics(settings.metrics, classes=self._dataset.classes, task=self._dataset.task)
        self.headline = headline(self._metrics)
        self.names = tuple(dict.fromkeys((self.headline, *self._metrics)))
        with keyed("run", RunSettings):
            check_optimized(settings.run.optimized_metric, self.names, self.headline)
        self._failed_metrics: set[str] = set()
        self._last: tuple[int, Score] | None = None
        if self._metrics:
            check_scored(self._scored("before training"), "the model before training")

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
            result = self._scored(f"after round {state.round}")
            if not math.isfinite(result.loss):
                raise DivergedError(f"the test loss is {result.loss} after round {state.round}; {_REMEDY}")
            for name in result.failures.keys() - self._failed_metrics:  # each once: the run itself continues
                messages.info(
                    f"metric {name} failed after round {state.round} and is recorded as null: {result.failures[name]}"
                )
            self._failed_metrics.update(result.failures)
            self._last = (state.round, result)
        return self._last[1]

    def _scored(self, when: str) -> Score:
        try:
            return score(
                self._model,
                self._dataset.test,
                loss=self._loss,
                uncounted=self._dataset.uncounted,
                metrics=self._metrics,
            )
        except (Exception, SystemExit) as error:
            raise RunStoppedError(
                f"the model could not be scored {when}: {reason(error).removesuffix('.')}."
            ) from error


class Diagnostics:
    """Figures of the round in progress that no noise covers, for run.unprotected_metrics, with which the statement names them.

    `turns` are those of its clients. A run without that setting makes none of this and computes nothing of it.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.turns: list[Observed] = []
        self._bytes: dict[str, int] = {}  # of each client's values
        self._sum: npt.NDArray[np.float64] | None = None

    def on_reply(self, client: str, data: object) -> None:
        """Measure what a client sent: the size reveals how much its mask kept."""
        self._bytes[client] = len(data) if isinstance(data, bytes) else 0

    def on_sum(self, rotated_sum: npt.NDArray[np.float64]) -> None:
        """Keep the sum of a round before its noise, (D,), until the release."""
        self._sum = self._plan.rotation.unrotate(rotated_sum.copy(), donate=True)

    def take(self, release: Release) -> dict[str, float]:
        """Return the figures of the round that was released, and forget them; none of a round of an earlier session."""
        found: dict[str, float] = {}
        if self._bytes:
            found["measured_value_bytes"] = sum(self._bytes.values())
        norms = np.array([turn.norm for turn in self.turns if math.isfinite(turn.norm)])
        if norms.size:
            if (bound := self._plan.bounds.l2_norm) is not None:
                found["clipped_share"] = float(np.mean(norms > bound))
            found |= {name: float(np.quantile(norms, share)) for name, share in QUANTILES.items()}
            found["client_loss"] = float(np.mean([turn.loss for turn in self.turns]))
        if self._sum is not None and self._plan.sigma and (length := float(np.linalg.norm(self._sum))):
            found["noise_over_sum"] = float(np.linalg.norm(release.noisy_sum - self._sum)) / length
        self.turns, self._bytes, self._sum = [], {}, None
        return found


class Recorder:
    """Writes each released round, and what a run has at its beginning and end."""

    def __init__(
        self,
        settings: Settings,
        experiment: Experiment,
        directory: Path,
        scorer: Scorer,
        provenance: Provenance,
        view: View,
        logs: Sequence[Log],
        most_epochs: Callable[[int], int],
    ) -> None:
        self._settings, self._experiment, self._directory = settings, experiment, directory
        self._scorer, self._provenance, self._view, self._logs = scorer, provenance, view, logs
        self._most_epochs = most_epochs  # in how many of so many epochs the most frequent client was heard
        self._planned_epsilon = experiment.plan.spent().epsilon
        self._spent = (Ledger(), 0.0)  # the ledger of the last row, and its epsilon
        self._last_scored: Mapping[str, Any] = {}  # row of the metrics
        self._last_release = time.perf_counter()
        self._is_stated = False  # by this session, with its code
        self.diagnostics = Diagnostics(experiment.plan) if settings.run.unprotected_metrics else None
        self._unprotected: dict[str, Any] = {}  # what the last row has of them

    def check_no_later_rounds(self, released: int) -> int:
        """Return the last round in the metrics; raise `RunDirectoryError` if it is later than the last released one."""
        recorded = keep_whole_metrics(self._directory / METRICS)
        if recorded > released:
            raise RunDirectoryError(
                f"{self._directory} shows round {recorded}, but its record ends at round {released}: "
                "a released round must not be run again. Restore the checkpoint folder."
            )
        return recorded

    def begin(self, state: ServerState, replayed: Sequence[tuple[ServerState, Release]] = ()) -> None:
        """Write what is known before the first round; in a resumed run, the rows that the crash left out.

        Raises `DivergedError` where the last released model or its loss is not finite: no round may follow.
        """
        self._provenance.begin(state.round + 1)
        recorded = self.check_no_later_rounds(state.round)
        self._write_model(MODEL_INITIAL, self._experiment.initial)
        write_json(
            self._directory / MECHANISM, mechanism_file(self._experiment.plan, self._experiment.misgivings)
        )
        self._state = state
        for then, release in replayed:
            if release.round > recorded:
                self._append(then, release, None)
        for row in read_metrics(self._directory / METRICS, self._scorer.names):
            self._last_scored = row if self._scorer.headline in row else self._last_scored
        self._view.begin(state.round)
        if state.round:
            self._scorer.score_if_due(state)  # a crash may have come before what it found ended the run

    def on_release(self, state: ServerState, release: Release) -> dict[str, Any]:
        """Record one released round and return what of its row the statement covers.

        Raises `DivergedError` when the model or its loss is no longer finite.
        """
        now = time.perf_counter()
        row = self._append(state, release, now - self._last_release)
        self._last_release = now
        self._state = state
        text = standing(
            self._experiment.plan,
            state.round,
            (self._epsilon(state), self._planned_epsilon),
            self._last_scored.get("round"),
            {name: self._last_scored.get(name) for name in self._scorer.names}
            | {name: self._unprotected.get(name) for name in LIVE if name in self._unprotected},
            reproducible=self._settings.run.reproducible,
        )
        self._view.show(state.round, text)
        return row

    def _append(self, state: ServerState, release: Release, seconds: float | None) -> dict[str, Any]:
        """Append a released round to the metrics and return its row without unprotected metrics; `seconds` None where a crash took the clock with it."""
        plan = self._experiment.plan
        epoch, step = divmod(release.round - 1, plan.participation.rounds_per_epoch)
        # An epoch that has begun counts whole: a run that ends in it must leave its statement, with the code of each
        # session that ran a part of it.
        if step == 0 or not self._is_stated:
            write_json(self._directory / PRIVACY, self._statement(state))
            self._is_stated = True
        scored, ended = None, None
        try:
            scored = self._scorer.score_if_due(state)
        except (DivergedError, RunStoppedError) as error:  # the round was released: its row comes first
            ended = error
        # The model goes down, and from the second epoch on what clients scale by, if they do.
        vectors = 2 if epoch and self._experiment.optimizer.precondition else 1
        row = {
            "round": release.round,
            "epoch": epoch + 1,
            "step": step,
            "cohort_size": plan.participation.cohort_size,
            "replies": len(release.answered),
            "epsilon": self._epsilon(state),
            "uplink_bytes": len(release.answered) * (plan.value_bytes + ENVELOPE_BYTES),
            "downlink_bytes": plan.participation.cohort_size
            * (4 * plan.dimension * vectors + ENVELOPE_BYTES),
            "seconds": seconds,
        }
        if plan.clipping is not None and plan.bounds.l2_norm is not None:
            row["next_clip_norm"] = plan.bounds.l2_norm / (
                1.0 if state.scale is None else float(state.scale[0])
            )
        if scored is not None:
            row |= {**scored.values, "test_examples": len(self._experiment.dataset.test)}
            self._last_scored = row
        if self.diagnostics is not None:
            self._unprotected = self.diagnostics.take(release)
        recorded = row | self._unprotected
        append_metrics(self._directory / METRICS, recorded)
        for log in self._logs:
            log(recorded | {"noise_error": float(plan.factorization.per_round_error[release.round - 1])})
        if ended is not None:
            raise ended
        return row

    def finish(self, is_over: bool = True) -> dict[str, Any]:
        """Write model, statement and, of a run that `is_over`, the summary; return the summary.

        The session's clock stops once the model is scored. A run that is not over was stopped for what it released: the planned
        epochs bound what such a choice costs, as no odometer is claimed.
        """
        scored = self._scorer.score(self._state)
        summary = self._summary(self._state, scored, self._provenance.end())
        self._write_model(MODEL, self._state.model)
        choice = STOPPED.format(number=self._state.round, epsilon=rounded_up(self._planned_epsilon))
        write_json(self._directory / PRIVACY, self._statement(self._state, () if is_over else (choice,)))
        if is_over:
            summary |= learning(self._settings, self._experiment, scored)
            write_json(self._directory / SUMMARY, summary)
        return summary

    def _write_model(self, name: str, vector: Vector) -> None:
        """Write a whole model by name of parameter or buffer: `vector` as what trains, and what does not as it was before the first round."""
        write_atomically(self._directory / name, packed(**model_arrays(self._experiment.model, vector)))

    def _epsilon(self, state: ServerState) -> float:
        """Return what the epochs in the state's own ledger have spent: what began, not what was planned."""
        if self._spent[0] != state.ledger:
            self._spent = (state.ledger, self._experiment.plan.spent_on(state.ledger).epsilon)
        return self._spent[1]

    def _summary(self, state: ServerState, scored: Score, wall_seconds: float) -> dict[str, Any]:
        plan = self._experiment.plan
        return {
            **scored.values,
            "test_examples": len(self._experiment.dataset.test),
            "epsilon": self._epsilon(state),
            "delta": plan.privacy.delta,
            "adjacency": plan.privacy.adjacency,
            "unit_of_privacy": self._experiment.dataset.unit,
            "statement": PRIVACY,
            "rounds": state.round,
            "parameters": plan.dimension,
            "shape": shape_of(self._experiment.dataset),
            "clients": plan.participation.clients,
            "cohort_size": plan.participation.cohort_size,
            "rounds_per_epoch": plan.participation.rounds_per_epoch,
            "epochs": len(state.ledger.entries),
            "keep_probability": plan.compression.keep_probability,
            "linf_over_l2": plan.linf_over_l2,
            "noise_multiplier": plan.noise_multiplier,
            "sigma": plan.sigma,
            # The bytes of a float32 update that is not compressed, over those that are sent.
            "compression_ratio": 4 * plan.dimension / plan.value_bytes,
            "uplink_bytes_per_client": plan.value_bytes,
            "envelope_bytes_per_client": ENVELOPE_BYTES,
            "wall_seconds": wall_seconds,
        }

    def _statement(self, state: ServerState, uncovered: tuple[str, ...] = ()) -> dict[str, Any]:
        """Return privacy.json: the statement, the same in words, and the code of every session so far."""
        dataset = self._experiment.dataset
        conduct = Conduct(
            reproducible=self._settings.run.reproducible,
            participation_observed=self._most_epochs(len(state.ledger.entries)),
            unprotected_metrics=self._settings.run.unprotected_metrics,
            optimized_metric=self._settings.run.optimized_metric,
            accepts_copy=self._provenance.allowed(ACCEPT_COPY),
            leaves_out_unready=self._provenance.allowed(WITHOUT_UNREADY),
            unit_of_privacy=dataset.unit,
            uncovered=(*dataset.uncovered, *uncovered),
        )
        statement = write_statement(self._experiment.plan, state.ledger, conduct)
        return {
            **statement.to_dict(),
            "paragraph": statement.paragraph(),
            "provenance": self._provenance.code(),
        }

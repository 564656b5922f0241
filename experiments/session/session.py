"""One run from its first state to its report, whatever engine calls the clients.

Begin or resume, release by release onto disk, finish.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from client.data.clients import check_clients_repeat, digest_clients
from client.imports import own_code as calling_own
from client.parameters import digest_arrays
from client.rehearsal import rehearse
from client.settings import TrainingSettings
from client.training import pick_device
from experiments.engines.engine import engine_worker, shared_tasks
from experiments.engines.grid import Failure, Note, run_locally
from experiments.run_files.directory import CHECKPOINT, CONFIG, METRICS, make_directory, read_metrics
from experiments.run_files.provenance import ACCEPT_COPY, WITHOUT_UNREADY, Provenance, own_code
from experiments.run_files.reader import fixed
from experiments.session import resume
from experiments.session.monitoring import Watch, import_logger, open_logger, open_watch
from experiments.session.progress import FailureCount, View
from experiments.session.recorder import Recorder, Scorer
from experiments.settings.data import print_notes
from experiments.settings.experiment import Experiment, build, run_secret
from experiments.settings.groups import DeploymentSettings, LocalSettings
from experiments.settings.log import install, messages, name_run
from experiments.settings.recorded import check_importable, to_yaml
from experiments.settings.schema import Settings
from experiments.settings.values import advising_to_resume, keyed
from fedmf.accounting import Ledger
from fedmf.accounting.caveats import CHOOSING
from fedmf.errors import DivergedError, RunDirectoryError, RunStoppedError, SettingError
from fedmf.plan import Plan
from fedmf.randomness import SecretKey
from server.checkpoint import COUNT_NOISE, LOCK, NOISE_MULTIPLIER, Checkpoint
from server.cohort import Population, SimulatedPopulation, UnreadyNodes
from server.copies import Clients
from server.exchange import tasks_per_message
from server.files import locked, write_atomically
from server.state import Release, ServerState, first_state
from server.strategy import FedMF, make_server_app


@contextlib.contextmanager
def _by_key() -> Iterator[None]:
    """Let errors name the keys of the settings, and a stop say how the run is resumed. Also a decorator."""
    with (
        advising_to_resume(),
        keyed("run", ("accept_copy", "allow_version_change")),
        keyed("privacy", ("accountant", "max_epsilon")),
        keyed("population", ("min_available", "min_replies", "unready_nodes")),
    ):
        yield


# Is given the row of metrics.jsonl of a released round, and returns True where the run should stop.
Callback = Callable[[dict[str, Any]], object]


class StoppedByCallback(RunStoppedError):
    """What a callback asked for. `summary` is that of the rounds so far: the run is no finished one, and can be resumed."""

    summary: dict[str, Any]


@contextlib.contextmanager
def stopping_on_disk_errors() -> Iterator[None]:
    """Turn an error of the file system into a stop that can be resumed."""
    try:
        yield
    except OSError as error:
        raise RunStoppedError(
            f"{error.filename or 'a file of the run'} could not be written: {error.strerror}. What was released is "
            "safe; make room, then resume with run.resume=true."
        ) from error


class Session:
    """One call that begins a run, resumes it, or extends it with the last part of the experiment's plan.

    What is released is on disk (`Checkpoint.commit`) before anything shows it (`_on_release`). So a session can end at any instant, and
    the next one continues after the last released round.

    `identify` returns a digest under a key of who the clients are, in order. `job` names the job of a sweep. `bundle` is the
    digest of the bundle that Flower runs. `failures` counts the clients that could not train, where the engine tells of them.
    `callbacks` see each row that this session releases, once it is on disk.
    """

    @_by_key()
    def __init__(
        self,
        settings: Settings,
        directory: Path,
        experiment: Experiment,
        *,
        identify: Callable[[SecretKey], str] = lambda key: "",
        job: str = "",
        bundle: str | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        """Check, before anything is written, the budget, the logger, the model and the metrics."""
        self._settings, self._directory, self._experiment = settings, directory, experiment
        self.failures, self._callbacks = FailureCount(), callbacks
        self._view = View(experiment.plan.participation.rounds, job)
        device = pick_device(experiment.training.device)
        accelerator = torch.cuda.get_device_name(device) if device.type == "cuda" else None
        allows = [
            *[ACCEPT_COPY] * settings.run.accept_copy,
            *[WITHOUT_UNREADY] * (settings.population.unready_nodes == UnreadyNodes.without),
        ]
        self._provenance = Provenance(directory, allows, accelerator, bundle)
        if settings.run.extend is None:  # an extension is compared with its own ledger
            experiment.plan.start_epoch(Ledger())
        import_logger(settings.logger)
        with keyed("client", TrainingSettings):  # what would fail at every client is an error; on public data
            warning = rehearse(
                experiment.dataset,
                experiment.model,
                experiment.make_trainer,
                experiment.initial,
                batch_size=experiment.training.batch_size,
            )
        if warning is not None:
            messages.warning(warning)
        self._scorer = Scorer(settings, experiment)
        if (chosen := settings.run.optimized_metric) is not None and not job:  # a sweep says it once
            messages.info(CHOOSING.format(metric=chosen))
        self._checkpoint = Checkpoint(
            directory / CHECKPOINT,
            _configuration(settings, experiment),
            experiment.plan.factorization.epochs,
            settings.run.checkpoint_every,
            Clients(experiment.plan.participation.clients, identify),
            settings.run.accept_copy,
            _calculated(experiment.plan),
            own_code(),
            settings.run.allow_version_change,
        )

    @_by_key()
    def run(
        self,
        population: Callable[[Path, Watch], Population],
        engine: Callable[[FedMF], object],
        tasks_per_message: int = 1,
    ) -> dict[str, Any]:
        """Run the rounds that are left, and return the summary.

        `population` is given the folder of checkpoints and who is told of nodes; `engine` is given the strategy and calls its `start`.
        """
        settings, path = self._settings, self._directory
        with (
            open_watch(settings, path.name) as self._watch,
            # `fedmf runs` has the lock while it looks whether a run has it.
            locked(stopping_on_disk_errors()(make_directory)(path) / LOCK, 0.5),
            contextlib.closing(self._checkpoint),
            open_logger(settings.logger, path) as log,
        ):
            with stopping_on_disk_errors():
                self._take_up_plan()
                self._recorder = Recorder(
                    settings,
                    self._experiment,
                    self._directory,
                    self._scorer,
                    self._provenance,
                    self._view,
                    (log, self._watch.on_row),
                    self._checkpoint.record.most_epochs,
                )
                state = self._restore() or self._begin()
            rows, plan = read_metrics(path / METRICS), self._experiment.plan
            self._watch.begin(settings, self._experiment, state, rows[-1] if rows else {})
            for warning in self._experiment.misgivings if state.round == 0 else ():
                messages.warning(warning)
            diagnostics = self._recorder.diagnostics
            strategy = FedMF(
                plan,
                self._experiment.optimizer,
                population(path / CHECKPOINT, self._watch),
                state,
                replies=self._experiment.replies,
                commit=stopping_on_disk_errors()(self._checkpoint.commit),
                on_release=[self._on_release],
                on_heard=self._on_heard,
                on_reply=diagnostics.on_reply if diagnostics else None,
                on_sum=diagnostics.on_sum if diagnostics else None,
                tasks_per_message=tasks_per_message,
                fixed_digest=self._experiment.fixed_digest,
            )
            with stopping_on_disk_errors():
                self._provenance.write()
            try:
                with self._view.display:
                    engine(strategy)
                if strategy.state.secrets is not None:
                    raise RunStoppedError(
                        f"the engine ended after round {strategy.state.round} of {plan.participation.rounds}; "
                        "resume with run.resume=true."
                    )
                with stopping_on_disk_errors():
                    self._checkpoint.forget_secrets()
                    summary = self._recorder.finish()
                    resume.write_page(path)
                return summary
            except BaseException as error:
                if isinstance(error, DivergedError):
                    self._checkpoint.forget_secrets()  # no round can follow
                with contextlib.suppress(OSError):  # what stopped the session counts, not a full disk besides
                    self._provenance.write()
                raise

    def _take_up_plan(self) -> None:
        """Continue with the noise multiplier and the tables of earlier epochs; extend a finished run where that is asked for."""
        checkpoint = self._checkpoint
        if checkpoint.record.released():
            plan = checkpoint.with_kept_noise(self._experiment.plan)
            self._experiment = replace(self._experiment, plan=plan)
            checkpoint.calculated = _calculated(plan)
        if self._settings.run.extend is not None:
            resume.begin(self._settings, self._directory, self._experiment, checkpoint)
        if checkpoint.record.released():
            plan = checkpoint.with_kept_tables(self._experiment.plan)
            self._experiment = replace(self._experiment, plan=plan)
            checkpoint.mechanisms = plan.factorization.epochs

    def _begin(self) -> ServerState:
        if self._settings.run.resume:
            messages.info(f"nothing to resume in {self._directory}: a new run begins")
        self._recorder.check_no_later_rounds(0)
        write_atomically(self._directory / CONFIG, to_yaml(self._settings).encode())
        experiment = self._experiment
        state = first_state(experiment.plan, experiment.initial, run_secret(self._settings))
        self._checkpoint.begin(state)
        self._recorder.begin(state)
        return state

    def _restore(self) -> ServerState | None:
        """Return the state after the last released round; None where a new run begins."""
        checkpoint, experiment = self._checkpoint, self._experiment
        checkpoint.check_not_a_copy()
        if not checkpoint.record.released() and checkpoint.record.saved() is None:
            return None
        try:
            state, replayed = checkpoint.restore(experiment.plan, experiment.optimizer)
        except RunDirectoryError:
            if checkpoint.record.released():
                raise
            return None  # it released nothing, and may be begun again under another key
        resume.complete(self._settings, self._directory)
        try:
            self._recorder.begin(state, replayed)
        except DivergedError:
            checkpoint.forget_secrets()  # the crash came before this was found; no round can follow
            raise
        checkpoint.rebase(state)
        return state

    def on_note(self, note: Note) -> None:
        """Take note of a client that could not train, or of a turn in a run with unprotected metrics."""
        if isinstance(note, Failure):
            self.failures.add(note)
        elif (diagnostics := self._recorder.diagnostics) is not None:
            diagnostics.turns.append(note)

    def _on_heard(self, number: int, asked: Sequence[str], answered: Sequence[str]) -> None:
        self._watch.on_heard(answered)
        self.failures.on_heard(number, asked)

    @stopping_on_disk_errors()
    def _on_release(self, state: ServerState, release: Release) -> None:
        row = self._recorder.on_release(state, release)
        self._checkpoint.settle(self._experiment.plan, state)
        self._provenance.on_release()
        self._call_back(row)

    def _call_back(self, row: Mapping[str, Any]) -> None:
        """Give a released row to the callbacks. Raises `StoppedByCallback` where one of them asks for it and rounds are left.

        They see what anyone may see: what they decide costs no privacy, and the epochs that have begun are spent.
        """
        number, stops = row["round"], False
        for callback in self._callbacks:
            with calling_own(f"a callback failed after round {number}", RunStoppedError):
                answer = callback(dict(row))
            stops |= isinstance(answer, bool | np.bool_) and bool(answer)
        if stops and number < self._experiment.plan.participation.rounds:
            stop = StoppedByCallback(f"a callback stopped the run after round {number}.")
            stop.summary = self._recorder.finish(is_over=False)
            raise stop


def _configuration(settings: Settings, experiment: Experiment) -> dict[str, Any]:
    """Return what may not change when the run is resumed: its settings, and what code or files make of them.

    The code behind an import path can change between two calls. Rows of one matrix before and of another after the
    change would have a larger sensitivity than either. Frozen weights are in no checkpoint: what trains on top of them
    would continue with others.
    """
    configuration = {**fixed(settings), **experiment.own_steps}
    if ":" in settings.mechanism.name:
        configuration["the matrix of mechanism.name"] = experiment.designed
    if experiment.fixed_digest:
        configuration["the digest of what does not train"] = experiment.fixed_digest
    if settings.model.start is not None:
        digest = digest_arrays({"initial": experiment.initial})
        configuration["the digest of the weights that model.start gave"] = digest
    configuration["the digest of the test examples"] = digest_clients(
        [experiment.dataset.test], SecretKey.reproducible(0)
    )
    return configuration


def _calculated(plan: Plan) -> dict[str, float | None]:
    """Return what code makes of the settings and a resume may not change: the noise and the bounds of the statement."""
    return {
        NOISE_MULTIPLIER: plan.noise_multiplier,
        "the keep probability": plan.compression.keep_probability,
        "the L2 radius": plan.bounds.radius,
        "the L-infinity norm": plan.bounds.linf_norm,
        **({} if plan.clipping is None else {COUNT_NOISE: plan.count_noise}),
    }


def simulate(settings: Settings, path: Path, job: str = "", callbacks: Sequence[Callback] = ()) -> bool:
    """Run what `settings` describe into the directory `path`, or resume the run in it.

    `job` names the job of a sweep; `callbacks` see each released row. Returns False, with nothing changed, where the run is
    asked for again with run.resume and has finished before. Raises a `FedmfError` for what cannot run as asked; nothing is written then.
    """
    if settings.run.log == "json":
        install()
    name_run(path.name)
    if (resumed := resume.taken_up(resume.recorded_parts(settings, path), path)) is None:
        return False
    settings = resumed
    if isinstance(settings.engine, DeploymentSettings):
        raise SettingError(
            "engine is deployment, which `flwr run` starts (docs/deployment.md); choose local or ray."
        )
    if not isinstance(settings.engine, LocalSettings) or settings.engine.workers > 1:
        check_importable(settings)
    if settings.run.resume and settings.run.directory is None and not (path / CONFIG).exists():
        raise SettingError("run.resume is true, but run.directory is null; name the run to resume.")
    experiment = build(settings)
    print_notes(experiment.dataset)
    check_clients_repeat(experiment.dataset.clients)
    session = Session(
        settings,
        path,
        experiment,
        identify=partial(digest_clients, experiment.dataset.clients),
        job=job,
        callbacks=callbacks,
    )
    try:
        with engine_worker(settings, experiment) as worker:
            session.run(
                lambda folder, watch: SimulatedPopulation(),
                lambda strategy: run_locally(
                    make_server_app(lambda context: strategy), worker, session.on_note
                ),
                shared_tasks(settings, tasks_per_message(experiment.plan)),
            )
    finally:
        session.failures.log_total()
    return True

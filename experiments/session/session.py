"""One run from its first state to its report, whatever engine calls the clients.

Begin or resume, release by release onto disk, finish.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from client.losses import find_loss
from client.parameters import digest_arrays
from client.rehearsal import rehearse
from client.settings import TrainingSettings
from client.training import pick_device
from experiments.run_files.directory import CHECKPOINT, CONFIG, REPORT, RunDirectory
from experiments.run_files.provenance import ACCEPT_COPY, WITHOUT_UNREADY, Clock, Provenance, own_code
from experiments.run_files.reader import is_finished
from experiments.run_files.same_settings import fixed, refuse_other_settings
from experiments.session import resume
from experiments.session.failure_count import FailureCount
from experiments.session.logger import import_logger, open_logger, to_both
from experiments.session.monitoring import Watch, open_watch
from experiments.session.progress import View
from experiments.session.recorder import Recorder
from experiments.session.resume import has_released, refuse_lost_config
from experiments.session.scoring import tried_metrics
from experiments.settings.experiment import Experiment, run_secret
from experiments.settings.keys import advising_to_resume, keyed
from experiments.settings.log import messages
from experiments.settings.recorded import to_yaml
from experiments.settings.schema import Settings
from fedmf.accounting import Ledger
from fedmf.accounting.caveats import CHOOSING
from fedmf.errors import DivergedError, RunDirectoryError, RunStoppedError
from fedmf.plan import Plan
from fedmf.randomness import SecretKey
from server import tables
from server.checkpoint import LOCK, Checkpoint
from server.cohort import Population, UnreadyNodes
from server.files import locked
from server.origin import Clients, no_digest
from server.state import Release, ServerState, first_state
from server.strategy import FedMF, ignore_reply


def has_finished(settings: Settings, directory: RunDirectory) -> bool:
    """Say whether `directory` holds this run, finished, and is asked for again with run.resume.

    Raises `RunDirectoryError` for a directory that holds a run which is not to be resumed, one of other settings,
    or one that released rounds and has lost its checkpoint.
    """
    if not settings.resumes:
        directory.refuse_if_used()
        return False
    refuse_lost_config(directory.path)
    if not is_finished(directory.path):
        directory.refuse_if_checkpoint_is_lost()
        if has_released(directory.path):
            refuse_other_settings(directory.path, settings)
        return False
    refuse_other_settings(directory.path, settings)
    if not (directory.path / REPORT).exists():  # a crash came between summary and report
        _write_report(directory.path)
    messages.info(f"finished: {directory.path} holds this run; nothing was changed")
    return True


@keyed("population", ("min_available", "min_replies", "unready_nodes"))
@keyed("privacy", ("accountant", "max_epsilon"))
@keyed("run", ("accept_copy", "allow_version_change"))
@advising_to_resume()
def run_session(
    settings: Settings,
    directory: RunDirectory,
    experiment: Experiment,
    population: Callable[[Path], Population],
    engine: Callable[[FedMF], None],
    *,
    identify: Callable[[SecretKey], str] = no_digest,
    failures: FailureCount | None = None,
    view: View | None = None,
    tasks_per_message: int = 1,
    bundle: str | None = None,
) -> dict[str, Any]:
    """Run `experiment` into `directory`, or go on with the run in it, and return its summary.

    With run.extend the run in it has finished, and goes on with the last part of the experiment's plan.

    `population` is given the folder of checkpoints; `engine` is given the strategy and calls its `start`. `identify`
    returns a digest under a key of who the clients are, in order. `failures` counts the clients that `engine` tells it of;
    None where this machine cannot know. `view` shows how the run goes. `bundle` is the digest of the bundle that Flower runs.
    """
    clock = Clock()
    # A budget below one epoch, a logger that is not installed and a model that cannot be trained are refused before
    # anything is written.
    if settings.run.extend is None:  # an extension is held against its own ledger
        experiment.plan.start_epoch(Ledger())
    import_logger(settings.logger)
    _rehearse(experiment)
    metrics = tried_metrics(settings, experiment)
    if (chosen := settings.run.optimized_metric) is not None:
        messages.info(CHOOSING.format(metric=chosen))
    with (
        open_watch(settings, experiment, directory.path.name) as watch,
        locked(directory.create() / LOCK),
        open_logger(settings.logger, directory.path) as log,
    ):
        folder = directory.path / CHECKPOINT
        checkpoint = Checkpoint(
            folder,
            _configuration(settings, experiment),
            experiment.plan.factorization.epochs,
            settings.run.checkpoint_every,
            Clients(experiment.plan.participation.clients, identify),
            settings.run.accept_copy,
            _calculated(experiment.plan),
            own_code(),
            settings.run.allow_version_change,
        )
        if settings.run.extend is not None:
            with stopping_on_disk_errors():
                resume.begin(settings, directory, experiment, checkpoint)
        if checkpoint.has_released():
            plan = tables.going_on(folder, experiment.plan, checkpoint.began_with())
            experiment = replace(experiment, plan=plan)
            checkpoint = replace(checkpoint, mechanisms=experiment.plan.factorization.epochs)
        recorder = Recorder(experiment, directory, settings.run, to_both(log, watch.on_row), metrics, view)
        with stopping_on_disk_errors():
            device = pick_device(experiment.training.device)
            accelerator = torch.cuda.get_device_name(device) if device.type == "cuda" else None
            state, provenance = _begin_or_restore(
                settings,
                experiment,
                directory,
                checkpoint,
                recorder,
                lambda first_round: Provenance(
                    directory, clock, accelerator, first_round, bundle, _permissions(settings)
                ),
            )
        rows = directory.read_metrics()
        watch.begin(experiment.plan, state, rows[-1] if rows else None)
        if state.round == 0:
            _say_misgivings(experiment)
        strategy = FedMF(
            experiment.plan,
            experiment.optimizer,
            watch.over(population(folder)),
            state,
            replies=experiment.replies,
            commit=partial(_commit, checkpoint),
            on_release=[partial(_on_release, experiment.plan, checkpoint, recorder, provenance)],
            on_heard=partial(_on_heard, watch, failures),
            on_reply=recorder.on_reply if settings.run.unprotected_metrics else ignore_reply,
            tasks_per_message=tasks_per_message,
            fixed_digest=experiment.fixed_digest,
        )
        with _recorded(provenance):
            _play(strategy, engine, checkpoint, recorder)
            with stopping_on_disk_errors():
                checkpoint.forget_secrets()
                summary = recorder.finish()
        with stopping_on_disk_errors():
            _write_report(directory.path)
    return summary


def _write_report(directory: Path) -> None:
    """Write the page of the run in `directory`."""
    from experiments.pages.run_page import (
        write_report,
    )  # matplotlib, of which a run has no need before its end

    write_report(directory)


@keyed("client", TrainingSettings)
def _rehearse(experiment: Experiment) -> None:
    """Refuse what would fail at every client, and say what would at some; what is rehearsed on is public."""
    said = rehearse(
        experiment.dataset,
        experiment.model,
        experiment.make_trainer,
        experiment.initial,
        loss=find_loss(experiment.training.loss),
        batch_size=experiment.training.batch_size,
        accumulate=experiment.training.accumulate,
    )
    if said is not None:
        messages.warning(said)


def _say_misgivings(experiment: Experiment) -> None:
    """Say what speaks against a run while nothing has been asked of a client and no epoch has begun."""
    for sentence in experiment.misgivings:
        messages.warning(sentence)


def _play(
    strategy: FedMF, engine: Callable[[FedMF], None], checkpoint: Checkpoint, recorder: Recorder
) -> None:
    """Let the engine play the rounds that are left. Raises `RunStoppedError` if it ends before the last."""
    try:
        with recorder:
            engine(strategy)
    except DivergedError:
        checkpoint.forget_secrets()  # no round can follow
        raise
    if strategy.state.secrets is not None:
        raise RunStoppedError(
            f"the engine ended after round {strategy.state.round} of {strategy.plan.participation.rounds}; "
            "go on with run.resume=true."
        )


def _permissions(settings: Settings) -> list[str]:
    """Return what this session may do that its statement must name."""
    return [
        *([ACCEPT_COPY] if settings.run.accept_copy else []),
        *([WITHOUT_UNREADY] if settings.population.unready_nodes == UnreadyNodes.without else []),
    ]


def _begin_or_restore(
    settings: Settings,
    experiment: Experiment,
    directory: RunDirectory,
    checkpoint: Checkpoint,
    recorder: Recorder,
    played_from: Callable[[int], Provenance],
) -> tuple[ServerState, Provenance]:
    """Return the state to go on from, that of the last released round or before the first, and this session's record.

    `played_from` makes the record, given the first round of the session.
    """
    checkpoint.refuse_copy()
    if checkpoint.has_released() or _can_restore(experiment, checkpoint):
        state, replayed = checkpoint.restore(experiment.plan, experiment.optimizer)
        resume.complete(settings, directory)
        provenance = played_from(state.round + 1)
        try:
            recorder.begin(state, replayed, provenance)
        except DivergedError:
            checkpoint.forget_secrets()  # the crash came before this was found; no round can follow
            raise
        checkpoint.rebase(state)
        return state, provenance
    if settings.run.resume:
        messages.info(f"nothing to resume in {directory.path}: a new run begins")
    recorder.refuse_rounds_shown_after(0)
    directory.write_text(CONFIG, to_yaml(settings))
    state = first_state(experiment.plan, experiment.initial, run_secret(settings))
    checkpoint.begin(state)
    provenance = played_from(1)
    recorder.begin(state, [], provenance)
    return state, provenance


def _can_restore(experiment: Experiment, checkpoint: Checkpoint) -> bool:
    """Say whether a run that released nothing can go on with its key; if not, it may begin anew under another."""
    try:
        return checkpoint.has_begun() and bool(checkpoint.restore(experiment.plan, experiment.optimizer))
    except RunDirectoryError:
        return False


def _configuration(settings: Settings, experiment: Experiment) -> dict[str, Any]:
    """Return what may not change when the run is resumed: its settings, and what code or files make of them.

    The code behind an import path can change between two calls. Rows of one matrix before and of another after the
    change would have a larger sensitivity than either. Frozen weights are in no checkpoint: what trains on top of them
    would go on with others.
    """
    configuration = {**fixed(settings), **experiment.own_steps}
    if ":" in settings.mechanism.name:
        configuration["the matrix of mechanism.name"] = experiment.designed
    if experiment.fixed_digest:
        configuration["the digest of what does not train"] = experiment.fixed_digest
    if settings.model.start is not None:
        initial = {"initial": experiment.initial}
        configuration["the digest of the weights that model.start gave"] = digest_arrays(initial)
    return configuration


def _calculated(plan: Plan) -> dict[str, float | None]:
    """Return what code makes of the settings and a resume may not change: the noise and the bounds of the statement."""
    return {
        "the noise multiplier": plan.noise_multiplier,
        "the keep probability": plan.compression.keep_probability,
        "the L2 radius": plan.bounds.radius,
        "the L-infinity norm": plan.bounds.linf_norm,
    }


def _commit(checkpoint: Checkpoint, release: Release) -> None:
    """Put a release on disk."""
    with stopping_on_disk_errors():
        checkpoint.commit(release)


def _on_heard(
    watch: Watch,
    failures: FailureCount | None,
    number: int,
    asked: Sequence[str],
    answered: Sequence[str],
) -> None:
    """Count who was heard, and who failed where this machine knows."""
    watch.on_heard(answered)
    if failures is not None:
        failures.on_heard(number, asked, answered)


def _on_release(
    plan: Plan,
    checkpoint: Checkpoint,
    recorder: Recorder,
    provenance: Provenance,
    state: ServerState,
    release: Release,
) -> None:
    """Record and show a release, then settle the checkpoint."""
    with stopping_on_disk_errors():
        recorder.on_release(state, release)
        checkpoint.settle(plan, state)
        provenance.on_release(state, release)


@contextlib.contextmanager
def _recorded(provenance: Provenance) -> Iterator[None]:
    """Record the session of the block, also where it is stopped: then what stopped it counts, not a full disk besides."""
    with stopping_on_disk_errors():
        provenance.write()
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            provenance.write()
        raise
    with stopping_on_disk_errors():
        provenance.write()


@contextlib.contextmanager
def stopping_on_disk_errors() -> Iterator[None]:
    """Turn an error of the file system into a stop that can be resumed."""
    try:
        yield
    except OSError as error:
        raise RunStoppedError(
            f"{error.filename or 'a file of the run'} could not be written: {error.strerror}. What was released is "
            "safe; make room, then go on with run.resume=true."
        ) from error

"""Train a model with user-level differential privacy, all clients on this machine.

    python -m experiments.simulate [hydra overrides]        e.g. compression.keep_probability=0.01 seed=3
    python -m experiments.simulate -m seed=1,2,3            a sweep

Shows progress on stderr and a table at the end (output=json: summary.json on stdout). The run directory holds
config.yaml, metrics.jsonl, privacy.json, summary.json, mechanism.json, model.npz, model_initial.npz and
report.html.
"""

import contextlib
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.table import Table

from experiments import config as schema
from experiments.build import Experiment, build, secret_of
from experiments.command import CONF, finite, guard
from experiments.config import EngineName
from experiments.config_data import Output
from experiments.engine import run_engine
from experiments.logger import open_logger
from experiments.recorder import Recorder
from experiments.records import is_finished
from experiments.report import flattened, write_report
from experiments.run_directory import CONFIG, PRIVACY, REPORT, RunDirectory
from experiments.sweep import FREE, skip_or_set_aside
from fedmf.accounting import Ledger
from fedmf.errors import FedmfError, RunDirectoryError, RunStoppedError
from fedmf.plan import Plan
from server.app import make_server_app
from server.checkpoint import Checkpoint
from server.cohort import ReplyPolicy, SimulatedPopulation
from server.files import locked
from server.state import Release, ServerState, first_state
from server.strategy import FedMF

INTERRUPTED = 130


def simulate(config: DictConfig) -> None:
    """Run the simulation that `config` describes and write its run directory, or go on with the run in it."""
    started = time.perf_counter()
    directory = RunDirectory(Path(config.run.directory or HydraConfig.get().runtime.output_dir).resolve())
    if config.sweep.resume and skip_or_set_aside(directory.path, config):
        print(f"skipped: {directory.path} holds this run, finished", file=sys.stderr)
        return
    if config.run.resume and is_finished(directory.path):
        _complete(directory)
        return
    if not config.run.resume:
        directory.refuse_if_used()
    experiment = build(config)
    experiment.plan.start_epoch(Ledger())  # a budget below one epoch is refused before anything is written
    folder = directory.create()
    with locked(folder / "lock"), open_logger(config.logger, directory.path) as log:
        checkpoint = Checkpoint(folder, settings_of(config), config.run.checkpoint_every)
        recorder = Recorder(experiment, directory, config.run, log)
        with stopping_on_disk_errors():
            state = _begin_or_restore(config, experiment, directory, checkpoint, recorder)
        strategy = FedMF(
            experiment.plan,
            experiment.optimizer,
            SimulatedPopulation(),
            state,
            replies=ReplyPolicy(config.population.min_replies, config.population.max_attempts),
            commit=partial(_commit, checkpoint),
            on_release=[partial(_on_release, experiment.plan, checkpoint, recorder)],
        )
        nodes = config.engine.workers if config.engine.name is EngineName.ray else 1
        with recorder:
            run_engine(config, make_server_app(lambda context: strategy, min_nodes=nodes), experiment)
        with stopping_on_disk_errors():
            checkpoint.forget_secrets()
            summary = recorder.finish(time.perf_counter() - started)
            write_report(directory.path)
    show(config.output, directory, summary)


def _begin_or_restore(
    config: DictConfig,
    experiment: Experiment,
    directory: RunDirectory,
    checkpoint: Checkpoint,
    recorder: Recorder,
) -> ServerState:
    """Return the state to go on from: that of the last released round, or that before the first."""
    if checkpoint.has_released() or _can_restore(experiment, checkpoint):
        state, replayed = checkpoint.restore(experiment.plan, experiment.optimizer)
        recorder.begin(state, replayed)
        checkpoint.rebase(state)
        return state
    directory.write_text(CONFIG, OmegaConf.to_yaml(config, resolve=True))
    state = first_state(experiment.plan, experiment.initial, secret_of(config))
    checkpoint.begin(state)
    recorder.begin(state, [])
    return state


def _can_restore(experiment: Experiment, checkpoint: Checkpoint) -> bool:
    """Say whether a run that released nothing can go on with its key; if not, it may begin anew under another."""
    try:
        return checkpoint.has_begun() and bool(checkpoint.restore(experiment.plan, experiment.optimizer))
    except RunDirectoryError:
        return False


def _commit(checkpoint: Checkpoint, release: Release) -> None:
    """Put a release on disk."""
    with stopping_on_disk_errors():
        checkpoint.commit(release)


def _on_release(
    plan: Plan, checkpoint: Checkpoint, recorder: Recorder, state: ServerState, release: Release
) -> None:
    """Record and show a release, then settle the checkpoint."""
    with stopping_on_disk_errors():
        recorder.on_release(state, release)
        checkpoint.settle(plan, state)


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


def settings_of(config: DictConfig) -> dict[str, object]:
    """Return the settings that may not change when a run is resumed, flat."""
    plain: Any = OmegaConf.to_container(config, resolve=True, enum_to_str=True)
    return {key: value for key, value in flattened(plain) if key not in FREE}


def _complete(directory: RunDirectory) -> None:
    """Say that a run is finished; make its report if a crash came between summary and report."""
    if not (directory.path / REPORT).exists():
        write_report(directory.path)
    print(f"finished: {directory.path} holds this run; nothing was changed", file=sys.stderr)


def show(output: Output, directory: RunDirectory, summary: dict[str, object]) -> None:
    """Print what a finished run did: a table for people, or summary.json for programs."""
    if output is Output.json:
        print(json.dumps(finite(summary), indent=2))
        return
    statement = json.loads((directory.path / PRIVACY).read_text())
    table = Table(title="Result", show_header=False)
    for name in (
        "accuracy",
        "loss",
        "epsilon",
        "delta",
        "rounds",
        "parameters",
        "clients",
        "compression_ratio",
    ):
        value = summary[name]
        table.add_row(name, f"{value:.4g}" if isinstance(value, float) else str(value))
    table.add_row("uplink bytes per client and round", f"{summary['uplink_bytes_per_client']:,.0f}")
    table.add_row("wall seconds", f"{summary['wall_seconds']:.1f}")
    console = Console(file=sys.stdout, soft_wrap=True)
    console.print(table)
    console.print(statement["paragraph"], highlight=False)
    console.print(f"report: {directory.path / 'report.html'}", highlight=False)


def default_directory(directory: str | None) -> str:
    """Return Hydra's output directory of a single run: `directory`, or runs/DATE_TIME."""
    return directory or datetime.now().strftime("runs/%Y-%m-%d_%H-%M-%S-%f")


def main() -> None:
    """Compose the configuration with Hydra and run.

    Exit codes: 0 done; 2 a user's mistake (which leaves no empty directory); 1 stopped, can be resumed; 130
    interrupted by Ctrl-C or SIGTERM, can be resumed.
    """
    os.environ["HYDRA_FULL_ERROR"] = "1"  # errors reach `guard` instead of Hydra's own exit code 1
    logging.basicConfig(
        stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("flwr").setLevel(logging.WARNING)
    logging.getLogger("flwr").propagate = False  # it has a handler of its own
    signal.signal(
        signal.SIGTERM, signal.default_int_handler
    )  # as Ctrl-C: the state on disk is whole at any instant
    schema.register()
    OmegaConf.register_new_resolver("default_directory", default_directory, use_cache=True)
    failures: list[FedmfError] = []
    job = partial(_job, failures)
    run = hydra.main(config_path=str(CONF), config_name="config", version_base="1.3")(job)
    try:
        sys.exit(guard(partial(_run_and_raise, run, failures)))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _job(failures: list[FedmfError], config: DictConfig) -> None:
    """Simulate; keep a single run's mistake for `guard`: Hydra would add a line of its own to it."""
    try:
        simulate(config)
    except FedmfError as error:
        _remove_if_empty(Path(HydraConfig.get().runtime.output_dir))
        if HydraConfig.get().mode == RunMode.MULTIRUN:
            raise  # Hydra goes on with the other jobs and fails at the end
        failures.append(error)
    except KeyboardInterrupt:
        directory = config.run.directory or HydraConfig.get().runtime.output_dir
        print(
            f"interrupted: go on with the same command and run.directory={directory} run.resume=true",
            file=sys.stderr,
        )
        raise


def _run_and_raise(run: Callable[[], None], failures: list[FedmfError]) -> None:
    run()
    for error in failures:
        raise error


def _remove_if_empty(directory: Path) -> None:
    """Take away the directory that Hydra made for a run that never began."""
    with contextlib.suppress(OSError):
        directory.rmdir()


if __name__ == "__main__":
    main()

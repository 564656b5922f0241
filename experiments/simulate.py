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
import sys
from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from rich.table import Table

from experiments.cli import command
from experiments.cli.command import CONF, end_with, guard
from experiments.run_files.directory import CONFIG, PRIVACY, RunDirectory
from experiments.run_files.same_settings import refuse_other_settings
from experiments.session.engine import run_engine, shares_messages
from experiments.session.session import has_finished, run_session
from experiments.settings import schema as schema
from experiments.settings.data import Output
from experiments.settings.experiment import Experiment, build
from experiments.settings.schema import EngineName
from fedmf.errors import FedmfError, SettingError
from server.app import make_server_app
from server.cohort import SimulatedPopulation
from server.exchange import tasks_per_message
from server.strategy import FedMF


def simulate(config: DictConfig) -> None:
    """Run the simulation that `config` describes and write its run directory, or go on with the run in it."""
    directory = RunDirectory(Path(config.run.directory or HydraConfig.get().runtime.output_dir).resolve())
    if config.sweep.resume:
        refuse_other_settings(directory.path, config)
    if has_finished(config, directory):
        return
    if config.engine.name is EngineName.deployment:
        raise SettingError(
            "engine is deployment, which `flwr run` starts (docs/deployment.md); choose local or ray."
        )
    if config.run.resume and config.run.directory is None and not (directory.path / CONFIG).exists():
        raise SettingError("run.resume is true, but run.directory is null; name the run to go on with.")
    experiment = build(config)
    engine = partial(_run_engine, config, experiment)
    summary = run_session(
        config,
        directory,
        experiment,
        lambda folder: SimulatedPopulation(),
        engine,
        tasks_per_message=tasks_per_message(experiment.plan) if shares_messages(config) else 1,
    )
    show(config.output, directory, summary)


def _run_engine(config: DictConfig, experiment: Experiment, strategy: FedMF) -> None:
    """Run the strategy on the engine of this machine that config.engine names."""
    nodes = config.engine.workers if config.engine.name is EngineName.ray else 1
    run_engine(config, make_server_app(lambda context: strategy, min_nodes=nodes), experiment)


def show(output: Output, directory: RunDirectory, summary: dict[str, object]) -> None:
    """Print what a finished run did: a table for people, or summary.json for programs."""
    if output is Output.json:
        command.print_json(summary)
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
    table.add_row("values a client sends a round", f"{summary['uplink_bytes_per_client']:,.0f} bytes")
    table.add_row("envelope of its message", f"{summary['envelope_bytes_per_client']:,} bytes")
    table.add_row("wall seconds", f"{summary['wall_seconds']:.1f}")
    console = command.console()
    console.print(table)
    console.print(statement["paragraph"], highlight=False, soft_wrap=False)
    console.print(f"report: {directory.path / 'report.html'}", highlight=False)


def default_directory(directory: str | None) -> str:
    """Return Hydra's output directory of a single run: `directory`, or runs/DATE_TIME."""
    return directory or datetime.now().strftime("runs/%Y-%m-%d_%H-%M-%S-%f")


def main() -> None:
    """Compose the configuration with Hydra and run.

    Exit codes: 0 done; 2 a user's mistake (which leaves no run directory); 1 stopped, can be resumed; 130
    interrupted by Ctrl-C or SIGTERM, can be resumed.
    """
    os.environ["HYDRA_FULL_ERROR"] = "1"  # errors reach `guard` instead of Hydra's own exit code 1
    logging.basicConfig(
        stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("flwr").setLevel(logging.WARNING)
    logging.getLogger("flwr").propagate = False  # it has a handler of its own
    schema.register()
    OmegaConf.register_new_resolver("default_directory", default_directory, use_cache=True)
    failures: list[Exception] = []
    job = partial(_job, failures)
    run = hydra.main(config_path=str(CONF), config_name="config", version_base="1.3")(job)
    end_with(partial(guard, partial(_run_and_raise, run, failures)))


def _job(failures: list[Exception], config: DictConfig) -> None:
    """Simulate; keep a single run's mistake for `guard`: Hydra would add a line of its own to it."""
    try:
        simulate(config)
    except (FedmfError, OmegaConfBaseException) as error:
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


def _run_and_raise(run: Callable[[], None], failures: list[Exception]) -> None:
    run()
    for error in failures:
        raise error


def _remove_if_empty(directory: Path) -> None:
    """Take away the directory that Hydra made for a run that never began."""
    with contextlib.suppress(OSError):
        directory.rmdir()


if __name__ == "__main__":
    main()

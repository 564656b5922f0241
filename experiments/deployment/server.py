"""The server of a deployment: the same session as a simulation, with clients behind a SuperLink's nodes."""

import logging
from dataclasses import replace
from functools import partial
from pathlib import Path

from flwr.serverapp import Grid
from omegaconf import DictConfig

from experiments.run_files.directory import PRIVACY, REPORT, RunDirectory
from experiments.session.session import has_finished, run_session
from experiments.settings.experiment import Experiment, build
from experiments.settings.keys import keyed
from experiments.settings.schema import PopulationConfig
from fedmf.errors import SettingError
from server.attendance import Attendance, DeployedPopulation
from server.exchange import tasks_per_message
from server.strategy import FedMF

log = logging.getLogger(__name__)

ENGINE_KEYS = {"timeout": "node_timeout", "query_timeout": "query_timeout"}  # of `Attendance`


def deploy(config: DictConfig, grid: Grid) -> None:
    """Train with the nodes that `grid` reaches and write the run directory, or go on with the run in it.

    Raises a `FedmfError` for what cannot run as asked; nothing is written then.
    """
    directory = RunDirectory(run_directory(config))
    if has_finished(config, directory):
        return
    experiment = deployed(config)
    with keyed("population", PopulationConfig), keyed("engine", ENGINE_KEYS):
        attendance = Attendance(
            config.population.min_available,
            config.population.max_clients_per_node,
            config.engine.node_timeout,
            config.engine.query_timeout,
        )
    summary = run_session(
        config,
        directory,
        experiment,
        partial(DeployedPopulation, attendance),
        partial(_start, grid, config.engine.round_timeout),
        tasks_per_message=tasks_per_message(experiment.plan),
    )
    log.info(
        "done: accuracy %.4f, epsilon %s at delta %s (%s, %s adjacency); what it covers: %s; report: %s",
        summary["accuracy"],
        summary["epsilon"],
        summary["delta"],
        summary["unit_of_privacy"],
        summary["adjacency"],
        directory.path / PRIVACY,
        directory.path / REPORT,
    )


def deployed(config: DictConfig) -> Experiment:
    """Return the experiment of a deployment. Raises a `FedmfError` for what cannot run as asked."""
    if config.run.reproducible:
        raise SettingError(
            "run.reproducible is true: its masks and noise are known to anyone, so real clients are refused; "
            "leave it false in a deployment."
        )
    return declared_unit(build(config))


def run_directory(config: DictConfig) -> Path:
    """Return run.directory. Raises `SettingError` unless it is an absolute path: the server's working directory is
    not its user's.
    """
    if config.run.directory is None or not Path(config.run.directory).is_absolute():
        raise SettingError(
            f"run.directory is {config.run.directory}; a deployment needs an absolute path on the server's machine."
        )
    return Path(config.run.directory)


def declared_unit(experiment: Experiment) -> Experiment:
    """Return the experiment whose statement says that what one client is rests on the nodes' word."""
    dataset = experiment.dataset
    unit = f"{dataset.unit}, on the word of the operator of the node that holds it"
    return replace(experiment, dataset=replace(dataset, unit=unit))


def _start(grid: Grid, timeout: float, strategy: FedMF) -> None:
    strategy.start(grid, timeout=timeout)

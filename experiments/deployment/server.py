"""The server of a deployment: the same session as a simulation, with clients at the nodes of a SuperLink."""

import contextlib
import logging
import os
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast

from flwr.serverapp import Grid

from client.metrics import headline
from experiments.run_files.directory import (
    CHECKPOINT,
    CONFIG,
    PRIVACY,
    REPORT,
    record_attendance,
)
from experiments.run_files.reader import EXTENDED, differences, read_config
from experiments.session.resume import has_released, recorded_parts, taken_up
from experiments.session.session import Session
from experiments.settings.data import print_notes
from experiments.settings.experiment import Experiment, build
from experiments.settings.groups import DeploymentSettings
from experiments.settings.nodes import known_nodes
from experiments.settings.schema import PopulationSettings, Settings
from experiments.settings.values import keyed, plain, text_of
from fedmf.errors import RunDirectoryError, SettingError
from fedmf.sealing import private_box_key, public_box_key
from server import copies
from server.checkpoint import LOCK
from server.cohort import UnreadyNodes
from server.exchange import tasks_per_message
from server.files import locked
from server.known_nodes import EVERY_NODE, Attendance, KnownNodes
from server.membership import DeployedPopulation
from server.sealed_grid import SealedGrid

log = logging.getLogger(__name__)

ENDING = 60.0  # seconds that a resumed run waits for the process before, whose run was stopped or failed


def deploy(settings: Settings, grid: Grid, overrides: str = "") -> None:
    """Train with the nodes that `grid` reaches and write the run directory, or resume the run in it.

    `overrides` is the text that the settings were made of, by which the nodes make theirs.

    Raises a `FedmfError` for what cannot run as asked; nothing is written then.
    """
    if settings.run.directory is None or not Path(settings.run.directory).is_absolute():
        raise SettingError(
            f"run.directory is {settings.run.directory}; a deployment needs an absolute path on the server's machine."
        )
    directory = Path(settings.run.directory)
    _let_another_end(directory)
    warn_of_restored_counts(directory)
    settings = recorded_parts(settings, directory)
    check_nodes_have_settings(settings, directory)
    if (resumed := taken_up(settings, directory)) is None:
        return
    settings = resumed
    experiment = build_deployed(settings)
    engine = settings.engine
    assert isinstance(engine, DeploymentSettings)  # `run_settings` chooses it
    attendance, box_key = build_attendance(settings.population, engine)
    grid = sealed(grid, attendance.nodes, box_key, overrides)
    session = Session(settings, directory, experiment, bundle=grid.run.fab_hash or None)
    summary = session.run(
        lambda folder, watch: DeployedPopulation(
            attendance,
            folder,
            partial(record_attendance, directory, attendance.nodes),
            watch.on_wait,
            watch.on_presence,
            accept_copy=settings.run.accept_copy,
        ),
        lambda strategy: strategy.start(grid, timeout=engine.round_timeout),
        tasks_per_message(experiment.plan),
    )
    log.info(
        "done: %s %.4f, epsilon %s at delta %s (%s, %s adjacency); what it covers: %s; report: %s",
        headline(summary),
        summary[headline(summary)],
        summary["epsilon"],
        summary["delta"],
        summary["unit_of_privacy"],
        summary["adjacency"],
        directory / PRIVACY,
        directory / REPORT,
    )


def _let_another_end(directory: Path) -> None:
    """Wait for a process that ends: one whose run was stopped notices it at its next question to the SuperLink."""
    lock, began = directory / CHECKPOINT / LOCK, time.monotonic()
    if lock.exists():
        with contextlib.suppress(RunDirectoryError), locked(lock, ENDING):
            pass
    if time.monotonic() - began > 0.1:
        log.info("another process was at this run and has been waited for")
        time.sleep(1)  # it gives back its port for metrics last


def warn_of_restored_counts(directory: Path) -> None:
    """Warn where one restore of the account's home would bring back an older state of the run together with its count of rounds.

    A simulation has no need of that: asked again, its clients send what they sent, and the release is the same.
    """
    if not os.environ.get("FEDMF_STATE") and directory.resolve().is_relative_to(Path.home().resolve()):
        log.warning(
            "released rounds are counted in %s, in the home that contains the run too: an older state of both, restored "
            "together, would release rounds again under the same noise. Set FEDMF_STATE to a folder that is never restored.",
            copies.folder(),
        )


def check_nodes_have_settings(settings: Settings, path: Path) -> None:
    """Raise `RunDirectoryError` where a run is resumed whose recorded settings are not all in this call's overrides.

    Nodes read the overrides themselves and have no config.yaml: with fewer of them they would clip, mask and train
    otherwise than the run is accounted. So the server does not fill them up, as a simulation does, but says which.
    """
    goes_on = settings.resumes or settings.run.extend is not None
    if not goes_on or not (path / CONFIG).is_file() or not has_released(path):
        return
    besides = EXTENDED if settings.run.extend is not None else ()
    if lacking := differences(read_config(path), plain(settings), besides):
        missing = " ".join(f"{key.removesuffix('.name')}={text_of(has)}" for key, has, _ in lacking)
        raise RunDirectoryError(
            f"the run in {path} was begun with other settings, and every node reads those of this call; add to "
            f"overrides: {missing}"
        )


def build_deployed(settings: Settings) -> Experiment:
    """Return the experiment of a deployment. Raises a `FedmfError` for what cannot run as asked."""
    if settings.run.reproducible:
        raise SettingError(
            "run.reproducible is true: its masks and noise are known to anyone, so real clients are refused; "
            "leave it false in a deployment."
        )
    experiment = build(settings)
    print_notes(experiment.dataset)
    log.info(
        "what nodes need to know of all examples: public=%s", text_of(experiment.dataset.public.setting())
    )
    unit = f"{experiment.dataset.unit}, on the word of the operator of the node that holds it"
    return replace(experiment, dataset=replace(experiment.dataset, unit=unit))


def build_attendance(
    population: PopulationSettings, engine: DeploymentSettings
) -> tuple[Attendance, Path | None]:
    """Return when an epoch may begin, and the file of the server's box key; of an experiment that could be built."""
    assert population.min_available is not None  # `settings.experiment.build` refuses it
    with keyed("population", PopulationSettings), keyed("engine", ("query_timeout",)):
        file, most = population.nodes, population.max_clients_per_node
        nodes, box_key = (EVERY_NODE, None) if file is None else known_nodes(file)
        attendance = Attendance(
            population.min_available,
            Attendance.max_clients_per_node if most is None else most,
            engine.node_timeout,
            engine.query_timeout,
            nodes,
            population.unready_nodes or UnreadyNodes.wait,
        )
    return attendance, box_key


def sealed(grid: Grid, nodes: KnownNodes, box_key: Path | None, overrides: str) -> Grid:
    """Return the grid with messages sealed for each of the nodes, by the server's key in the file `box_key`."""
    if box_key is None:
        log.warning(
            "messages are not sealed: another registered node that learns the id of one could read mask keys or un-noised "
            "updates (docs/deployment.md)"
        )
        return grid
    keys = {node.key: public_box_key(node.box_key) for node in nodes if node.box_key is not None}
    return cast(Grid, SealedGrid(grid, private_box_key(box_key), keys, overrides))

"""Run a real deployment on this machine: `make deploy-demo`, or `python -m experiments.deploy_demo [key=value ...]`.

Starts a SuperLink with TLS, node authentication and a database, and three SuperNodes that have their own keys and share the 1437
clients of digits, all on the loopback interface. Submits the app and shows the server's log. The run directory and the report are
the same as those of a simulation. At the end, after Ctrl-C, or when the terminal closes, all processes are stopped, and keys,
certificates and the database are removed.

The default is two epochs of six rounds. For the eight epochs of `make run`, 176 rounds:
    'overrides="population.cohort_size=64 population.epochs=8 optimizer.learning_rate=0.3"'
"""

import sys
import time
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import numpy as np

from client.data import load
from experiments.cli import command
from experiments.cli.result import show
from experiments.deployment.apps import run_settings
from experiments.deployment.loopback import APP, Loopback
from experiments.deployment.server import build_deployed
from experiments.run_files.directory import check_unused
from experiments.run_files.reader import is_finished, read_run
from experiments.settings.log import messages
from experiments.settings.values import PRINTED, Output
from fedmf.errors import RunStoppedError, SettingError
from fedmf.setting import setting

TWO_EPOCHS = "population.cohort_size=239 population.epochs=2 optimizer.learning_rate=2"
NODES = 3


@dataclass(frozen=True)
class DeployDemoSettings:
    directory: str | None = setting(None, "folder of the run; null: runs/deploy-demo_DATE_TIME")
    overrides: str = setting(
        "", "settings of the run, those of simulate, as one string; empty: two epochs of six rounds"
    )
    output: Output = setting("text", PRINTED)


def deploy_demo(settings: DeployDemoSettings) -> None:
    """Start everything, train, show the result, stop everything."""
    if not (APP / "pyproject.toml").is_file():
        raise SettingError(
            f"{APP} holds no pyproject.toml, from which Flower bundles the app; run the demo from a checkout: "
            "make deploy-demo."
        )
    clients = len(load("digits").clients)
    default = datetime.now().strftime("runs/deploy-demo_%Y-%m-%d_%H-%M-%S")
    directory = Path(settings.directory or default).resolve()
    check_unused(directory)
    overrides = (
        f"run.directory='{directory}' population.min_available={clients} {settings.overrides or TWO_EPOCHS}"
    )
    # A mistake in the overrides is an error before anything is started.
    build_deployed(run_settings(overrides))
    directory.mkdir(parents=True, exist_ok=True)
    with Loopback() as loopback:
        messages.info(f"keys, certificates, database and logs: {loopback.folder} (removed at the end)")
        start(loopback, clients)
        messages.info(
            f"flwr run . loopback --stream -c 'overrides=\"population.nodes={loopback.nodes} {overrides}\"'"
        )
        process = loopback.submit(overrides, sys.stderr)
        while process.poll() is None:
            loopback.check_running()
            time.sleep(0.2)
    if not is_finished(directory):
        raise RunStoppedError("the run did not finish; its log above says why.")
    show(settings.output, read_run(directory))


def start(loopback: Loopback, clients: int) -> None:
    """Start the SuperLink and the nodes, which share the clients."""
    bounds = np.linspace(0, clients, NODES + 1).astype(int).tolist()
    loopback.start_superlink()
    messages.info(f"SuperLink listens on https://127.0.0.1:{loopback.port}")
    for number, (first, end) in enumerate(pairwise(bounds), start=1):
        node = f"node{number}"
        overrides = f"dataset=digits first={first} clients={end - first}"
        loopback.register(node)
        loopback.start_supernode(node, overrides)
        messages.info(f"{node} registered with its own key; it holds {end - first} clients")


if __name__ == "__main__":
    command.run(deploy_demo, "deploy_demo", DeployDemoSettings, __doc__)

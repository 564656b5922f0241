"""Who calls the clients: our grid in this process, or Flower's Ray simulation engine. The apps are the same."""

from collections.abc import Callable
from functools import partial
from typing import Any

from flwr.app import Context
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from client.app import make_client_app
from experiments.build import Experiment
from experiments.local_grid import run_locally
from fedmf.errors import SettingError


def run_engine(settings: Any, server_app: ServerApp, experiment: Experiment) -> None:
    """Run `server_app` against the experiment's clients on the engine that `settings.name` names."""
    client_app = make_client_app(experiment.examples_of, experiment.make_trainer, experiment.client_plan)
    if settings.name.name == "local":
        run_locally(server_app, client_app)
    else:
        run_on_ray(server_app, client_app, settings.workers)


def run_on_ray(server_app: ServerApp, client_app: ClientApp, workers: int) -> None:
    """Run the apps on Flower's Ray engine with `workers` supernodes. Raises `SettingError` without the extra `ray`."""
    try:
        from flwr.simulation import run_simulation
    except ImportError as error:
        raise SettingError("engine is ray, but Ray is not installed; install the extra: pip install 'fedmf[ray]'.") from error
    run_simulation(server_app, client_app, workers)

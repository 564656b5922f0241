"""Who calls the clients: processes of this machine under our own grid, or Flower's Ray engine. The apps are
the same."""

from functools import partial
from typing import Any

from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from client.app import make_client_app
from experiments.build import Experiment
from experiments.local_grid import InProcessPlayer, run_locally
from experiments.worker_pool import WorkerPool
from fedmf.checks import check_at_least
from fedmf.errors import SettingError


def run_engine(settings: Any, server_app: ServerApp, experiment: Experiment) -> None:
    """Run `server_app` against the experiment's clients on the engine that `settings.name` names."""
    check_at_least("engine.workers", settings.workers, 1)
    make_app = partial(simulated_client_app, experiment)
    if settings.name.name == "ray":
        run_on_ray(server_app, make_app(), settings.workers)
    elif settings.workers == 1:
        run_locally(server_app, InProcessPlayer(make_app()))
    else:
        with WorkerPool(make_app, settings.workers) as pool:
            run_locally(server_app, pool)


def simulated_client_app(experiment: Experiment) -> ClientApp:
    """Return the ClientApp that can play every client of the experiment."""
    return make_client_app(experiment.examples_of, experiment.make_trainer, experiment.client_plan)


def run_on_ray(server_app: ServerApp, client_app: ClientApp, workers: int) -> None:
    """Run the apps on Flower's Ray engine with `workers` supernodes. Raises `SettingError` without the extra
    `ray`."""
    try:
        from flwr.simulation import run_simulation
    except ImportError as error:
        raise SettingError(
            "engine is ray, but Ray is not installed; install the extra: pip install 'fedmf[ray]'."
        ) from error
    run_simulation(server_app, client_app, workers)

"""Who calls the clients: processes of this machine under our own grid, or Flower's Ray engine.

The apps are the same. Worker processes get the configuration as text and build data and model themselves.
"""

import sys
from functools import lru_cache
from threading import Event, Lock
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from omegaconf import DictConfig, OmegaConf

from client.app import make_client_app
from experiments.players.faults import Faults, FaultyPlayer
from experiments.players.local_grid import InProcessPlayer, Player, run_locally
from experiments.players.worker_pool import WorkerPool
from experiments.settings.experiment import Experiment, build
from experiments.settings.schema import Config, EngineName
from fedmf.errors import SettingError
from fedmf.randomness import PublicSeed


def run_engine(config: DictConfig, server_app: ServerApp, experiment: Experiment) -> None:
    """Run `server_app` against the experiment's clients on the engine that config.engine names."""
    workers, text = config.engine.workers, OmegaConf.to_yaml(config, resolve=True)
    faults, seed = Faults(**config.faults), experiment.plan.seed
    if config.engine.name is EngineName.ray:
        run_on_ray(server_app, remote_client_app(text), workers)
    elif workers == 1:
        run_locally(server_app, _spoiled(InProcessPlayer(simulated_client_app(experiment)), faults, seed))
    else:
        with WorkerPool(client_app_of, text, workers) as pool:
            run_locally(server_app, _spoiled(pool, faults, seed))


def shares_messages(config: DictConfig) -> bool:
    """Say whether clients can share messages: not where each may fail on its own, by a fault or with its process."""
    is_alone = config.engine.name is EngineName.local and config.engine.workers == 1
    return is_alone and not Faults(**config.faults).any


def simulated_client_app(experiment: Experiment) -> ClientApp:
    """Return the ClientApp that can play every client of the experiment."""
    return make_client_app(experiment.examples_of, experiment.make_trainer, experiment.client_plan)


def _spoiled(player: Player, faults: Faults, seed: PublicSeed) -> Player:
    """Return the player with the rehearsed faults, if there are any."""
    return FaultyPlayer(player, faults, seed) if faults.any else player


@lru_cache(maxsize=1)
def client_app_of(text: str) -> ClientApp:
    """Return the ClientApp of the run whose configuration is the YAML `text`; built once per process."""
    config = OmegaConf.merge(OmegaConf.structured(Config), OmegaConf.create(text))
    assert isinstance(config, DictConfig)
    return simulated_client_app(build(config))


def remote_client_app(text: str) -> ClientApp:
    """Return a ClientApp that is cheap to send with every message: Ray pickles it each time.

    Ray's workers look for packages in the current directory first, where folders of the user's own could hide ours:
    they get the order of this process back before they import anything of ours.
    """
    search, app = list(sys.path), ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        sys.path[:] = search
        from experiments.session.engine import client_app_of

        return client_app_of(text)(message, context)

    return app


def run_on_ray(server_app: ServerApp, client_app: ClientApp, workers: int) -> None:
    """Run the apps on Flower's Ray engine with `workers` supernodes. Raises `SettingError` without it.

    Flower runs the ServerApp in a thread and does not wait for it when Ctrl-C or an error ends the engine: here
    that thread has ended in any case, so that nothing is released once this returns or raises.
    """
    try:
        from flwr.simulation import run_simulation
    except ImportError as error:
        raise SettingError(
            "engine is ray, but Ray is not installed; install the extra: pip install 'fedmf[ray]'."
        ) from error
    stop, running = Event(), Lock()
    try:
        run_simulation(
            until_stopped(server_app, stop, running),
            client_app,
            workers,
            backend_config={
                "client_resources": {"num_cpus": 1.0, "num_gpus": 0.0},
                "init_args": {"num_cpus": workers, "include_dashboard": False, "log_to_driver": False},
            },
        )
    finally:
        stop.set()
        with running:  # the round under way is released or dropped by now
            pass


def until_stopped(server_app: ServerApp, stop: Event, running: Lock) -> ServerApp:
    """Return `server_app` as one that ends at its next use of the grid once `stop` is set;
    holds `running` meanwhile.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        with running:
            server_app(_StoppableGrid(grid, stop), context)  # type: ignore[arg-type]

    return app


class _StoppableGrid:
    """A Grid that ends the thread that uses it once `stop` is set."""

    def __init__(self, grid: Grid, stop: Event) -> None:
        self._grid = grid
        self._stop = stop

    def __getattr__(self, name: str) -> Any:
        if self._stop.is_set():
            raise SystemExit  # no Exception, which would count as a client's unreadable reply
        return getattr(self._grid, name)

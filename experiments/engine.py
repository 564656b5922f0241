"""Who calls the clients: processes of this machine under our own grid, or Flower's Ray engine.

The apps are the same. Worker processes get the configuration as text and build data and model themselves.
"""

from functools import lru_cache

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from omegaconf import DictConfig, OmegaConf

from client.app import make_client_app
from experiments.build import Experiment, build
from experiments.config import Config, EngineName
from experiments.faults import Faults, FaultyPlayer
from experiments.local_grid import InProcessPlayer, Player, run_locally
from experiments.worker_pool import WorkerPool
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
    """Return a ClientApp that is cheap to send with every message: Ray pickles it each time."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return client_app_of(text)(message, context)

    return app


def run_on_ray(server_app: ServerApp, client_app: ClientApp, workers: int) -> None:
    """Run the apps on Flower's Ray engine with `workers` supernodes. Raises `SettingError` without it."""
    try:
        from flwr.simulation import run_simulation
    except ImportError as error:
        raise SettingError(
            "engine is ray, but Ray is not installed; install the extra: pip install 'fedmf[ray]'."
        ) from error
    run_simulation(
        server_app,
        client_app,
        workers,
        backend_config={
            "client_resources": {"num_cpus": 1.0, "num_gpus": 0.0},
            "init_args": {"num_cpus": workers, "include_dashboard": False, "log_to_driver": False},
        },
    )

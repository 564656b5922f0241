"""Who calls the clients of a simulation: processes of this machine under our own grid, or Flower's Ray engine.

The apps are the same. Worker processes get the settings and build data and model themselves, without the
test set; what is prepared once in the cache or mapped they share.
"""

import math
import pickle
import sys
from functools import partial

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from client.app import Elsewhere, OnDone, make_client_app, no_count
from experiments.players.elsewhere import in_another_process
from experiments.players.failures import OnFailure, ignore_failure, note, take_noted
from experiments.players.faults import Faults
from experiments.players.faulty_player import FaultyPlayer
from experiments.players.local_grid import InProcessPlayer, Player, run_locally
from experiments.players.progress import ClientCount, OnClients, ignore_clients
from experiments.players.ray import run_on_ray, with_failures
from experiments.players.worker_pool import MESSAGES_A_WORKER, WorkerPool
from experiments.settings.client import Clients, build_for_clients
from experiments.settings.engine import LocalSettings, RaySettings, worker_devices
from experiments.settings.experiment import Experiment
from experiments.settings.schema import Settings
from fedmf.randomness import PublicSeed
from server.app import make_server_app
from server.strategy import FedMF


def run_engine(
    settings: Settings,
    experiment: Experiment,
    strategy: FedMF,
    on_failure: OnFailure = ignore_failure,
    on_clients: OnClients = ignore_clients,
) -> None:
    """Run `strategy` against the experiment's clients on the engine that the settings name.

    `on_failure` is told of each client whose update is zero because it could not train, in this process; `on_clients`
    of how many clients of the round under way have been played.
    """
    engine, seed, count = settings.engine, experiment.plan.seed, ClientCount(on_clients)
    if isinstance(engine, RaySettings):
        server_app = make_server_app(lambda context: strategy, min_nodes=engine.workers)
        run_on_ray(server_app, _remote_client_app(settings), engine.workers, on_failure, count)
        return
    assert isinstance(engine, LocalSettings)  # `simulate` refuses a deployment
    server_app = make_server_app(lambda context: strategy)
    if engine.workers == 1:
        elsewhere = partial(in_another_process, partial(play_with, settings))
        player = InProcessPlayer(_client_app(experiment, elsewhere, count.played))
        run_locally(server_app, _with_faults(player, settings.faults, seed), on_failure, count)
    else:
        with WorkerPool(resident_client_app, settings, engine.workers, devices_of(settings)) as pool:
            run_locally(server_app, _with_faults(pool, settings.faults, seed), on_failure, count)


def devices_of(settings: Settings) -> tuple[str, ...]:
    """Return the devices that a run's workers take in turn, see `worker_devices`. Raises `SettingError` for none such."""
    if not isinstance(settings.engine, LocalSettings):
        return ()
    return worker_devices(settings.engine, settings.client.device, torch.cuda.device_count())


def shared_tasks(settings: Settings, most: int) -> int:
    """Return how many clients share a message, at most `most`: 1 where each may fail on its own, by a fault or on Ray.

    For several workers few enough that the first replies are added up while the last clients train.
    """
    engine = settings.engine
    if not isinstance(engine, LocalSettings) or settings.faults.any:
        return 1
    if engine.workers == 1:
        return most
    return min(most, math.ceil(settings.population.cohort_size / (MESSAGES_A_WORKER * engine.workers)))


_resident: list[tuple[Settings, ClientApp]] = []  # of this worker process: at most one


def resident_client_app(settings: Settings, device: str | None = None) -> ClientApp:
    """Return the ClientApp of a run's clients, built once per process; `device` as for `build_for_clients`."""
    if not _resident or _resident[0][0] != settings:
        _resident[:] = [(settings, _client_app(build_for_clients(settings, device)))]
    return _resident[0][1]


def play_with(settings: Settings, message: Message, context: Context) -> Message:
    """Return the reply of a run's clients to `message`, in a process that may lose its device in its turn."""
    elsewhere = partial(in_another_process, partial(play_with, settings))
    return _client_app(build_for_clients(settings), elsewhere)(message, context)


def play_remotely(settings: Settings, message: Message, context: Context) -> Message:
    """Return the reply of a run's clients to `message` with a private record of those that failed, for `run_on_ray`."""
    take_noted()  # of a message that raised
    return with_failures(resident_client_app(settings)(message, context), take_noted())


def _client_app(
    experiment: Experiment | Clients, elsewhere: Elsewhere | None = None, on_done: OnDone = no_count
) -> ClientApp:
    """Return the ClientApp that can play every client of the experiment."""
    return make_client_app(
        experiment.examples_of,
        experiment.make_trainer,
        experiment.client_plan,
        elsewhere=elsewhere,
        on_failure=note,
        on_done=on_done,
    )


def _remote_client_app(settings: Settings) -> ClientApp:
    """Return a ClientApp that is cheap to send with every message: Ray pickles it each time.

    Ray's workers look for packages in the current directory first, where folders of the user's own could hide ours:
    they get the order of this process back before they import anything of ours, the settings' classes included.
    """
    search, packed, app = list(sys.path), pickle.dumps(settings), ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        sys.path[:] = search
        from experiments.session.engine import play_remotely

        return play_remotely(pickle.loads(packed), message, context)

    return app


def _with_faults(player: Player, faults: Faults, seed: PublicSeed) -> Player:
    """Return the player with the rehearsed faults, if there are any."""
    return FaultyPlayer(player, faults, seed) if faults.any else player

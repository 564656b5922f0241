"""Who calls the clients of a simulation: processes of this machine under our own grid, or Flower's Ray engine.

The apps are the same. Worker processes get the settings and build data and model themselves, without the
test set; what is prepared once in the cache or mapped they share.
"""

import contextlib
import os
from collections.abc import Iterator
from functools import partial

import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from client.app import Elsewhere, OnDone, make_client_app, no_count
from experiments.players.elsewhere import in_another_process
from experiments.players.failures import OnFailure, ignore_failure, note, take_noted, with_failures
from experiments.players.faults import Faults
from experiments.players.faulty_player import FaultyPlayer
from experiments.players.local_grid import InProcessPlayer, Player, call_app, run_locally
from experiments.players.parts import clients_a_message
from experiments.players.processes import stopped, why_not
from experiments.players.progress import ClientCount, OnClients, ignore_clients
from experiments.players.ray import nodes_for, run_on_ray
from experiments.players.ray_cluster import Reservation
from experiments.players.ray_workers import RayWorkers, ray_workers
from experiments.players.worker_pool import WorkerPool
from experiments.session.own_sources import own_sources
from experiments.session.same_workers import Said, Sample, described, refuse_others, sample_of, software_here
from experiments.settings.client import Clients, build_for_clients
from experiments.settings.engine import LocalSettings, RaySettings, worker_devices
from experiments.settings.experiment import Experiment
from experiments.settings.schema import Settings
from fedmf.errors import DeviceLostError, FedmfError
from fedmf.randomness import PublicSeed
from server.app import make_server_app
from server.strategy import FedMF


def run_engine(
    settings: Settings,
    experiment: Experiment,
    strategy: FedMF,
    on_failure: OnFailure = ignore_failure,
    on_clients: OnClients = ignore_clients,
    workers: RayWorkers | None = None,
) -> None:
    """Run `strategy` against the experiment's clients on the engine that the settings name.

    `workers` are those of `engine_workers`, for an engine that has them.

    `on_failure` is told of each client whose update is zero because it could not train, in this process; `on_clients`
    of how many clients of the round under way have been played.
    """
    engine, seed, count = settings.engine, experiment.plan.seed, ClientCount(on_clients)
    if isinstance(engine, RaySettings):
        assert workers is not None
        server_app = make_server_app(lambda context: strategy, min_nodes=nodes_for(workers))
        run_on_ray(server_app, remote_client_app(settings), workers, on_failure, count)
        return
    assert isinstance(engine, LocalSettings)  # `simulate` refuses a deployment
    server_app = make_server_app(lambda context: strategy)
    if engine.workers == 1:
        elsewhere = partial(in_another_process, partial(app_elsewhere, settings))
        player = InProcessPlayer(_app_in_this_process(experiment, elsewhere, count.played))
        run_locally(server_app, _with_faults(player, settings.faults, seed), on_failure, count)
    else:
        with WorkerPool(resident_client_app, settings, engine.workers, devices_of(settings)) as pool:
            run_locally(server_app, _with_faults(pool, settings.faults, seed), on_failure, count)


def devices_of(settings: Settings) -> tuple[str, ...]:
    """Return the devices that a run's workers take in turn, see `worker_devices`. Raises `SettingError` for none such."""
    if not isinstance(settings.engine, LocalSettings):
        return ()
    return worker_devices(settings.engine, settings.client.device, torch.cuda.device_count())


@contextlib.contextmanager
def engine_workers(settings: Settings, experiment: Experiment) -> Iterator[RayWorkers | None]:
    """Start what an engine needs before anything of a run is written, and end it afterwards; None: nothing.

    Raises `SettingError` for a Ray cluster that cannot be joined or has no room, and for a worker whose software or data
    are others than this process has.
    """
    engine = settings.engine
    if not isinstance(engine, RaySettings):
        yield None
        return
    wanted = Reservation(engine.workers, engine.address, engine.cpus_per_worker, engine.gpus_per_worker)
    with ray_workers(wanted) as workers:
        refuse_others(workers.ask_each(software_here), software_here())
        refuse_others(workers.ask_each(own_sources, settings), own_sources(settings))
        workers.begin(begin_here, settings)
        sample = sample_of(experiment.dataset.clients)
        answers = workers.ask_each(described_here, settings, sample)
        ours = described(experiment, sample)
        refuse_others(answers, {**ours, "client.device": "cuda"} if wanted.gpus else ours)
        yield workers


def shared_tasks(settings: Settings, most: int) -> int:
    """Return how many clients share a message, at most `most`: 1 where each may fail on its own, by a fault.

    For several workers few enough that the first replies are added up while the last clients train.
    """
    engine = settings.engine
    if isinstance(engine, RaySettings):
        return most
    if not isinstance(engine, LocalSettings) or settings.faults.any:
        return 1
    if engine.workers == 1:
        return most
    return clients_a_message(settings.population.cohort_size, engine.workers, most)


# Of this worker process, at most one: a run's settings, what they describe, and the app of its clients.
_resident: list[tuple[Settings, Clients, ClientApp]] = []


def resident(settings: Settings, device: str | None = None) -> tuple[Clients, ClientApp]:
    """Return what a run's clients need and their ClientApp, built once per process; `device` as for `build_for_clients`."""
    if not _resident or _resident[0][0] != settings:
        clients = build_for_clients(settings, device)
        _resident[:] = [(settings, clients, _client_app(clients))]
    return _resident[0][1:]


def begin_here(settings: Settings) -> None:
    """Build in this worker process what a run's clients need before any is played; raises what makes it impossible."""
    resident(settings)


def described_here(settings: Settings, sample: Sample) -> Said:
    """Return what this worker process says of a run's clients, see `described`."""
    return described(resident(settings)[0], sample)


def resident_client_app(settings: Settings, device: str | None = None) -> ClientApp:
    """Return the ClientApp of a run's clients, built once per process; `device` as for `build_for_clients`."""
    return resident(settings, device)[1]


def app_elsewhere(settings: Settings, message: Message, context: Context) -> ClientApp:
    """Return the ClientApp of a run's clients for `message`, in a process that may lose its device in its turn."""
    elsewhere = partial(in_another_process, partial(app_elsewhere, settings))
    return _client_app(build_for_clients(settings), elsewhere)


def play_remotely(settings: Settings, message: Message, context: Context) -> Message:
    """Return the reply of a run's clients to `message` with a private record of those that failed, for `run_on_ray`.

    It ends this process where the device does not answer any more: another begins, and plays each client alone. So it does
    where the app cannot be built, which is no client's error: whoever asked begins it again, and finds out why.
    """
    take_noted()  # of a message that raised
    try:
        app = resident_client_app(settings)
    except (Exception, SystemExit):
        os._exit(1)
    try:
        return with_failures(call_app(app, message, context), take_noted())
    except DeviceLostError:
        os._exit(1)


def _app_in_this_process(experiment: Experiment, elsewhere: Elsewhere, on_done: OnDone) -> ClientApp:
    """Return the ClientApp of the process that is the server too. Raises `RunStoppedError` where it cannot be made."""
    try:
        return _client_app(experiment, elsewhere, on_done)
    except FedmfError:
        raise
    except (Exception, SystemExit) as error:
        raise stopped(f"the clients' trainer cannot be made ({why_not(error)})") from error


def _client_app(
    experiment: Experiment | Clients,
    elsewhere: Elsewhere | None = None,
    on_done: OnDone = no_count,
) -> ClientApp:
    """Return the ClientApp that can play every client of the experiment; its trainer is made here."""
    return make_client_app(
        experiment.examples_of,
        experiment.make_trainer,
        experiment.client_plan,
        elsewhere=elsewhere,
        on_failure=note,
        on_done=on_done,
        at_once=True,
    )


def remote_client_app(settings: Settings) -> ClientApp:
    """Return a ClientApp that is cheap to send with every message: the clients are built where it runs.

    It answers a query with nothing: a server sends one to nodes that have not answered for a while.
    """
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return play_remotely(settings, message, context)

    @app.query()
    def query(message: Message, context: Context) -> Message:
        return Message(RecordDict(), reply_to=message)

    return app


def _with_faults(player: Player, faults: Faults, seed: PublicSeed) -> Player:
    """Return the player with the rehearsed faults, if there are any."""
    return FaultyPlayer(player, faults, seed) if faults.any else player

"""The engines of a simulation: this process, processes of this machine, or the workers of a Ray cluster.

The apps are the same. Worker processes get the settings and build data and model themselves, without the
test set; what is prepared once in the cache or mapped they share.
"""

import contextlib
from collections.abc import Iterator
from functools import partial

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from client.app import Elsewhere, make_client_app
from experiments.engines.failures import OnFailure, ignore_failure, note
from experiments.engines.faults import FaultyWorker
from experiments.engines.grid import InProcessWorker, Worker, run_locally
from experiments.engines.messages import clients_a_message
from experiments.engines.pool import Pool, WorkerPool
from experiments.engines.processes import in_another_process, stopped, why_not
from experiments.engines.ray import Reservation, ask_each, ray_processes
from experiments.engines.same_workers import (
    Said,
    Sample,
    described,
    own_sources,
    refuse_others,
    sample_of,
    software_here,
)
from experiments.settings.client import Clients, build_for_clients
from experiments.settings.engine import LocalSettings, RaySettings, worker_devices
from experiments.settings.experiment import Experiment
from experiments.settings.schema import Settings
from fedmf.errors import FedmfError
from server.app import make_server_app
from server.strategy import FedMF


def run_engine(
    settings: Settings,
    experiment: Experiment,
    strategy: FedMF,
    on_failure: OnFailure = ignore_failure,
    workers: Pool | None = None,
) -> None:
    """Run `strategy` against the experiment's clients on the engine that the settings name.

    `workers` are those of `engine_workers`, for an engine that has them. `on_failure` receives each client whose update
    is zero because it could not train, in this process.
    """
    engine = settings.engine
    with contextlib.ExitStack() as stack:
        worker: Worker
        if workers is not None:
            worker = workers
        elif isinstance(engine, LocalSettings) and engine.workers > 1:
            worker = stack.enter_context(
                WorkerPool(resident_client_app, settings, engine.workers, devices_of(settings))
            )
        else:
            elsewhere = partial(in_another_process, partial(app_elsewhere, settings))
            worker = InProcessWorker(_app_in_this_process(experiment, elsewhere))
        if settings.faults.any:
            worker = FaultyWorker(worker, settings.faults, experiment.plan.seed)
        run_locally(make_server_app(lambda context: strategy), worker, on_failure)


def devices_of(settings: Settings) -> tuple[str, ...]:
    """Return the devices that a run's workers take in turn, see `worker_devices`. Raises `SettingError` for none such."""
    if not isinstance(settings.engine, LocalSettings):
        return ()
    return worker_devices(settings.engine, settings.client.device, torch.cuda.device_count())


@contextlib.contextmanager
def engine_workers(settings: Settings, experiment: Experiment) -> Iterator[Pool | None]:
    """Start what an engine needs before anything of a run is written, and end it afterwards; None: nothing.

    Raises `SettingError` for a Ray cluster that cannot be joined or has no room, and for a worker whose software or data
    differ from this process's.
    """
    engine = settings.engine
    if not isinstance(engine, RaySettings):
        yield None
        return
    wanted = Reservation(engine.workers, engine.address, engine.cpus_per_worker, engine.gpus_per_worker)
    with ray_processes(wanted, partial(resident_client_app, settings)) as processes:
        refuse_others(ask_each(processes, software_here), software_here())
        refuse_others(ask_each(processes, own_sources, settings), own_sources(settings))
        sample = sample_of(experiment.dataset.clients)
        answers = ask_each(processes, described_here, settings, sample)
        ours = described(experiment, sample)
        refuse_others(answers, {**ours, "client.device": "cuda"} if wanted.gpus else ours)
        with Pool(processes) as pool:
            yield pool


def shared_tasks(settings: Settings, most: int) -> int:
    """Return how many clients share a message, at most `most`: 1 where each may fail on its own, by a fault.

    For several workers few enough that the first replies are added up while the last clients train.
    """
    engine = settings.engine
    if not isinstance(engine, LocalSettings | RaySettings) or settings.faults.any:
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


def described_here(settings: Settings, sample: Sample) -> Said:
    """Return how this worker process describes a run's clients, see `described`."""
    return described(resident(settings)[0], sample)


def resident_client_app(settings: Settings, device: str | None = None) -> ClientApp:
    """Return the ClientApp of a run's clients, built once per process; `device` as for `build_for_clients`."""
    return resident(settings, device)[1]


def app_elsewhere(settings: Settings, message: Message, context: Context) -> ClientApp:
    """Return the ClientApp of a run's clients for `message`, in a process that may lose its device in its turn."""
    elsewhere = partial(in_another_process, partial(app_elsewhere, settings))
    return _client_app(build_for_clients(settings), elsewhere)


def _app_in_this_process(experiment: Experiment, elsewhere: Elsewhere) -> ClientApp:
    """Return the ClientApp of the process that is the server too. Raises `RunStoppedError` where it cannot be made."""
    try:
        return _client_app(experiment, elsewhere)
    except FedmfError:
        raise
    except (Exception, SystemExit) as error:
        raise stopped(f"the clients' trainer cannot be made ({why_not(error)})") from error


def _client_app(experiment: Experiment | Clients, elsewhere: Elsewhere | None = None) -> ClientApp:
    """Return the ClientApp that can run every client of the experiment; its trainer is made here."""
    return make_client_app(
        experiment.examples_of,
        experiment.make_trainer,
        experiment.client_plan,
        elsewhere=elsewhere,
        on_failure=note,
        at_once=True,
    )

"""The engines of a simulation: this process, processes of this machine, or the workers of a Ray cluster.

The apps are the same. Worker processes get the settings and build data and model themselves, without the
test set; what is prepared once in the cache or mapped they share.
"""

import contextlib
from collections.abc import Iterator
from functools import partial
from itertools import cycle, islice

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from client.app import Elsewhere, make_client_app
from experiments.engines.grid import FaultyWorker, InProcessWorker, Worker, note
from experiments.engines.pool import Pool, clients_a_message, in_another_process
from experiments.engines.processes import LocalProcess, stopped, why_not
from experiments.engines.ray import ask_each, ray_processes
from experiments.engines.same_workers import Said, Sample, check_same, said_of, sample_of
from experiments.settings.client import Clients, build_for_clients
from experiments.settings.engine import LocalSettings, RaySettings, worker_devices
from experiments.settings.experiment import Experiment
from experiments.settings.schema import Settings
from fedmf.errors import FedmfError


@contextlib.contextmanager
def engine_worker(settings: Settings, experiment: Experiment) -> Iterator[Worker]:
    """Start what computes the clients' replies on the engine that the settings name, and end it afterwards.

    Raises `SettingError` for a Ray cluster that cannot be joined or has no room, and for a worker whose software or data
    differ from this process's; `RunStoppedError` where this process has no room for a trainer.
    """
    engine = settings.engine
    with contextlib.ExitStack() as stack:
        worker: Worker
        if isinstance(engine, RaySettings):
            processes = stack.enter_context(ray_processes(engine, partial(resident_client_app, settings)))
            sample = sample_of(experiment.dataset.clients)
            ours = said_of(settings, experiment, sample)
            if engine.gpus_per_worker:
                ours["client.device"] = "cuda"
            check_same(ask_each(processes, said_here, settings, sample), ours)
            worker = stack.enter_context(Pool(processes))
        elif isinstance(engine, LocalSettings) and engine.workers > 1:
            devices = islice(cycle(devices_of(settings) or (None,)), engine.workers)
            makers = [partial(resident_client_app, settings, device) for device in devices]
            worker = stack.enter_context(Pool([LocalProcess(make_app) for make_app in makers]))
        else:
            elsewhere = partial(in_another_process, partial(app_elsewhere, settings))
            worker = InProcessWorker(_app_in_this_process(experiment, elsewhere))
        yield FaultyWorker(worker, settings.faults, experiment.plan.seed) if settings.faults.any else worker


def devices_of(settings: Settings) -> tuple[str, ...]:
    """Return the devices that a run's workers take in turn, see `worker_devices`. Raises `SettingError` for none such."""
    if not isinstance(settings.engine, LocalSettings):
        return ()
    return worker_devices(settings.engine, settings.client.device, torch.cuda.device_count())


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


_resident: list[tuple[Settings, Clients]] = []  # of this worker process, at most one


def resident(settings: Settings, device: str | None = None) -> Clients:
    """Return what a run's clients need, built once per process; `device` as for `build_for_clients`."""
    if not _resident or _resident[0][0] != settings:
        _resident[:] = [(settings, build_for_clients(settings, device))]
    return _resident[0][1]


def said_here(settings: Settings, sample: Sample) -> Said:
    """Return what this worker process says of itself, see `said_of`."""
    return said_of(settings, resident(settings), sample)


def resident_client_app(settings: Settings, device: str | None = None) -> ClientApp:
    """Return the ClientApp of a run's clients; `device` as for `build_for_clients`."""
    return _client_app(resident(settings, device))


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

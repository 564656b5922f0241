"""The engines of a simulation: this process, processes of this machine, or the workers of a Ray cluster.

The apps are the same. Worker processes get the settings and what is public of the data, and build clients and model
themselves, without the test set; what is mapped they share.

The workers of a cluster must have what this process has. Machines differ where one was installed or copied to at another
time. A worker with other clients would train for a client of this run on somebody else's examples, and one with other
bounds would not keep what the statement promises.
"""

import contextlib
import math
import os
import platform
import secrets
from collections.abc import Iterator, Sequence
from functools import partial
from hashlib import blake2b
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import torch
from flwr.clientapp import ClientApp

from client.app import make_client_app
from client.data import Examples, Public
from client.data.clients import Fingerprint, digest_clients, identify_each
from client.imports import looking_here, own_code as calling_own
from client.parameters import digest_tensors, fixed_tensors, layout_of
from client.training import pick_device
from experiments.engines.grid import FaultyWorker, InProcessWorker, Worker, note, noted
from experiments.engines.processes import LocalProcess, Pool, why_not
from experiments.engines.ray import RayProcess, ray_processes
from experiments.run_files.provenance import files_digest, own_code
from experiments.settings.experiment import Clients, Experiment, build_for_clients
from experiments.settings.groups import LocalSettings, RaySettings
from experiments.settings.schema import Settings
from fedmf import compiling
from fedmf.errors import RunStoppedError, SettingError
from fedmf.randomness import SecretKey

PACKAGES = ("flwr", "torch", "numpy")
MESSAGES_A_WORKER = 4  # in a round: what is answered is added up while others still train
_READ = 32  # clients whose examples are compared too: who they are may be known by a name alone

# What a worker or this process says of itself: a name for each thing that must be the same, and its value.
Said = dict[str, str]
# The key of all digests of clients, and the numbers of those whose examples are compared: drawn at each start.
Sample = tuple[SecretKey, tuple[int, ...]]


@contextlib.contextmanager
def engine_worker(settings: Settings, experiment: Experiment) -> Iterator[Worker]:
    """Start what computes the clients' replies on the engine that the settings name, and end it afterwards.

    Raises `SettingError` for a Ray cluster that cannot be joined or has no room, and for a worker whose software or data
    differ from this process's; `RunStoppedError` where this process has no room for a trainer.
    """
    engine, public = settings.engine, experiment.dataset.public
    with contextlib.ExitStack() as stack:
        worker: Worker
        if isinstance(engine, RaySettings):
            processes = stack.enter_context(
                ray_processes(engine, partial(resident_client_app, settings, public))
            )
            sample = sample_of(experiment.dataset.clients)
            ours = said_of(settings, experiment, sample)
            if engine.gpus_per_worker:
                ours["client.device"] = "cuda"
            check_same(processes, (settings, public, sample), ours)
            worker = Pool(processes)
        elif isinstance(engine, LocalSettings) and engine.workers > 1:
            places = [visible_gpu(number, settings.client.device) for number in range(engine.workers)]
            worker = _local_pool(stack, settings, public, places)
        else:
            other = partial(_local_pool, stack, settings, public, [{}])
            with calling_own("the clients' trainer cannot be made", RunStoppedError):
                worker = InProcessWorker(_client_app(experiment, settings), other)
        yield FaultyWorker(worker, settings.faults, experiment.plan.seed) if settings.faults.any else worker


def _local_pool(
    stack: contextlib.ExitStack, settings: Settings, public: Public, places: Sequence[dict[str, str]]
) -> Pool:
    """Return a pool of processes of this machine, one for each environment of `places`, which `stack` ends."""
    processes = [LocalProcess(partial(resident_client_app, settings, public), place) for place in places]
    # On Ctrl-C as well: one that is still starting needs what this process frees at its end.
    for process in processes:
        stack.callback(process.end)
    return Pool(processes)


def visible_gpu(number: int, device: str) -> dict[str, str]:
    """Return the variable by which worker `number` sees one GPU of this machine, the next in turn for the next worker.

    Nothing where there is one at most, or where client.device, `device`, is the CPU.
    """
    found = torch.cuda.device_count()
    if device == "cpu" or found < 2:
        return {}
    names = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return {"CUDA_VISIBLE_DEVICES": names[number % found] if len(names) >= found else str(number % found)}


def shared_tasks(settings: Settings, most: int) -> int:
    """Return how many clients share a message, at most `most`: 1 where each may fail on its own, by a fault.

    For several workers few enough that the first replies are added up while the last clients train.
    """
    engine = settings.engine
    if not isinstance(engine, LocalSettings | RaySettings) or settings.faults.any:
        return 1
    if engine.workers == 1:
        return most
    return min(most, math.ceil(settings.population.cohort_size / (MESSAGES_A_WORKER * engine.workers)))


_resident: list[tuple[Settings, Clients]] = []  # of this worker process, at most one


def resident(settings: Settings, public: Public) -> Clients:
    """Return what a run's clients need, built once per process."""
    if not _resident or _resident[0][0] != settings:
        _resident[:] = [(settings, build_for_clients(settings, public))]
    return _resident[0][1]


def said_here(settings: Settings, public: Public, sample: Sample) -> Said:
    """Return what this worker process says of itself, see `said_of`."""
    return said_of(settings, resident(settings, public), sample)


def resident_client_app(settings: Settings, public: Public) -> ClientApp:
    return _client_app(resident(settings, public), settings)


def _client_app(experiment: Experiment | Clients, settings: Settings) -> ClientApp:
    """Return the ClientApp that can run every client of the experiment; its trainer is made here."""
    return make_client_app(
        experiment.examples_of,
        experiment.make_trainer,
        experiment.client_plan,
        on_failure=note,
        at_once=True,
        observe=noted.append if settings.run.unprotected_metrics else None,
    )


def sample_of(clients: Sequence[Examples]) -> Sample:
    """Return a sample of `clients`; of none where each reading gives other examples."""
    drawn = sorted(secrets.SystemRandom().sample(range(len(clients)), min(_READ, len(clients))))
    key, numbers = SecretKey.generate(), tuple(drawn)
    is_stable = examples_digest(clients, key, numbers) == examples_digest(clients, key, numbers)
    return key, numbers if is_stable else ()


def examples_digest(clients: Sequence[Examples], key: SecretKey, numbers: Sequence[int]) -> str:
    """Return a digest under `key` of the examples of the clients `numbers`."""
    fingerprint = Fingerprint(key)
    for number in numbers:
        identify_each(clients, fingerprint, range(number, number + 1))
    return fingerprint.hexdigest()


def said_of(settings: Settings, held: Experiment | Clients, sample: Sample) -> Said:
    """Return what decides what a client computes: software, who the clients are, what they train and enforce, on what."""
    dataset, code = held.dataset, own_code()
    own = (
        settings.dataset.name,
        settings.model.name,
        settings.client.loss or "",
        settings.client.trainer or "",
    )
    return {
        "Python": ".".join(platform.python_version_tuple()[:2]),
        "fedmf": code["fedmf"],
        **{package: version(package) for package in PACKAGES},
        "numba": str(compiling.version()),  # None: numpy rotates, and rounds otherwise
        "the code of fedmf": code["code"],
        **{f"the code of {path}": source_digest(path) for path in own if ":" in path},
        "client.device": pick_device(held.training.device).type,
        "the shape of an example": f"{dataset.input_shape}, {dataset.classes} classes",
        "the number of clients": str(len(dataset.clients)),
        "the clients": digest_clients(dataset.clients, sample[0])[:16],
        "the clients' examples": examples_digest(dataset.clients, *sample)[:16],
        "the model": blake2b(repr(layout_of(held.model)).encode(), digest_size=8).hexdigest(),
        "what does not train": digest_tensors(fixed_tensors(held.model))[:16],
        "what a client enforces": repr(held.client_plan),
    }


def source_digest(path: str) -> str:
    """Return a digest of the Python files of the module or the package that `path`, MODULE:NAME, is in.

    What such a file imports from other packages of the user's own, or reads from files, is not seen.
    """
    top = path.partition(":")[0].partition(".")[0]
    if top in (*PACKAGES, "fedmf", "client", "server", "experiments"):
        return "as the software"
    with looking_here():
        spec = find_spec(top)
    if spec is None:
        return "of no file"
    if spec.submodule_search_locations is None:
        return files_digest([(top, Path(str(spec.origin)))])
    places = map(Path, spec.submodule_search_locations)
    found = [(place, file) for place in places for file in place.rglob("*.py") if file.is_file()]
    return files_digest((file.relative_to(place).as_posix(), file) for place, file in found)


def check_same(processes: Sequence[RayProcess], run: tuple[Settings, Public, Sample], ours: Said) -> None:
    """Raise `SettingError` that names the first worker that cannot say what it has, or says something else than `ours`."""
    for worker, answer in [(process.name, process.call(said_here, *run)) for process in processes]:
        try:
            theirs = answer.result()
        except Exception as error:
            raise SettingError(f"{worker} cannot run this run's clients: {why_not(error)}") from error
        for name, value in ours.items():
            if theirs[name] != value:
                raise SettingError(
                    f"{worker} differs from this process in {name}: {theirs[name]} there, {value} here. Every node must "
                    "have the same software and data (docs/scale.md); nothing was asked of a client."
                )

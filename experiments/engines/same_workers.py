"""Whether the workers of a cluster have what this process has: the same software, the same clients, the same bounds.

Machines differ where one was installed or copied to at another time. A worker with other clients would train for a
client of this run on somebody else's examples, and one with other bounds would not keep what the statement promises.
"""

import platform
import secrets
from collections.abc import Sequence
from hashlib import blake2b
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from client.data import Examples
from client.data.dataset import identify_each
from client.data.fingerprint import Fingerprint
from client.data.identity import digest_clients
from client.imports import looking_here
from client.parameters import digest_tensors, fixed_tensors, layout_of
from client.training import pick_device
from experiments.run_files.provenance import files_digest, own_code
from experiments.settings.client import Clients
from experiments.settings.experiment import Experiment
from experiments.settings.schema import Settings
from fedmf import compiling
from fedmf.errors import SettingError
from fedmf.randomness import SecretKey

PACKAGES = ("flwr", "torch", "numpy")
_READ = 32  # clients whose examples are compared too: who they are may be known by a name alone

# What a worker or this process says of itself: a name for each thing that must be the same, and its value.
Said = dict[str, str]


# The key of all digests of clients, and the numbers of those whose examples are compared: drawn at each start.
Sample = tuple[SecretKey, tuple[int, ...]]


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
    own = (settings.dataset.name, settings.model.name, settings.client.loss, settings.client.trainer or "")
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


def check_same(answers: Sequence[tuple[str, Said]], ours: Said) -> None:
    """Raise `SettingError` that names the first worker of `answers` that says something else than `ours`, and what."""
    for worker, theirs in answers:
        for name, value in ours.items():
            if theirs[name] != value:
                raise SettingError(
                    f"{worker} differs from this process in {name}: {theirs[name]} there, {value} here. Every node must "
                    "have the same software and data (docs/cluster.md); nothing was asked of a client."
                )

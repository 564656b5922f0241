"""Whether the workers of a cluster have what this process has: the same software, the same clients, the same bounds.

Machines differ where one was installed or copied to at another time. A worker with other clients would train for a
client of this run on somebody else's examples, and one with other bounds would not keep what the statement promises.
"""

import platform
import secrets
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from importlib.util import find_spec
from pathlib import Path

from client.data import Examples
from client.data.dataset import identify_each
from client.data.fingerprint import Fingerprint
from client.data.identity import digest_clients
from client.imports import looking_here
from client.parameters import digest_tensors, fixed_tensors, layout_of
from client.training import pick_device
from experiments.run_files.provenance import installed_version, own_code
from experiments.settings.client import Clients
from experiments.settings.experiment import Experiment
from experiments.settings.schema import Settings
from fedmf import compiling
from fedmf.errors import SettingError
from fedmf.randomness import SecretKey

PACKAGES = ("flwr", "torch", "numpy")
_WHOLE = 4096  # clients; of more only a sample is compared
_SAMPLED, _READ = 1024, 32  # clients of a sample, and clients whose examples are read

# What a worker or this process says of itself: a name for each thing that must be the same, and its value.
Said = dict[str, str]


def software_here() -> Said:
    """Return what of the software decides what a client computes, and a digest of our code: versions alone lag behind."""
    ours = own_code()
    return {
        "Python": ".".join(platform.python_version_tuple()[:2]),
        "fedmf": ours["fedmf"],
        **{package: installed_version(package) or "none" for package in PACKAGES},
        "numba": compiling.version() or "none that can be used",  # else numpy rotates, and rounds otherwise
        "the code of fedmf": f"digest {ours['code']}",
    }


@dataclass(frozen=True)
class Sample:
    """Which clients are compared, under which key, and of which the examples are read: drawn anew at each start.

    `numbers` None: all clients. A difference that touches a share s of many clients escapes a sample of 1024 with
    probability (1 - s)^1024: below 4e-5 at a hundredth of the clients.
    """

    numbers: tuple[int, ...] | None
    read: tuple[int, ...]
    key: SecretKey = field(default_factory=SecretKey.generate)


def sample_of(clients: Sequence[Examples]) -> Sample:
    """Return a sample of `clients`; the examples of those that hold other ones at each reading are left out."""
    drawn, count = secrets.SystemRandom(), len(clients)
    numbers = None if count <= _WHOLE else tuple(sorted(drawn.sample(range(count), _SAMPLED)))
    read = tuple(sorted(drawn.sample(range(count), min(_READ, count))))
    sample = Sample(numbers, read)
    if _examples_digest(clients, sample) == _examples_digest(clients, sample):
        return sample
    return Sample(numbers, (), sample.key)


def described(experiment: Experiment | Clients, sample: Sample) -> Said:
    """Return what of a run's clients must be the same everywhere: who they are, what they train and enforce, on what."""
    dataset = experiment.dataset
    layout = layout_of(experiment.model)
    return {
        "client.device": pick_device(experiment.training.device).type,
        "the number of clients": str(len(dataset.clients)),
        "the shape of an example": f"{dataset.input_shape}, {dataset.classes} classes",
        "the clients": f"digest {_clients_digest(dataset.clients, sample)[:16]}",
        "the clients' examples": f"digest {_examples_digest(dataset.clients, sample)[:16]}",
        "the model": f"digest {blake2b(repr(layout).encode(), digest_size=8).hexdigest()}",
        "what does not train": f"digest {digest_tensors(fixed_tensors(experiment.model))[:16]}",
        "what a client enforces": repr(experiment.client_plan),
    }


def refuse_others(answers: Sequence[tuple[str, Said]], ours: Said) -> None:
    """Raise `SettingError` that names the first worker of `answers` that says something else than `ours`, and what."""
    for worker, theirs in answers:
        for name, value in ours.items():
            if theirs.get(name) != value:
                raise SettingError(
                    f"{worker} differs from this process in {name}: {theirs.get(name)} there, {value} here. Every node "
                    "must have the same software and data (docs/cluster.md); nothing was asked of a client."
                )


def _clients_digest(clients: Sequence[Examples], sample: Sample) -> str:
    """Return a digest of who the clients of the sample are."""
    if sample.numbers is None:
        return digest_clients(clients, sample.key)
    fingerprint = Fingerprint(sample.key)
    for number in sample.numbers:
        held = number < len(clients)
        fingerprint.text(digest_clients(clients, sample.key, number, number + 1) if held else "none")
    return fingerprint.hexdigest()


def _examples_digest(clients: Sequence[Examples], sample: Sample) -> str:
    """Return a digest of the examples of the clients that the sample reads: who they are may be known by a name alone."""
    fingerprint = Fingerprint(sample.key)
    for number in sample.read:
        identify_each(clients, fingerprint, range(number, number + 1))
    return fingerprint.hexdigest()


_COMPARED = {"fedmf", "client", "server", "experiments", "torch", "numpy", "flwr"}  # by `software_here`


def own_sources(settings: Settings) -> dict[str, str]:
    """Return a digest of the files behind each import path in `settings` that a worker runs, by its key.

    The mechanism, the optimizer and the metrics of a run are the server's alone. What such a file reads, imports from
    other packages of the user's own or makes of its environment is not seen.
    """
    named = {
        "dataset.name": settings.dataset.name,
        "model.name": settings.model.name,
        "client.loss": settings.client.loss,
        "client.trainer": settings.client.trainer or "",
    }
    return {
        f"the code of {key}": f"digest {source_digest(path)}" for key, path in named.items() if ":" in path
    }


def source_digest(path: str) -> str:
    """Return a digest of the files of `module:name`, by name and content; "of no file" where none is found.

    Of a module in a package, one without an __init__.py too, all Python files of that package count, for one may import the other.
    """
    module = path.partition(":")[0]
    top = module.partition(".")[0]
    if top in _COMPARED:
        return "as the software"
    digest, count = blake2b(digest_size=8), 0
    for name, file in sorted(_files(module, top)):
        data = file.read_bytes()
        digest.update(f"{name} {len(data)} ".encode() + data)
        count += 1
    return digest.hexdigest() if count else "of no file"


def _files(module: str, top: str) -> Iterator[tuple[str, Path]]:
    """Yield the name and the place of each file of `module`, and of the package `top` that it is in."""
    for name in dict.fromkeys((top, module)):
        try:
            with looking_here():
                spec = find_spec(name)
        except (ImportError, ValueError):  # no package, or a module without a spec
            file = getattr(sys.modules.get(name), "__file__", None)
            spec = None
        else:
            file = spec.origin if spec is not None else None
        if spec is not None and spec.submodule_search_locations is not None:
            for place in map(Path, spec.submodule_search_locations):
                for found in place.rglob("*.py"):
                    if found.is_file():  # not an editor's lock, a link to nowhere
                        yield f"{name}/{found.relative_to(place).as_posix()}", found
            return
        if file is not None and Path(file).is_file():
            yield name, Path(file)

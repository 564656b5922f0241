"""The source of a user's own code that workers of a cluster run: a digest of the files, as far as they are found.

Another version of a file on one node trains another model there, under the same names and shapes.
"""

import sys
from collections.abc import Iterator
from hashlib import blake2b
from importlib.util import find_spec
from pathlib import Path

from client.imports import looking_here
from experiments.settings.schema import Settings

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

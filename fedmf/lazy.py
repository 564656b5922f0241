"""Public names of a package that are imported when they are first used.

A deployed node is a new process for every message: what it does not use (torch, scipy, Flower's server) must cost
it nothing, although the package names all of its public things in one place.
"""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module


def lazily(package: str, homes: Mapping[str, Sequence[str]]) -> Callable[[str], object]:
    """Return the `__getattr__` (PEP 562) of `package`; `homes` gives the public names of each module.

    >>> lazily("example", {"math": ["pi", "e"]})("pi")
    3.141592653589793
    """
    home = {name: module for module, names in homes.items() for name in names}

    def find(name: str) -> object:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(home[name]), name)

    return find

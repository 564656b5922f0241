"""Public names of a package that are imported when they are first used.

A deployed node is a new process for every message: what it does not use (torch, scipy, Flower's server) must cost
it nothing, although the package names all of its public things in one place.
"""

import ast
from collections.abc import Callable
from importlib import import_module
from pathlib import Path


def lazily(package: str, file: str) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Return the `__getattr__` and `__dir__` (PEP 562) and the `__all__` of the `package` in `file`.

    Its public names are those that it imports under `if TYPE_CHECKING`, so that they are listed once.
    """
    (block,) = (node for node in ast.parse(Path(file).read_bytes()).body if isinstance(node, ast.If))
    home = {
        alias.name: node.module or ""
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }

    def find(name: str) -> object:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(home[name]), name)

    return find, lambda: sorted({*vars(import_module(package)), *home}), sorted(home)

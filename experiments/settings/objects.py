"""Objects of a Python program instead of settings that name code: classes, functions, mechanisms, datasets.

An object that its module has under its name is recorded by its import path, as on the command line: worker processes find it
there. Any other (of `__main__`, a lambda, a dataset) is recorded as python-DIGEST:NAME, and `client.imports` finds it while the
program lends it. The digest is of source text, for all but loaders with numbers and texts that an object or a closure holds, and of
a dataset of what is public alone: config.yaml is shown to others. A resume with other training data is noticed by the key of the checkpoint.
"""

import hashlib
import inspect
import os
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
from torch import nn

from client.data import Dataset
from client.imports import LENT
from client.parameters import digest_arrays
from experiments.settings.compose import choices_of
from experiments.settings.schema import Settings
from experiments.settings.values import as_overrides
from fedmf.errors import SettingError
from fedmf.mechanisms import Family


def named(settings: Mapping[str, object]) -> tuple[list[str], dict[str, Any]]:
    """Return `settings` as overrides, and the objects among them that no import finds, by the paths that name them.

    An object in the place of a group (`model=Net`) is its choice "custom".
    """
    lent: dict[str, Any] = {}
    overrides: list[str] = []
    for key, value in settings.items():
        group = (
            {"name": value} if _is_code(value) and "custom" in choices_of(Settings).get(key, ()) else value
        )
        if isinstance(group, Mapping) and _is_code(group.get("name")):
            overrides.append(f"{key}=custom")
        # What a loader holds may be its clients' data, of which no digest is shown; the key of the checkpoint notices others.
        plain = () if key.partition(".")[0] == "dataset" else (str, int, float, tuple, type(None))
        overrides += as_overrides({key: group}, path_of=partial(_path_of, lent, plain))
    return overrides, lent


def _is_code(value: object) -> bool:
    return callable(value) or isinstance(value, Dataset | Family)


def _path_of(lent: dict[str, Any], plain: tuple[type, ...], value: object) -> str:
    """Return the path of an object; one that no import finds is put into `lent`. Its digest is of what it holds of types `plain`."""
    if isinstance(value, nn.Module):
        raise SettingError(
            f"model is a {type(value).__name__} that is made already; give its class, or a function of input_shape and classes "
            "that makes it."
        )
    if isinstance(value, str | os.PathLike | np.bool_):
        return str(value)
    if not _is_code(value):
        raise SettingError(
            f"No setting is an object of type {type(value).__name__}; arrays are a dataset as dataset=from_arrays(x, y, user)."
        )
    path = _import_path(value)
    if path is None:
        name = getattr(value, "__name__", type(value).__name__).strip("<>")  # "lambda" of a lambda
        parts = _of_dataset(value) if isinstance(value, Dataset) else _of_code(value, plain)
        path = f"{LENT}{hashlib.sha256(b''.join(parts)).hexdigest()[:12]}:{name}"
        lent[path] = partial(lambda loaded: loaded, value) if isinstance(value, Dataset) else value
    return path


def _import_path(value: object) -> str | None:
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
    held = sys.modules.get(str(module))
    is_there = getattr(held, "__spec__", None) is not None and getattr(held, name, None) is value
    return f"{module}:{name}" if is_there and module != "__main__" else None


def _of_dataset(dataset: Dataset) -> Iterator[bytes]:
    yield repr((dataset.name, len(dataset.clients), dataset.public, dataset.unit, dataset.uncovered)).encode()
    yield digest_arrays({"x": dataset.test.x[:], "y": dataset.test.y[:]}).encode()


def _of_code(value: Any, plain: tuple[type, ...]) -> Iterator[bytes]:
    """Yield the source of a function, or of the functions of a class or of an object, and what they hold of types `plain`."""
    if isinstance(value, partial):
        yield repr(
            [item for item in (*value.args, *value.keywords.items()) if isinstance(item, plain)]
        ).encode()
        value = value.func
    yield repr(getattr(value, "__bases__", ())).encode()
    for name, item in _parts(value).items():
        function = getattr(item, "__func__", item)  # of a static or a class method
        if isinstance(item, plain) and name != "__firstlineno__":
            yield repr((name, item)).encode()
        elif inspect.isfunction(function):
            closed = inspect.getclosurevars(function).nonlocals
            yield repr({key: held for key, held in closed.items() if isinstance(held, plain)}).encode()
            try:
                yield inspect.cleandoc(inspect.getsource(function)).encode()
            except (OSError, TypeError):  # typed at a prompt that keeps no source
                yield function.__code__.co_code


def _parts(value: Any) -> Mapping[str, Any]:
    """Return what a class or an object consists of, by name; a function is its own only part, a method one of its object's."""
    if inspect.ismethod(value):
        return {**_parts(value.__self__), "": value}
    if inspect.isroutine(value):
        return {"": value}
    if inspect.isclass(value) or isinstance(value, Family):  # whose own class is of this software
        return vars(value)
    return {**vars(type(value)), **getattr(value, "__dict__", {})}

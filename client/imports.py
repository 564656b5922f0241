"""Code from elsewhere: packages that only some data sets need, and a user's own loaders and models."""

import importlib
import inspect
from collections.abc import Callable, Collection, Mapping
from types import ModuleType
from typing import Any

from fedmf.errors import SettingError


def need(module: str, purpose: str, extra: str = "data") -> ModuleType:
    """Return the imported `module`, or raise `SettingError`, which names the `extra` that installs it.

    >>> need("math", "nothing").sqrt(4.0)
    2.0
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise SettingError(
            f"{purpose} needs the package {(error.name or module).split('.')[0]}, which is not installed; "
            f"install it with: pip install 'fedmf[{extra}]'."
        ) from error


def import_path(path: str, argument: str) -> Any:
    """Return the object at `package.module:attribute`, or raise `SettingError` about `argument`.

    >>> import_path("math:pi", "constant")
    3.141592653589793
    """
    module, _, attribute = path.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise SettingError(
            f"{argument} is {path!r}, which cannot be imported ({error}); it must be package.module:name."
        ) from error


def check_takes(
    function: Callable[..., Any], given: Mapping[str, Any], *, who: str, own: Collection[str] = ()
) -> None:
    """Raise `SettingError` if `given` holds an argument that `function` does not take.

    `who` names the function in the message; `own` are parameters that its user does not set.

    >>> check_takes(lambda size: size, {"size": 3}, who="mine:load")
    """
    parameters = inspect.signature(function).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    known = [key for key in parameters if key not in own]
    for key, value in given.items():
        if key not in known:
            takes = ", ".join(known) or "no settings"
            raise SettingError(f"{key} is {value!r}, but {who} does not use it; it takes {takes}.")

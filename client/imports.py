"""Code from elsewhere: packages that only some data sets need, and a user's own loaders and models.

Importing a module runs it, so that a path must come from the user, never from a file of somebody else's
(`experiments.settings.recorded.refuse_code`). What is found there is called only if it says that it makes what is
wanted: `os:system` is importable too, and would be given the user's settings.
"""

import importlib
import inspect
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from client.reasons import reason
from fedmf.errors import DataError, FedmfError, SettingError


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


@contextmanager
def own_code(who: str) -> Iterator[None]:
    """Let whatever a user's own code raises inside, an exit too, be raised as a `DataError`: what, and where.

    The error itself stays the cause, with its traceback.

    >>> with own_code("mine:load"):
    ...     raise SystemExit(3)
    Traceback (most recent call last):
    fedmf.errors.DataError: mine:load raised SystemExit: 3; it must not.
    """
    try:
        yield
    except FedmfError:
        raise
    except (Exception, SystemExit) as error:
        raise DataError(f"{who} raised {reason(error)}; it must not.") from error


@contextmanager
def looking_here() -> Iterator[None]:
    """Let imports inside the block find modules in the current directory too, after everything else on the path.

    `fedmf` has no current directory on its path: libraries import what they can do without, and would run a file of that
    name. So a module of the user's is looked for there while it is imported, with what it imports then, and at no other time.
    """
    if "" in sys.path:
        yield
        return
    sys.path.append("")
    try:
        yield
    finally:
        sys.path.remove("")


def import_path(path: str, argument: str) -> Any:
    """Return the object at `package.module:attribute`, or raise `SettingError` about `argument`.

    The module may lie in the current directory (`looking_here`).

    >>> import_path("math:pi", "constant")
    3.141592653589793
    """
    module, _, attribute = path.partition(":")
    if module.startswith("."):
        raise SettingError(f"{argument} is {path!r}, which is relative; it must be package.module:name.")
    try:
        with looking_here():
            return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise SettingError(
            f"{argument} is {path!r}, which cannot be imported ({error}); it must be package.module:name."
        ) from error
    except (Exception, SystemExit) as error:  # whatever a user's own module does when it is imported
        raise SettingError(
            f"{argument} is {path!r}, whose module raised {reason(error)}; "
            "it must be package.module:name of a module that can be imported."
        ) from error


def import_maker(path: str, argument: str, kind: type) -> Callable[..., Any]:
    """Return the object at `package.module:attribute`, which must say that it makes a `kind`.

    Raises `SettingError` about `argument`, before anything is called, for anything else; see `makes`.

    >>> import_maker("fractions:Fraction", "number", object)
    <class 'fractions.Fraction'>
    """
    found = import_path(path, argument)
    if not makes(found, kind):
        raise SettingError(
            f"{argument} is {path!r}, which does not say that it makes a {kind.__name__}, so that it was not called; "
            f"annotate the function with `-> {kind.__name__}`, or name a class of {kind.__name__}s."
        )
    return found  # type: ignore[no-any-return]


def makes(found: object, kind: type) -> bool:
    """Say whether `found` is a class of `kind`, or something to call whose annotation promises one.

    >>> makes(int, int), makes(print, int), makes(lambda: 3, int)
    (True, False, False)
    """
    if inspect.isclass(found):
        return issubclass(found, kind)
    try:
        promised = inspect.signature(found, eval_str=True).return_annotation  # type: ignore[arg-type]
    except Exception:  # not to be called, or annotations that cannot be read: whatever their text raises
        return False
    return inspect.isclass(promised) and issubclass(promised, kind)


def check_takes(
    function: Callable[..., Any], given: Mapping[str, Any], *, who: str, own: Collection[str] = ()
) -> None:
    """Raise `SettingError` if `given` holds an argument that `function` does not take, or if it does not take `own`.

    `who` names the function in the message; `own` are parameters that it is given in any case.

    >>> check_takes(lambda size: size, {"size": 3}, who="mine:load")
    """
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError) as error:
        raise SettingError(f"{who} cannot be called: {error}.") from error
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    if lacking := [key for key in own if key not in parameters]:
        raise SettingError(f"{who} does not take {', '.join(lacking)}, which it is given; add them.")
    known = [key for key in parameters if key not in own]
    for key, value in given.items():
        if key not in known:
            takes = ", ".join(known) or "no settings"
            raise SettingError(f"{key} is {value!r}, but {who} does not use it; it takes {takes}.")

"""Code from elsewhere: optional packages, a user's own loaders, models and loops, and a sentence for what they raise.

Importing a module runs it, so that a path must come from the user, never from a file of another person
(`experiments.settings.recorded.refuse_code`). What is found there is called only if it states that it makes what is
wanted: `os:system` is importable too, and would be given the user's settings.
"""

import importlib
import inspect
import sys
import sysconfig
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any, TypeVar

from fedmf.errors import DataError, FedmfError, SettingError

T = TypeVar("T")

_LONGEST = 300  # characters of a message: torch's can hold whole tensors
# Packages whose frames are not where a user's mistake is.
_NOT_THEIRS = {"fedmf", "client", "server", "experiments", "torch", "numpy", "flwr"} | sys.stdlib_module_names
_LIBRARIES = tuple(sysconfig.get_paths()[kind] for kind in ("purelib", "platlib"))


def reason(error: BaseException) -> str:
    """Return the type and message of `error` on one line, with file and line where the user's own code raised it.

    An error of ours is its message alone. Whatever the message holds is printable text afterwards.

    >>> reason(ValueError("a\\nb"))
    'ValueError: a b'
    """
    if isinstance(error, FedmfError):
        return _message(error)
    frames = [
        (frame.f_code.co_filename, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if str(frame.f_globals.get("__name__", "")).partition(".")[0] not in _NOT_THEIRS
    ]
    # The user's own code may be installed like a library: it is named where no other is.
    places = [place for place in frames if not place[0].startswith(_LIBRARIES)] or frames
    return one_line(error) + (" ({}:{})".format(*places[-1]) if places else "")


def one_line(error: BaseException) -> str:
    """Return the type and message of `error` on one line of printable text, without a full stop, for a sentence of ours.

    >>> one_line(ValueError("a\\nb.")), one_line(KeyError())
    ('ValueError: a b', 'KeyError')
    """
    return f"{type(error).__name__}: {_message(error).removesuffix('.')}".removesuffix(": ")


def _message(error: BaseException) -> str:
    """Return the text of `error` on one line; nothing where even that raises."""
    try:
        text = str(error)
    except (Exception, SystemExit):
        return ""
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..."


def calling(failed: str, function: Callable[..., T], /, *arguments: object, **more: object) -> T:
    """Return what `function` returns; what it raises becomes a sentence that begins with `failed`."""
    try:
        return function(*arguments, **more)
    except FedmfError:
        raise
    except (Exception, SystemExit) as error:
        raise SettingError(f"{failed}: {reason(error)}.") from error


@contextmanager
def own_code(who: str) -> Iterator[None]:
    """Raise whatever a user's own code raises in the block, an exit too, as a `DataError` that states what and where.

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

    The module may be in the current directory (`looking_here`).

    >>> import_path("math:pi", "constant")
    3.141592653589793
    """
    module, _, attribute = path.partition(":")
    try:
        with looking_here():
            return getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as error:  # whatever a user's own module does when it is imported
        raise SettingError(
            f"{argument} is {path!r}, which cannot be imported ({reason(error)}); it must be package.module:name."
        ) from error


def import_maker(path: str, argument: str, kind: type) -> Callable[..., Any]:
    """Return the object at `package.module:attribute`, which must state that it makes a `kind`.

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
    """Return whether `found` is a class of `kind`, or something to call whose annotation promises one.

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
    parameters = calling(f"{who} cannot be called", inspect.signature, function).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    if lacking := [key for key in own if key not in parameters]:
        raise SettingError(f"{who} does not take {', '.join(lacking)}, which it is given; add them.")
    known = [key for key in parameters if key not in own]
    if unknown := [key for key in given if key not in known]:
        key, takes = unknown[0], ", ".join(known) or "no settings"
        raise SettingError(f"{key} is {given[key]!r}, but {who} does not use it; it takes {takes}.")

"""Code from elsewhere: optional packages, a user's own loaders, models and loops, and a sentence for what they raise.

Importing a module runs it, so that a path must come from the user, never from a file of another person
(`experiments.settings.recorded.check_code_is_named`). What is found there is called only if it states that it makes what is
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

from fedmf.errors import FedmfError, SettingError, one_line

T = TypeVar("T")

LENT = "python-"  # how the path of an object begins that is in no module
lent: dict[str, Any] = {}  # such objects, by their paths, while the Python program that made them lends them
# Packages whose frames are not where a user's mistake is.
_NOT_THEIRS = {"fedmf", "client", "server", "experiments", "torch", "numpy", "flwr"} | sys.stdlib_module_names
_LIBRARIES = tuple(sysconfig.get_paths()[kind] for kind in ("purelib", "platlib"))


def reason(error: BaseException) -> str:
    """Return `one_line` of `error`, with file and line where the user's own code raised it; an error of ours has none.

    >>> reason(ValueError("a\\nb"))
    'ValueError: a b'
    """
    line = one_line(error)
    if isinstance(error, FedmfError):
        return line
    frames = [
        (frame.f_code.co_filename, number)
        for frame, number in traceback.walk_tb(error.__traceback__)
        if str(frame.f_globals.get("__name__", "")).partition(".")[0] not in _NOT_THEIRS
    ]
    # The user's own code may be installed like a library: it is named where no other is.
    places = [place for place in frames if not place[0].startswith(_LIBRARIES)] or frames
    return line + (" ({}:{})".format(*places[-1]) if places else "")


@contextmanager
def own_code(failed: str, kind: type[FedmfError] = SettingError) -> Iterator[None]:
    """Raise whatever a user's own code raises in the block, an exit too, as a `kind` that begins with `failed`.

    The error itself stays the cause, with its traceback.

    >>> with own_code("mine:load failed"):
    ...     raise SystemExit(3)
    Traceback (most recent call last):
    fedmf.errors.SettingError: mine:load failed: SystemExit: 3.
    """
    try:
        yield
    except FedmfError:
        raise
    except (Exception, SystemExit) as error:
        raise kind(f"{failed}: {reason(error)}.") from error


def calling(failed: str, function: Callable[..., T], /, *arguments: object, **more: object) -> T:
    """Return what `function` returns, called as `own_code`."""
    with own_code(failed):
        return function(*arguments, **more)


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


@contextmanager
def lending(objects: Mapping[str, Any]) -> Iterator[None]:
    """Let `import_path` find `objects` by their paths, each `LENT` and a digest, inside the block.

    What the program itself gives is called without a promise of what it makes.
    """
    before = dict(lent)
    lent.update(objects)
    try:
        yield
    finally:
        lent.clear()
        lent.update(before)


def import_path(path: str, argument: str) -> Any:
    """Return the object at `package.module:attribute`, or raise `SettingError` about `argument`.

    The module may be in the current directory (`looking_here`).

    >>> import_path("math:pi", "constant")
    3.141592653589793
    """
    if path in lent:
        return lent[path]
    module, _, attribute = path.partition(":")
    with own_code(f"{argument} is {path!r}, which cannot be imported as package.module:name"), looking_here():
        return getattr(importlib.import_module(module), attribute)


def import_maker(path: str, argument: str, kind: type) -> Callable[..., Any]:
    """Return the object at `package.module:attribute`, which must state that it makes a `kind`.

    Raises `SettingError` about `argument`, before anything is called, for anything else; see `makes`.

    >>> import_maker("fractions:Fraction", "number", object)
    <class 'fractions.Fraction'>
    """
    found = import_path(path, argument)
    if path not in lent and not makes(found, kind):
        raise SettingError(
            f"{argument} is {path!r}, which promises no {kind.__name__}, so that it was not called; "
            f"annotate the function with `-> {kind.__name__}`, or name a subclass of {kind.__name__}."
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
    if not parameters.keys() >= {*own}:
        raise SettingError(
            f"{who} must take {', '.join(own)}, which it is given; it takes {', '.join(parameters) or 'no argument'}."
        )
    known = [key for key in parameters if key not in own]
    for key, value in given.items():
        if key not in known:
            takes = ", ".join(known) or "no settings"
            raise SettingError(f"{key} is {value!r}, but {who} does not use it; it takes {takes}.")

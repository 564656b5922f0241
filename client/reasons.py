"""Says in one line what an exception was, and where in the user's own code it came from, or raises it as a sentence."""

import os
import sys
import sysconfig
import traceback
from collections.abc import Callable
from types import FrameType
from typing import TypeVar

from fedmf.errors import FedmfError, SettingError

T = TypeVar("T")

_LONGEST = 300  # characters of a message: torch's can hold whole tensors
# Whose frames are not where a user's mistake stands.
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
    text = one_line(error)
    try:
        place = _place(error)
    except OSError:  # no working directory any more
        place = ""
    return f"{text} ({place})" if place else text


def one_line(error: BaseException) -> str:
    """Return the type and message of `error` on one line of printable text, without a full stop, for a sentence of ours.

    >>> one_line(ValueError("a\\nb.")), one_line(KeyError())
    ('ValueError: a b', 'KeyError')
    """
    said = _message(error).removesuffix(".")
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def calling(failed: str, function: Callable[..., T], *arguments: object) -> T:
    """Return what `function` returns; what it raises becomes a sentence that begins with `failed`."""
    try:
        return function(*arguments)
    except FedmfError:
        raise
    except (Exception, SystemExit) as error:
        raise SettingError(f"{failed}: {reason(error)}.") from error


def _message(error: BaseException) -> str:
    """Return what `error` says; nothing where saying it fails too."""
    try:
        text = str(error)
    except (Exception, SystemExit):
        return ""
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..."


def _place(error: BaseException) -> str:
    """Return file:line of the innermost frame that is in nobody's library, or nothing.

    Code of the user's own that is installed like a library is named where no other is.
    """
    found = [
        (frame.f_code.co_filename, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if _is_theirs(frame)
    ]
    places = [place for place in found if not place[0].startswith(_LIBRARIES)] or found
    if not places:
        return ""
    path, line = places[-1]
    inside = os.path.abspath(path).startswith(os.getcwd() + os.sep)
    return f"{os.path.relpath(path) if inside else path}:{line}"


def _is_theirs(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] not in _NOT_THEIRS

"""Whether numba (the extra `fast`) can be used, and how loops are compiled with it: one answer for all of fedmf.

Where numba is there, the loops of a run (`fedmf.kernels`, `fedmf.updates.kernels`) are the compiled ones, however short
a vector is. Those of the designs are used where they are worth their loading: `fedmf.mechanisms.compiled`.
"""

import logging
import signal
import threading
from collections.abc import Callable
from functools import cache, partial
from importlib import import_module
from types import ModuleType
from typing import Any, cast

_log = logging.getLogger(__name__)


@cache
def available() -> bool:
    """Return whether numba is there and compiles, which is known once it is loaded: that takes a second."""
    try:
        import numba
    except Exception as error:  # OSError without llvmlite's library, or what another package raises
        # Where it is there, something that it needs is not, such as a numpy that it knows.
        if not isinstance(error, ImportError) or error.name != "numba":
            _log.warning("numba is installed, but cannot be used (%s); numpy is used in its place", error)
        return False
    if numba.config.DISABLE_JIT:  # type: ignore[attr-defined]
        _log.warning("numba compiles nothing, because NUMBA_DISABLE_JIT is set; numpy is used in its place")
        return False
    return True


@cache  # asked for several times a reply, and what an import costs each time counts there
def loops(module: str) -> ModuleType | None:
    """Return the module of that name, whose loops are compiled; None without numba: its caller then takes numpy."""
    return import_module(module) if available() else None


def version() -> str | None:
    """Return the version of the numba that compiles, None where there is none that can be used, installed or not."""
    if not available():
        return None
    import numba

    return str(numba.__version__)


def compiled(function: Callable[..., Any], **settings: Any) -> Callable[..., Any]:
    """Return `function` compiled, and kept on disk where there is a place for it; as it is without numba.

    `settings` are those of `numba.njit`.
    """
    if not available():
        return function
    from numba import njit

    result: Any = njit(**settings)(function)
    result.compile = partial(_uninterrupted, result.compile)
    if (keep := _keeper()) is not None:
        keep(result)
    return cast("Callable[..., Any]", result)


def _uninterrupted(compile_one: Callable[..., Any], signature: object) -> Any:
    """Compile for a signature; Ctrl-C, SIGTERM and SIGHUP come after it: raised in what LLVM calls back, they would be lost."""
    if threading.current_thread() is not threading.main_thread():
        return compile_one(signature)  # signals come to the main thread alone
    came: list[int] = []
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    of_python = {number: handler for number, handler in handlers.items() if handler is not None}
    try:
        for number in of_python:
            signal.signal(number, lambda arrived, frame: came.append(arrived))
        return compile_one(signature)
    finally:
        for number, handler in of_python.items():
            signal.signal(number, handler)
        for arrived in came:
            signal.raise_signal(arrived)


@cache
def _keeper() -> Callable[[Any], None] | None:
    """Return what keeps compiled code on disk, None where this numba has not the class that it builds upon."""
    try:
        from fedmf.compiled_files import keep
    except Exception as error:  # numba promises nobody that its next version has it
        _log.warning(
            "compiled code is not kept on disk: numba %s is not known to fedmf (%s)", version(), error
        )
        return None
    return keep

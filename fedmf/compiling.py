"""Whether numba (the extra `fast`) can be used: one answer for all of fedmf.

Where it can, the loops of `fedmf.fast` are used, however short a vector is. Else numpy computes.
"""

import logging
from functools import cache
from importlib import import_module
from types import ModuleType

_log = logging.getLogger(__name__)


@cache  # asked for several times a reply
def loops() -> ModuleType | None:
    """Return `fedmf.fast`, None without numba. The first call loads numba, which takes a second."""
    try:
        import numba
    except Exception as error:  # OSError without llvmlite's library, or what another package raises
        # Where it is there, something that it needs is not, such as a numpy that it knows.
        if not isinstance(error, ImportError) or error.name != "numba":
            _log.warning("numba is installed, but cannot be used (%s); numpy is used in its place", error)
        return None
    if numba.config.DISABLE_JIT:  # type: ignore[attr-defined]
        _log.warning("numba compiles nothing, because NUMBA_DISABLE_JIT is set; numpy is used in its place")
        return None
    return import_module("fedmf.fast")


def version() -> str | None:
    """Return the version of the numba that compiles, None where no numba can be used, installed or not."""
    return None if loops() is None else str(import_module("numba").__version__)

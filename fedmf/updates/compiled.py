"""Whether the loops over one client's update run compiled with numba (the extra `fast`), or in plain numpy.

Compiled masks are the same bit for bit; a compiled rotation agrees to rounding. Which of the two runs depends on the
number of coordinates and on whether numba can be imported, on nothing else: the same process gives the same bits again.
"""

import logging
from functools import cache
from types import ModuleType

_log = logging.getLogger(__name__)

# Coordinates from which compiled code is used: below, numpy is done within microseconds, and importing numba takes a second.
WORTHWHILE = 1 << 15


def kernels(coordinates: int) -> ModuleType | None:
    """Return the compiled functions, `fedmf.updates.kernels`, or None where numpy is to be used."""
    return _loaded() if coordinates >= WORTHWHILE else None


def available() -> bool:
    """Return whether numba is there and works."""
    return _loaded() is not None


@cache
def _loaded() -> ModuleType | None:
    try:
        import numba  # noqa: F401
    except ImportError as error:
        if error.name != "numba":  # it is there, but not what it needs, such as a numpy that it knows
            _log.warning("numba is installed, but cannot be used (%s); numpy is used in its place", error)
        return None
    from fedmf.updates import kernels as compiled

    return compiled

"""Whether the loops over one client's update run compiled with numba (the extra `fast`), or in plain numpy.

Compiled masks are the same bit for bit; a compiled rotation agrees to rounding. Which of the two runs depends on the
number of coordinates and on whether numba can be imported, on nothing else: the same process gives the same bits again.
"""

from types import ModuleType

from fedmf.compiling import available

# Coordinates from which compiled code is used: below, numpy is done within microseconds, and importing numba takes a second.
WORTHWHILE = 1 << 15


def kernels(coordinates: int) -> ModuleType | None:
    """Return the compiled functions, `fedmf.updates.kernels`, or None where numpy is to be used."""
    if coordinates < WORTHWHILE or not available():
        return None
    from fedmf.updates import kernels as compiled

    return compiled

"""Compiled loops over one client's update, taken only through `fedmf.updates.compiled`, which knows whether numba is there.
Without it this module can still be imported, and its functions are plain Python: right, but slow.

Each does what a function in plain numpy does, which is named in its docstring. Nothing is compiled with `fastmath`: the
order of all additions is the one that is written here.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]


def _compile(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` compiled, and kept on disk where there is a place for it; as it is where numba is missing."""
    try:
        from numba import njit
    except ImportError:
        return function
    try:
        compiled: Callable[..., Any] = njit(cache=True)(function)
    except RuntimeError:  # neither beside the code nor in the user's cache may anything be written
        compiled = njit(function)
    return compiled


@_compile
def positions(
    words: Words,
    guide: npt.NDArray[np.int16],
    table: Words,
    position: int,
    dimension: int,
    kept: npt.NDArray[np.int64],
) -> tuple[int, int]:
    """Write the coordinates that `words` keep into `kept`; return the last one looked at, and how many were kept.

    The coordinates after `position` and below `dimension`. What `masks._positions_in_numpy` does.
    """
    longest, count = len(table), 0
    for word in words:
        gap = int(guide[word >> np.uint64(48)])
        if gap < 0:  # several gaps share the leading bits: this is less the first of them
            gap = -gap
            while gap <= longest and table[gap - 1] <= word:
                gap += 1
        position += gap if gap <= longest else longest
        if position >= dimension:
            break
        if gap <= longest:
            kept[count] = position
            count += 1
    return position, count

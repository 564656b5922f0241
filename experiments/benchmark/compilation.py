"""Whether a piece of code compiled anything under numba, or loaded it compiled from disk: such a turn counts for nothing."""

import importlib
import sys
from collections.abc import Callable

_LOCK = "numba:compiler_lock"  # the event of whatever numba compiles or loads


def compiled_anything(action: Callable[[], object]) -> bool:
    """Run `action` and return whether numba was loaded, or compiled or loaded a function, while it ran."""
    if "numba" not in sys.modules:
        action()
        return "numba" in sys.modules
    event = importlib.import_module("numba.core.event")
    with event.install_recorder(_LOCK) as recorder:
        action()
    return bool(recorder.buffer)

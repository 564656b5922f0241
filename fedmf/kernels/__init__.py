"""Loops compiled with numba where it is installed (the extra `fast`), each equal bit for bit to its form in numpy.

`kernel(NAME, elements)` is None without numba, and until a process has done enough for numba to pay: the caller then
takes its own form in numpy. As both give the same bits, a run may change between them at any point, and may be
resumed with or without numba. (The loops of the designs, which agree to rounding only, are `fedmf.mechanisms.compiled`.)
"""

from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any

from fedmf.compiling import available

# Numbers handled in numpy before numba is loaded: that costs a second, and so much is about what they would have saved.
PAYS = 1 << 28

_handled = 0


def kernel(name: str, elements: int) -> Callable[..., Any] | None:
    """Return the compiled function `name` of `loops`, or None where numpy is to handle these `elements` numbers."""
    global _handled  # it decides how long a result takes, never what it is
    _handled += elements
    if _handled < PAYS or not available():
        return None
    function: Callable[..., Any] = getattr(_loops(), name)
    return function


@cache  # a kernel is asked for several times a reply, and what an import costs each time counts there
def _loops() -> ModuleType:
    from fedmf.kernels import loops

    return loops


def load() -> None:
    """Use compiled loops from now on where numba is there, as a process does once it has done enough."""
    global _handled
    _handled = max(_handled, PAYS)

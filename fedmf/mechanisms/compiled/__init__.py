"""The inner loops compiled with numba, used where numba can be imported (the extra `fast`); never needed.

`kernel(NAME, T)` is None without numba, and for so few rounds that numpy is done before numba is loaded: the
caller then takes its own path in plain numpy. The two agree to rounding. Noise rows are never computed here:
a stream gives the same bits with and without numba.
"""

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any

# Rounds from which a kernel pays: loading numba costs a second, compiling at the first use of all ten more.
WORTHWHILE = {
    "diagonal": 512,
    "filters": 8192,
    "innovations": 8192,
    "observe": 8192,
    "reach": 8192,
    "column_norms": 8192,
}


@cache
def available() -> bool:
    """Return whether numba can be imported."""
    return find_spec("numba") is not None


def kernel(name: str, rounds: int) -> Callable[..., Any] | None:
    """Return the compiled function `name` of `kernels`, or None where numpy is to be used."""
    if rounds < WORTHWHILE[name] or not available():
        return None
    from fedmf.mechanisms.compiled import kernels

    function: Callable[..., Any] = getattr(kernels, name)
    return function

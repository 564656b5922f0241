"""Loops compiled with numba where it is installed (the extra `fast`), each equal bit for bit to its form in numpy.

As both give the same bits, a run may change between them at any point, and may be resumed with or without numba. (The
loops of the designs, which agree to rounding only, are `fedmf.mechanisms.compiled`.)
"""

from collections.abc import Callable
from typing import Any

from fedmf import compiling


def kernel(name: str) -> Callable[..., Any] | None:
    """Return the compiled function `name` of `fedmf.kernels.loops`, None without numba."""
    compiled = compiling.loops("fedmf.kernels.loops")
    return None if compiled is None else getattr(compiled, name)

"""The two forms of a run's loops: numpy, as where numba is missing, and compiled."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest

from fedmf import compiling

Result = TypeVar("Result")

needs_numba = pytest.mark.skipif(
    compiling.loops() is None, reason="numba, the extra fast, is not installed or compiles nothing"
)


@contextmanager
def without_numba() -> Iterator[None]:
    """Let fedmf find no numba."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "numba", None)  # installed, and cannot be imported
        compiling.loops.cache_clear()
        try:
            yield
        finally:
            compiling.loops.cache_clear()


def both_forms(run: Callable[[], Result]) -> tuple[Result, Result]:
    """Return what `run` gives in numpy, and compiled."""
    with without_numba():
        plain = run()
    return plain, run()

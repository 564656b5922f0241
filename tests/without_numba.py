"""The two forms of a run's loops: numpy, as where numba is missing, and compiled."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TypeVar

import pytest

from fedmf import compiling

Result = TypeVar("Result")

needs_numba = pytest.mark.skipif(
    not compiling.available(), reason="numba, the extra fast, is not installed or compiles nothing"
)


@contextmanager
def without_numba() -> Iterator[None]:
    """Let fedmf find no numba."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiling, "available", lambda: False)
        compiling.loops.cache_clear()
        try:
            yield
        finally:
            compiling.loops.cache_clear()


def both_forms(run: Callable[[], Result]) -> tuple[Result, Result]:
    """Return what `run` gives in numpy, and compiled; loops of `fedmf.kernels` as plain Python without a compiler."""
    with without_numba():
        plain = run()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiling, "loops", import_module)
        return plain, run()

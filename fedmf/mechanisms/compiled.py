"""The inner loops compiled with numba, used where numba can be imported (the extra `fast`); never needed.

Each function has a twin in plain numpy beside its caller, and the two agree to rounding.
"""

from functools import cache
from importlib.util import find_spec
from typing import Any

from fedmf.mechanisms.arrays import Float64


@cache
def available() -> bool:
    """Whether numba can be imported."""
    return find_spec("numba") is not None


def diagonal(v: Float64, eta: Float64, beta: float, shifts: Float64, weights: Float64) -> Float64:
    """Return what `smoother.diagonal_by_filters` returns."""
    result: Float64 = _kernels().diagonal(v, eta, beta, shifts, weights)
    return result


def _kernels() -> Any:
    """Import the kernels at their first use: importing numba takes longer than most solves."""
    from fedmf.mechanisms import kernels

    return kernels

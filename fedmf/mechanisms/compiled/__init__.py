"""The inner loops compiled with numba, used where numba works (the extra `fast`); never needed.

`kernel(NAME, span)` is None without numba, and for runs of so few rounds that numpy is done before numba is loaded:
the caller then takes its own path in plain numpy. The span of a workload counts the rounds of later epochs too, whose
designs follow: what is decided depends on the workload alone, so that the same run meets the same tables. The two agree to rounding. Noise rows are never computed here:
a stream gives the same bits with and without numba.
"""

from collections.abc import Callable
from typing import Any

from fedmf.compiling import available

# Rounds from which a kernel pays: loading numba costs a second, compiling at the first use of all seven more five, and at
# 2^15 rounds numpy needs as long (docs/performance.md). Only the diagonal for momentum is that slow in numpy from a few hundred
# rounds on, evaluated a hundred times a design.
_LONG = 2**15
WORTHWHILE = {
    "diagonal": 512,
    "tridiagonal": _LONG,
    "filters": _LONG,
    "innovations": _LONG,
    "observe": _LONG,
    "reach": _LONG,
    "column_norms": _LONG,
    "output_variances": _LONG,
}


def kernel(name: str, span: int) -> Callable[..., Any] | None:
    """Return the compiled function `name` of `kernels`, or None where numpy is to be used."""
    if span < WORTHWHILE[name] or not available():
        return None
    from fedmf.mechanisms.compiled import kernels

    function: Callable[..., Any] = getattr(kernels, name)
    return function

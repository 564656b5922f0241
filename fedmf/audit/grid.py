"""Noise that was rounded to few digits: the digits that it lacks show what it is added to.

A number of b significant bits is a whole multiple of its unit in the last place, 2^(e + 1 - b) for one in [2^e, 2^(e + 1)).
Of numbers with a smooth density a quarter lies within an eighth of a unit of such multiples; of rounded ones all do.
Counted at 8 bits (bfloat16) and 11 (float16), against `CLOSE` in place of a quarter: numbers that
float32 or the arithmetic of a pipeline rounded to 1/32 of a unit, and no coarser, are at most 17/64 of the time so near.
"""

from collections.abc import Iterator

import numpy as np
from scipy.special import bdtrc

from fedmf.mechanisms.arrays import Float64

BITS = (8, 11)
CLOSE = 0.28
_FINER = 64  # units are this many times the error of a number, or it is not counted


def grid_tests(name: str, values: Float64, error: Float64 | float) -> Iterator[tuple[float, str]]:
    """Yield the p-value of how many values, each known to `error`, are whole at so many bits; conservative, one-sided.

    Counted are those that are near a whole number of units wherever they lie within their error.
    """
    _, exponents = np.frexp(values)  # |value| in [2^(exponent - 1), 2^exponent)
    for bits in BITS:
        unit = np.ldexp(1.0, exponents - bits)
        doubt = np.maximum(error, np.abs(values) * 2.0**-23)
        counted = (unit >= _FINER * doubt) & (values != 0)
        scaled, doubt = values[counted] / unit[counted], doubt[counted] / unit[counted]
        near = int(np.count_nonzero(np.abs(scaled - np.rint(scaled)) <= 1 / 8 - doubt))
        size = int(counted.sum())
        yield (float(bdtrc(near - 1, size, CLOSE)) if near else 1.0), f"{name} of {bits} bits"

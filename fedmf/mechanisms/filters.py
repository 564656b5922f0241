"""Recursions and convolutions as in scipy.signal, whose import takes longer than most commands need in all.

What a run with the default mechanism needs is computed here, bit for bit as there; the rest imports it at its first use,
and so does a process that has computed so much here that the import would have paid.
"""

from itertools import accumulate

import numpy as np

from fedmf.mechanisms.arrays import Float64

PAYS = 1 << 22
"""Numbers that a process filters here, at .1 us each, before it imports scipy.signal, which takes .7 s and then hardly anything."""

_handled = 0


def lfilter(
    numerator: list[float], denominator: list[float] | Float64, rows: Float64, axis: int = -1
) -> Float64:
    """Return `scipy.signal.lfilter`: the rows after the recursion numerator / denominator, same shape, float64."""
    global _handled  # it decides how long a result takes, never what it is
    _handled += rows.size
    if _handled <= PAYS and axis in (0, -rows.ndim):
        if list(numerator) == [1.0] and len(denominator) == 2 and denominator[0] == 1:
            return _recursion(-float(denominator[1]), rows)
        if len(numerator) == 2 and numerator[0] == 1 and list(denominator) == [1.0]:
            return _difference(float(numerator[1]), rows)
    from scipy.signal import lfilter as filtered

    result: Float64 = filtered(numerator, denominator, rows, axis=axis)
    return result


def fftconvolve(left: Float64, right: Float64) -> Float64:
    """Return `scipy.signal.fftconvolve` of two vectors: their whole convolution, float64."""
    from scipy.fft import irfft, next_fast_len, rfft

    length = len(left) + len(right) - 1
    fast = next_fast_len(length, real=True)
    result: Float64 = irfft(rfft(left, fast) * rfft(right, fast), fast)[:length]
    return result


def _recursion(beta: float, rows: Float64) -> Float64:
    """Return y with y_t = beta y_(t-1) + x_t along the first axis."""
    if rows.ndim == 1:
        # Python's floats round as C's doubles do, and cost a tenth of numpy's scalars.
        return np.array(list(accumulate(rows.tolist(), lambda last, x: beta * last + x)), np.float64)
    result = np.array(rows, np.float64)
    for step in range(1, len(result)):
        result[step] += beta * result[step - 1]
    return result


def _difference(weight: float, rows: Float64) -> Float64:
    """Return y with y_t = x_t + weight x_(t-1) along the first axis."""
    result = np.array(rows, np.float64)
    result[1:] += weight * rows[:-1]
    return result

"""Filters of scipy.signal, imported at their first use: importing it takes longer than most commands need in all."""

from fedmf.mechanisms.arrays import Float64


def lfilter(
    numerator: list[float], denominator: list[float] | Float64, rows: Float64, axis: int = -1
) -> Float64:
    """Return `scipy.signal.lfilter`: the rows after the recursion numerator / denominator, same shape, float64."""
    from scipy.signal import lfilter as filtered

    result: Float64 = filtered(numerator, denominator, rows, axis=axis)
    return result


def fftconvolve(left: Float64, right: Float64) -> Float64:
    """Return `scipy.signal.fftconvolve`: the whole convolution of two vectors, float64."""
    from scipy.signal import fftconvolve as convolved

    result: Float64 = convolved(left, right)
    return result

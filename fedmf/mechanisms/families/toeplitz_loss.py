"""The loss of a Toeplitz strategy matrix and its gradient, for families that optimise their coefficients.

For C with coefficients c, c_0 = 1, the sensitivity is ||c|| and B = A C^-1 has coefficients p, so that for a
constant learning rate  log L = log ||c||^2 + log sum_k (T - k) p_k^2. With q = p / c the derivative of p_k by
c_j is -q_{k-j}.
"""

import numpy as np

from fedmf.mechanisms import workload as workloads
from fedmf.mechanisms.arrays import Float64
from fedmf.mechanisms.filters import fftconvolve
from fedmf.mechanisms.workload import Workload


def constant_rate(workload: Workload) -> Workload:
    """Return the workload with learning rate 1: what Toeplitz coefficients are optimised for."""
    return Workload(workload.rounds, workload.momentum)


def log_loss(coefs: Float64, noising: Float64, workload: Workload) -> tuple[float, Float64]:
    """Return log L and its gradient by `coefs` (length at most T), given the T coefficients of C^-1.

    `workload` must have a constant learning rate.
    """
    rounds = workload.rounds
    decoder = workloads.apply(workload, noising)  # p, the coefficients of B
    counts = np.arange(rounds, 0, -1)  # T - k: how often coefficient k stands in B
    error = float(counts @ decoder**2)  # ||B||_F^2
    squared_sensitivity = float(coefs @ coefs)
    influence = _convolve(decoder, noising)[:rounds]  # q = p / c
    weighted = counts * decoder / error
    # sum_k (T - k) p_k q_{k-j} / ||B||_F^2 for every j
    correlation = _convolve(weighted[::-1], influence)[:rounds][::-1][: len(coefs)]
    gradient = 2 * (coefs / squared_sensitivity - correlation)
    return float(np.log(squared_sensitivity) + np.log(error)), gradient


def _convolve(left: Float64, right: Float64) -> Float64:
    result: Float64 = fftconvolve(left, right) if len(left) > 256 else np.convolve(left, right)
    return result

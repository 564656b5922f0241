"""The loss of a Toeplitz strategy matrix and its gradient, for families that optimise their coefficients.

For C with coefficients c, c_0 = 1, the sensitivity is ||c|| and B = A C^-1 has coefficients p, so that for a
constant learning rate

    log L = log ||c||^2 + log (sum_k (T - k) p_k^2 + later),
    later = c Var(y) + 2 beta b Cov(y, m) + beta^2 a Var(m) = sum_k (c p_k^2 + 2 beta b p_k u_k + beta^2 a u_k^2),

where a, b, c are those of the later rounds (`later_rounds`) and u the coefficients of M_beta C^-1, of which the
momentum m after the last round is made. With q = p / c and r = u / c, quotients of power series, the derivatives of
p_k and u_k by c_j are -q_{k-j} and -r_{k-j}.
"""

import numpy as np

from fedmf.mechanisms import workload as workloads
from fedmf.mechanisms.arrays import Float64
from fedmf.mechanisms.filters import fftconvolve, lfilter
from fedmf.mechanisms.later_rounds import NONE, later_rounds
from fedmf.mechanisms.workload import Workload


def constant_rate(workload: Workload) -> Workload:
    """Return the workload with learning rate 1 and as many later rounds: what Toeplitz coefficients are fitted to."""
    later = later_rounds(np.ones(int(workload.later.c)), workload.momentum) if workload.later.c else NONE
    return Workload(workload.rounds, workload.momentum, None, later)


def log_loss(coefs: Float64, noising: Float64, workload: Workload) -> tuple[float, Float64]:
    """Return log L and its gradient by `coefs` (length at most T), given the T coefficients of C^-1.

    `workload` must have a constant learning rate.
    """
    rounds = workload.rounds
    decoder = workloads.apply(workload, noising)  # p, the coefficients of B
    averaged = lfilter([1.0], [1.0, -workload.momentum], noising)  # u
    beta, later = workload.momentum, workload.later
    counts = np.arange(rounds, 0, -1) + later.c  # how often coefficient k stands in B, later rounds included
    # Half of the derivatives of the squared error by p and by u.
    by_decoder = counts * decoder + beta * later.b * averaged
    by_averaged = beta * later.b * decoder + beta**2 * later.a * averaged
    error = float(by_decoder @ decoder + by_averaged @ averaged)
    squared_sensitivity = float(coefs @ coefs)
    moved = _correlate(by_decoder, _convolve(decoder, noising)[:rounds], len(coefs))
    if later.a:
        moved = moved + _correlate(by_averaged, _convolve(averaged, noising)[:rounds], len(coefs))
    gradient = 2 * (coefs / squared_sensitivity - moved / error)
    return float(np.log(squared_sensitivity) + np.log(error)), gradient


def _correlate(weights: Float64, influence: Float64, count: int) -> Float64:
    """Return sum_k weights_k influence_{k-j} for j < `count`."""
    return _convolve(weights[::-1], influence)[: len(weights)][::-1][:count]


def _convolve(left: Float64, right: Float64) -> Float64:
    result: Float64 = fftconvolve(left, right) if len(left) > 256 else np.convolve(left, right)
    return result

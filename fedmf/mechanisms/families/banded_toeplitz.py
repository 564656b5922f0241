"""A Toeplitz C with few bands and optimised coefficients: the shape of the banded matrix mechanisms.

Source of the shape: Choquette-Choo et al., "(Amplified) banded matrix factorization" (NeurIPS 2023); McKenna,
"Scaling up the banded matrix factorization mechanism" (2024). Here for one participation. A baseline: at long
epochs its error stays far from the optimum.
"""

import numpy as np

from fedmf.checks import check_at_least
from fedmf.errors import SettingError
from fedmf.mechanisms.arrays import Float64
from fedmf.mechanisms.families.protocol import Family
from fedmf.mechanisms.families.sqrt_toeplitz import coefficients
from fedmf.mechanisms.families.toeplitz_loss import constant_rate, log_loss
from fedmf.mechanisms.fitted import Fitted
from fedmf.mechanisms.streams import toeplitz
from fedmf.mechanisms.streams.toeplitz import ToeplitzStream
from fedmf.mechanisms.workload import Workload

DEFAULT_BUFFERS = 8


def fit(workload: Workload, buffers: int | None = None) -> Fitted:
    """Return the coefficients of `buffers` + 1 bands (8 + 1 if None, at most T) with their cost.

    Optimised for a constant learning rate; the cost is that of the workload itself. Raises `SettingError` for
    fewer than 0 or more than T - 1 buffers.
    """
    if buffers is None:
        buffers = min(DEFAULT_BUFFERS, workload.rounds - 1)
    check_at_least("buffers", buffers, 0)
    if buffers >= workload.rounds:
        raise SettingError(f"buffers is {buffers}; it must be below the number of rounds, {workload.rounds}.")
    return toeplitz.rounded_with_cost(_optimise(constant_rate(workload), buffers), workload)


def _optimise(workload: Workload, buffers: int) -> Float64:
    """Return 1 and the best coefficients below it, from those of the square root."""
    if buffers == 0:
        return np.ones(1)
    start = coefficients(workload)[1 : buffers + 1]
    from scipy.optimize import minimize  # only these families search by it

    found = minimize(_objective, start, args=(workload,), jac=True, method="L-BFGS-B")
    return np.concatenate([[1.0], found.x])


def _objective(below: Float64, workload: Workload) -> tuple[float, Float64]:
    """Return log L and its gradient; infinite where C^-1 grows beyond what can be squared."""
    coefs = np.concatenate([[1.0], below])
    noising = toeplitz.inverse(coefs, workload.rounds)
    if not np.abs(noising).max() < 1e100:
        return np.inf, np.zeros_like(below)
    loss, gradient = log_loss(coefs, noising, workload)
    return loss, gradient[1:]


BANDED_TOEPLITZ = Family("banded_toeplitz", fit, ToeplitzStream, settings=("buffers",))

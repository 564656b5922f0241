"""The square-root factorization C = A^1/2 of a Toeplitz workload, whose stream keeps the whole history.

For prefix sums C = B has coefficients f(0) = 1, f(k) = (1 - 1/(2k)) f(k - 1), those of (1 - x)^-1/2; for
momentum those of (1 - x)^-1/2 (1 - beta x)^-1/2. With a learning-rate schedule C stays as for a constant rate
and B = A C^-1. Source: Henzinger, Upadhyay, Upadhyay, "Almost tight error bounds on differentially private
continual counting" (SODA 2023); Fichtenberger, Henzinger, Upadhyay (ICML 2023).
"""

import numpy as np

from fedmf.mechanisms.arrays import Float64
from fedmf.mechanisms.families.protocol import Family
from fedmf.mechanisms.fitted import Fitted
from fedmf.mechanisms.streams import toeplitz
from fedmf.mechanisms.streams.toeplitz import ToeplitzStream
from fedmf.mechanisms.workload import Workload


def coefficients(workload: Workload) -> Float64:
    """Return the first column of C, shape (T,).

    >>> coefficients(Workload(4))
    array([1.    , 0.5   , 0.375 , 0.3125])
    """
    steps = np.arange(1, workload.rounds)
    power = np.cumprod(np.concatenate([[1.0], 1 - 1 / (2 * steps)]))
    if workload.momentum == 0:
        return power
    return toeplitz.multiply(power, power * workload.momentum ** np.arange(workload.rounds), workload.rounds)


def fit(workload: Workload) -> Fitted:
    """Return the coefficients with their sensitivity and the row norms of B = A C^-1."""
    return toeplitz.rounded_with_cost(coefficients(workload), workload)


SQRT_TOEPLITZ = Family("sqrt_toeplitz", fit, ToeplitzStream)

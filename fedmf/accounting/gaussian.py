"""The exact privacy profile of one Gaussian, which is what a whole run costs at keep probability 1.

Balle and Wang 2018, Theorem 8: with mu = sensitivity / sigma the Gaussian mechanism is (epsilon, delta)-DP
exactly for

    delta(epsilon) = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu).

E epochs of the Gaussian matrix mechanism with restart, adaptive streams included, are one Gaussian with
mu^2 = E kappa_2^2 / sigma^2 (Denisov et al. 2022, Theorem 2.1), kappa_2 doubled under replacement.

    >>> round(gaussian_epsilon(1.0, 1e-5), 4)
    4.3772
"""

import math

import numpy as np
from scipy.optimize import brentq
from scipy.special import log_ndtr

from fedmf.checks import check_non_negative, check_open_unit
from fedmf.errors import SettingError


def gaussian_delta(epsilon: float, mu: float) -> float:
    """Return the exact delta of a Gaussian with signal-to-noise `mu` at `epsilon` (Balle, Wang 2018)."""
    check_non_negative("epsilon", epsilon)
    if not mu >= 0:
        raise SettingError(f"mu is {mu}; it must be 0 or above.")
    if mu == 0:
        return 0.0
    if math.isinf(mu):
        return 1.0
    first = float(log_ndtr(mu / 2 - epsilon / mu))
    second = epsilon + float(log_ndtr(-mu / 2 - epsilon / mu))
    # Rounding may put the second term an ulp above the first where both vanish.
    return math.exp(first) * -math.expm1(min(0.0, second - first))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return the exact epsilon, in nats, of a Gaussian with signal-to-noise `mu` at `delta`.

    0 where `delta` already covers epsilon = 0; infinite for infinite mu.
    """
    check_open_unit("delta", delta)
    if math.isinf(mu):
        return math.inf
    if gaussian_delta(0.0, mu) <= delta:
        return 0.0
    high = mu * mu / 2 + mu * math.sqrt(2 * math.log(1 / delta)) + 1.0
    root = brentq(
        lambda eps: gaussian_delta(eps, mu) - delta, 0.0, high, xtol=1e-300, rtol=4 * np.finfo(float).eps
    )
    return float(root)

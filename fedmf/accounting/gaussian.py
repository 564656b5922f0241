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

from scipy.special import erfcx, log_ndtr

from fedmf.accounting.renyi import NODES, WEIGHTS
from fedmf.checks import check_non_negative, check_open_unit
from fedmf.errors import SettingError

NARROW = 0.1  # mu below which the two terms of delta are too close to be subtracted
PRECISION = 1e-15


def gaussian_delta(epsilon: float, mu: float) -> float:
    """Return the exact delta of a Gaussian with signal-to-noise `mu` at `epsilon` (Balle, Wang 2018)."""
    check_non_negative("epsilon", epsilon)
    if not mu >= 0:
        raise SettingError(f"mu is {mu}; it must be 0 or above.")
    if mu == 0:
        return 0.0
    return 1.0 if math.isinf(mu) else math.exp(_log_delta(epsilon, mu))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return the exact epsilon, in nats, of a Gaussian with signal-to-noise `mu` at `delta`.

    0 where `delta` already covers epsilon = 0; infinite for infinite mu.
    """
    check_open_unit("delta", delta)
    if math.isinf(mu):
        return math.inf
    if gaussian_delta(0.0, mu) <= delta:
        return 0.0
    from scipy.optimize import brentq  # 0.1 s, which a client need not spend

    # There delta is at most Phi(mu/2 - epsilon/mu) <= delta/2.
    high = mu * mu / 2 + mu * math.sqrt(2 * math.log(1 / delta))
    return float(
        brentq(lambda epsilon: _log_delta(epsilon, mu) - math.log(delta), 0.0, high, xtol=PRECISION * high)
    )


def _log_delta(epsilon: float, mu: float) -> float:
    if mu < NARROW:
        # delta = phi(a) [m(a) - m(a + mu)] with a = epsilon/mu - mu/2 and Mills' ratio m(x) = Phi(-x)/phi(x). The difference is
        # the integral of -m'(x) = 1 - x m(x), which is positive: nothing cancels.
        a = epsilon / mu - mu / 2
        x = a + mu / 2 * (1 + NODES)
        mean = math.fsum(WEIGHTS / 2 * (1 - x * math.sqrt(math.pi / 2) * erfcx(x / math.sqrt(2))))
        return math.log(mu * mean) - (a * a + math.log(2 * math.pi)) / 2 if mean > 0 else -math.inf
    first = float(log_ndtr(mu / 2 - epsilon / mu))
    second = epsilon + float(log_ndtr(-mu / 2 - epsilon / mu))
    # Rounding may put the second term an ulp above the first where both vanish.
    return first + math.log(-math.expm1(second - first)) if second < first else -math.inf

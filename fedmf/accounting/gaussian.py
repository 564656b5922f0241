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

from fedmf.accounting.moments import NODES, WEIGHTS
from fedmf.accounting.search import find_root
from fedmf.checks import check_non_negative, check_open_unit
from fedmf.errors import SettingError

FAR = 26.0  # standard deviations from which on the tail is taken from its asymptotic series
NARROW = 0.1  # mu below which the two terms of delta are too close to be subtracted
PRECISION = 1e-15


def gaussian_delta(epsilon: float, mu: float) -> float:
    """Return the exact delta of a Gaussian with signal-to-noise `mu` at `epsilon` (Balle, Wang 2018)."""
    check_non_negative("epsilon", epsilon)
    if not mu >= 0:
        raise SettingError(f"mu is {mu}; it must be 0 or above.")
    if mu == 0:
        return 0.0
    if math.isinf(mu):
        return 1.0
    return math.exp(_log_delta(epsilon, mu))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return the exact epsilon, in nats, of a Gaussian with signal-to-noise `mu` at `delta`.

    0 where `delta` already covers epsilon = 0; infinite for infinite mu.
    """
    check_open_unit("delta", delta)
    if math.isinf(mu):
        return math.inf
    if gaussian_delta(0.0, mu) <= delta:
        return 0.0
    # There delta is at most Phi(mu/2 - epsilon/mu) <= delta/2.
    high = mu * mu / 2 + mu * math.sqrt(2 * math.log(1 / delta))
    return find_root(
        lambda epsilon: _log_delta(epsilon, mu) - math.log(delta), 0.0, high, tolerance=PRECISION * high
    )


def _log_delta(epsilon: float, mu: float) -> float:
    if mu < NARROW:
        return _log_delta_narrow(epsilon, mu)
    first = log_normal_cdf(mu / 2 - epsilon / mu)
    second = epsilon + log_normal_cdf(-mu / 2 - epsilon / mu)
    # Rounding may put the second term an ulp above the first where both vanish.
    return first + math.log(-math.expm1(second - first)) if second < first else -math.inf


def _log_delta_narrow(epsilon: float, mu: float) -> float:
    """delta = phi(a) [m(a) - m(a + mu)] with a = epsilon/mu - mu/2 and Mills' ratio m(x) = Phi(-x)/phi(x).

    The difference is the integral of -m'(x) = 1 - x m(x), which is positive: nothing cancels.
    """
    a = epsilon / mu - mu / 2
    nodes = (a + mu / 2 * (1 + NODES)).tolist()
    mean = math.fsum(weight / 2 * _mills_slope(x) for x, weight in zip(nodes, WEIGHTS.tolist(), strict=True))
    return _log_density(a) + math.log(mu) + math.log(mean) if mean > 0 else -math.inf


def _mills_slope(x: float) -> float:
    """1 - x m(x), of x above -1."""
    return -_far_tail(x) if x > FAR else 1 - x * math.exp(log_normal_cdf(-x) - _log_density(x))


def log_normal_cdf(x: float) -> float:
    """Return log Phi(x), the standard normal distribution function, to 2e-13 relative."""
    if x > 0:
        return math.log1p(-math.erfc(x / math.sqrt(2)) / 2)
    if x > -FAR:
        return math.log(math.erfc(-x / math.sqrt(2)) / 2)
    return _log_density(x) - math.log(-x) + math.log1p(_far_tail(x))


def _log_density(x: float) -> float:
    return -x * x / 2 - math.log(2 * math.pi) / 2


def _far_tail(x: float) -> float:
    """|x| m(|x|) - 1 = -u + 3 u^2 - 15 u^3 + ... with u = 1/x^2, of |x| from `FAR` on."""
    u = 1 / (x * x)
    return -u * (1 - 3 * u * (1 - 5 * u * (1 - 7 * u * (1 - 9 * u))))

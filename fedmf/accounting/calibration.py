"""The noise multiplier that a target epsilon needs.

>>> z = calibrate_noise_multiplier(
...     epsilon=2.0, delta=1e-5, keep_probability=0.01, linf_over_l2=0.0063, epochs=16
... )
>>> round(z, 4)
0.0861
"""

import math
from collections.abc import Callable
from decimal import ROUND_CEILING, Decimal
from functools import cache, partial

from fedmf.accounting.epoch import EpochEvent
from fedmf.accounting.spent import as_adjacency, check_accountant, privacy_spent
from fedmf.checks import check_at_least, check_open_unit, check_positive
from fedmf.errors import SettingError

DIGITS = 8  # significant ones of a noise multiplier: more than matter, and the same with every root finder
LOG_TOLERANCE = 1e-9
TIGHT_FACTOR = 1.05
LARGEST = 1e12


def calibrate_noise_multiplier(
    *,
    epsilon: float,
    delta: float,
    keep_probability: float,
    linf_over_l2: float,
    epochs: int,
    adjacency: str = "zero_out",
    accountant: str = "rdp",
    precision: float = 0.0,
) -> float:
    """Return the smallest z = sigma / kappa_2 with which `epochs` epochs cost at most `epsilon` at `delta`.

    The smallest of 8 significant digits, so that the result does not depend on the root finder or on the platform.
    The epsilon met is `PrivacySpent.epsilon`, so the exact Gaussian number at keep probability 1; it never exceeds
    the target. Claims and errors as in `privacy_spent`; also `SettingError` for a target that no noise multiplier
    below 1e12 meets.
    """
    check_positive("epsilon", epsilon)
    check_open_unit("delta", delta)
    check_at_least("epochs", epochs, 1)
    as_adjacency(adjacency)
    check_accountant(accountant, adjacency)

    start = keep_probability * math.sqrt(epochs) / _gaussian_mu(epsilon, delta)
    if adjacency == "replace":
        start *= 2
    cost = partial(privacy_spent, epochs=epochs, delta=delta, adjacency=adjacency, precision=precision)
    by_rdp = solve_noise_multiplier(
        lambda z: cost(EpochEvent(z, keep_probability, linf_over_l2)).epsilon,
        epsilon,
        start=start,
    )
    if accountant == "rdp" or keep_probability == 1:
        return by_rdp
    tight = solve_noise_multiplier(
        lambda z: cost(EpochEvent(z, keep_probability, linf_over_l2), accountant=accountant).epsilon,
        epsilon,
        start=by_rdp,  # enough, as the tight epsilon is never above; a few per cent less will do
        factor=TIGHT_FACTOR,
    )
    return min(by_rdp, tight)


def _gaussian_mu(epsilon: float, delta: float) -> float:
    """The mu with mu^2/2 + mu sqrt(2 log(1/delta)) = epsilon: near what a Gaussian may have, by Renyi."""
    surprise = 2 * math.log(1 / delta)
    return 2 * epsilon / (math.sqrt(surprise + 2 * epsilon) + math.sqrt(surprise))


def solve_noise_multiplier(
    epsilon_of: Callable[[float], float], target: float, *, start: float = 1.0, factor: float = 2.0
) -> float:
    """Return the smallest argument of `DIGITS` digits at which a decreasing `epsilon_of` is at most `target`.

    `start` and `factor`: a guess, and how far it may be off; both only save time.
    """
    from scipy.optimize import brentq  # 0.1 s, and only a calibration needs it

    known = cache(epsilon_of)
    low, high = _bracket(known, target, start, factor)

    def excess(u: float) -> float:
        return math.log(min(max(known(math.exp(u)) / target, 1e-3), 1e300))  # nearly linear

    near = Decimal(math.exp(brentq(excess, math.log(low), math.log(high), xtol=LOG_TOLERANCE)))
    step = Decimal(10) ** (near.adjusted() + 1 - DIGITS)
    found = near.quantize(step, ROUND_CEILING)
    while known(float(found)) > target:
        found += step
    while known(float(found - step)) <= target:
        found -= step
    return float(found)


def _bracket(
    epsilon_of: Callable[[float], float], target: float, start: float, factor: float
) -> tuple[float, float]:
    """(low, high) with epsilon_of(low) > target >= epsilon_of(high), a `factor` apart."""
    value = min(start, LARGEST)
    while epsilon_of(value) > target:
        value *= factor
        if value > LARGEST:
            raise SettingError(
                f"epsilon is {target}; no noise multiplier below {LARGEST:g} reaches it, ask for a "
                "larger one."
            )
    while epsilon_of(value / factor) <= target:
        value /= factor
    return value / factor, value

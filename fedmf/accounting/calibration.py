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
from functools import cache

from fedmf.accounting.epoch import EpochEvent
from fedmf.accounting.spent import privacy_spent
from fedmf.checks import check_at_least, check_open_unit, check_positive
from fedmf.errors import SettingError

DIGITS = 8  # significant ones of a noise multiplier: more than matter, and the same with every root finder
# Relative. Two calibrations to one target, by other versions or machines, are at most one step of the last digit apart,
# 1e-7 of the noise multiplier: a run keeps the one that it began with (`server.checkpoint.Checkpoint.with_kept_noise`).
APART = 2 * 10.0 ** (1 - DIGITS)
LOG_TOLERANCE = 1e-9
LARGEST = 1e12
FEW_STEPS = 100  # of the last digit, from the root to the smallest: more only where epsilon does not depend on the noise


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
    count_noise: float | None = None,
) -> float:
    """Return the smallest z = sigma / kappa_2 with which `epochs` epochs cost at most `epsilon` at `delta`.

    The smallest of 8 significant digits, so that the result does not depend on the root finder or on the platform.
    The epsilon met is `PrivacySpent.epsilon`, so the exact Gaussian number at keep probability 1; it never exceeds
    the target. Claims and errors as in `privacy_spent`; also `SettingError` for a target that no noise multiplier
    below 1e12 meets. With `count_noise` every epoch also releases a count: see `EpochEvent`.
    """
    check_positive("epsilon", epsilon)
    check_open_unit("delta", delta)
    check_at_least("epochs", epochs, 1)

    def epsilon_of(noise_multiplier: float) -> float:
        event = EpochEvent(noise_multiplier, keep_probability, linf_over_l2, count_noise)
        terms = {"adjacency": adjacency, "accountant": accountant}
        return privacy_spent(event, epochs, delta=delta, precision=precision, **terms).epsilon

    surprise = 2 * math.log(1 / delta)
    # mu^2/2 + mu sqrt(surprise) = epsilon is near what a Gaussian may have, by Renyi.
    mu = 2 * epsilon / (math.sqrt(surprise + 2 * epsilon) + math.sqrt(surprise))
    start = keep_probability * math.sqrt(epochs) / mu
    return solve_noise_multiplier(epsilon_of, epsilon, start=2 * start if adjacency == "replace" else start)


def solve_noise_multiplier(
    epsilon_of: Callable[[float], float], target: float, *, start: float = 1.0
) -> float:
    """Return the smallest argument of `DIGITS` digits at which a decreasing `epsilon_of` is at most `target`.

    `start` is a guess, which only saves time.
    """
    from scipy.optimize import brentq  # 0.1 s, and only a calibration needs it

    known = cache(epsilon_of)
    high = min(start, LARGEST)
    while known(high) > target:
        high *= 2
        if high > LARGEST:
            raise SettingError(
                f"epsilon is {target}; no noise multiplier below {LARGEST:g} reaches it, ask for a "
                "larger one."
            )
    while known(high / 2) <= target and high > 1 / LARGEST:
        high /= 2

    def excess(u: float) -> float:
        return math.log(min(max(known(math.exp(u)) / target, 1e-3), 1e300))  # nearly linear

    near = Decimal(math.exp(brentq(excess, math.log(high / 2), math.log(high), xtol=LOG_TOLERANCE)))
    step = Decimal(10) ** (near.adjusted() + 1 - DIGITS)
    found = near.quantize(step, ROUND_CEILING)
    while known(float(found)) > target:
        found += step
    for _ in range(FEW_STEPS):
        if known(float(found - step)) > target:
            break
        found -= step
    return float(found)

"""The noise multiplier that a target epsilon needs.

>>> z = calibrate_noise_multiplier(
...     epsilon=2.0, delta=1e-5, keep_probability=0.01, linf_over_l2=0.0063, epochs=16
... )
>>> round(z, 4)
0.0861

Noise is compared as it lands on the mean of one independent round: z Delta_2/(gamma n) per coordinate.
"""

import math
from collections.abc import Callable
from decimal import ROUND_CEILING, Decimal
from functools import cache

from fedmf.accounting.epoch import EpochEvent
from fedmf.accounting.spent import privacy_spent
from fedmf.checks import (
    check_at_least,
    check_keep_probability,
    check_non_negative,
    check_open_unit,
    check_positive,
)
from fedmf.errors import SettingError
from fedmf.updates.rotation import padded_dimension
from fedmf.updates.vectors import default_linf_bound

DIGITS = 8  # significant ones of a noise multiplier: more than matter, and the same with every root finder
# Relative. Two calibrations to one target, by other versions or machines, are at most one step of the last digit apart,
# 1e-7 of the noise multiplier: a run keeps the one that it began with (`server.checkpoint.Checkpoint.with_kept_noise`).
APART = 2 * 10.0 ** (1 - DIGITS)
LOG_TOLERANCE = 1e-9
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

    def epsilon_of(noise_multiplier: float) -> float:
        event = EpochEvent(noise_multiplier, keep_probability, linf_over_l2)
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
    while known(high / 2) <= target:
        high /= 2

    def excess(u: float) -> float:
        return math.log(min(max(known(math.exp(u)) / target, 1e-3), 1e300))  # nearly linear

    near = Decimal(math.exp(brentq(excess, math.log(high / 2), math.log(high), xtol=LOG_TOLERANCE)))
    step = Decimal(10) ** (near.adjusted() + 1 - DIGITS)
    found = near.quantize(step, ROUND_CEILING)
    while known(float(found)) > target:
        found += step
    while known(float(found - step)) <= target:
        found -= step
    return float(found)


def mean_noise_std(noise_multiplier: float, *, keep_probability: float, cohort_size: int) -> float:
    """Return z/(gamma n): the noise on each coordinate of the mean of one independent round, in units of Delta_2.

    >>> mean_noise_std(0.05, keep_probability=0.01, cohort_size=100)
    0.05
    """
    check_non_negative("noise_multiplier", noise_multiplier)
    check_keep_probability(keep_probability)
    check_at_least("cohort_size", cohort_size, 1)
    return noise_multiplier / (keep_probability * cohort_size)


def resolve_linf_ratio(
    given: float | None, dimension: int | None, cohort_size: int | None, *, rotation: str = "hadamard"
) -> float:
    """Return Delta_inf/Delta_2: `given`, at most 1, or the default if it is None.

    The default is min(1, sqrt(2 log(D n)/D)) after a rotation, D the dimension padded to a power of two, and 1 without.
    Raises `SettingError` where the formula lacks the dimension or the cohort size.
    """
    if given is not None:
        check_positive("linf_over_l2", given)
        return min(1.0, given)
    if rotation == "identity":
        return 1.0
    if dimension is None or cohort_size is None:
        raise SettingError(
            f"linf_over_l2 is not given, and its formula needs both dimension ({dimension}) and cohort_size "
            f"({cohort_size}); give those two, or linf_over_l2."
        )
    return default_linf_bound(1.0, padded_dimension(dimension, rotation), cohort_size)

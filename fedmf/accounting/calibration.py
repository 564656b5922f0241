"""The noise multiplier that a target epsilon needs, and what a privacy budget affords.

>>> z = calibrate_noise_multiplier(
...     epsilon=2.0, delta=1e-5, keep_probability=0.01, linf_over_l2=0.0063, epochs=16
... )
>>> round(z, 4)
0.0861
>>> most_epochs(EpochEvent(0.05, 0.01, 0.006), max_epsilon=4.0, delta=1e-5)
18

Noise is compared as it lands on the mean of one independent round: z Delta_2/(gamma n) per coordinate.
"""

import math
from bisect import bisect_left
from collections.abc import Callable
from decimal import ROUND_CEILING, Decimal
from functools import cache, partial

from fedmf.accounting.epoch import EpochEvent
from fedmf.accounting.spent import check_accountant, privacy_spent
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
LOG_TOLERANCE = 1e-9
LARGEST = 1e12
KEEP_STEP, KEEP_STEPS = 1e-4, 207_233  # of log gamma: from 1 down to 1e-9
MOST = 1 << 40  # clients of a cohort, or epochs


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
    check_accountant(accountant, adjacency)

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


def smallest_keep_probability(
    *,
    epsilon: float,
    delta: float,
    linf_over_l2: float,
    epochs: int,
    max_effective_noise_multiplier: float,
    adjacency: str = "zero_out",
    accountant: str = "rdp",
) -> float:
    """Return the smallest gamma, hence the largest saving, whose noise on the mean stays within a limit.

    The limit is on z/gamma with z calibrated to (epsilon, delta); z/gamma grows as gamma falls. Exact to 1e-4
    relative, from above. Raises `SettingError` where even gamma = 1 exceeds the limit.
    """
    check_positive("max_effective_noise_multiplier", max_effective_noise_multiplier)

    def noise(steps: int) -> float:
        gamma = math.exp(-KEEP_STEP * steps)
        return calibrate_noise_multiplier(
            epsilon=epsilon,
            delta=delta,
            keep_probability=gamma,
            linf_over_l2=linf_over_l2,
            epochs=epochs,
            adjacency=adjacency,
            accountant=accountant,
        ) / gamma  # fmt: skip

    limit = max_effective_noise_multiplier
    if (at_one := noise(0)) > limit:
        raise SettingError(
            f"max_effective_noise_multiplier is {limit}; even keep_probability=1 needs {at_one:.4g}."
        )
    steps = bisect_left(range(KEEP_STEPS), True, key=lambda steps: noise(steps) > limit) - 1
    return math.exp(-KEEP_STEP * steps)


def smallest_cohort(
    *,
    epsilon: float,
    delta: float,
    keep_probability: float,
    epochs: int,
    max_mean_noise_std: float,
    linf_over_l2: float | None = None,
    dimension: int | None = None,
    rotation: str = "hadamard",
    adjacency: str = "zero_out",
    accountant: str = "rdp",
) -> int:
    """Return the smallest cohort size whose mean is no noisier than a limit, per unit of Delta_2.

    linf_over_l2 None: the default formula, which depends on the cohort size and needs `dimension`. Raises
    `SettingError` without either, and where no cohort below 2^40 is enough.
    """
    check_positive("max_mean_noise_std", max_mean_noise_std)

    def is_enough(cohort_size: int) -> bool:
        noise_multiplier = calibrate_noise_multiplier(
            epsilon=epsilon,
            delta=delta,
            keep_probability=keep_probability,
            linf_over_l2=resolve_linf_ratio(linf_over_l2, dimension, cohort_size, rotation=rotation),
            epochs=epochs,
            adjacency=adjacency,
            accountant=accountant,
        )
        noise = mean_noise_std(noise_multiplier, keep_probability=keep_probability, cohort_size=cohort_size)
        return noise <= max_mean_noise_std

    return _smallest(
        is_enough, f"max_mean_noise_std is {max_mean_noise_std}; no cohort below {MOST} reaches it."
    )


def most_epochs(
    event: EpochEvent,
    *,
    max_epsilon: float,
    delta: float,
    adjacency: str = "zero_out",
    accountant: str = "rdp",
) -> int:
    """Return the largest number of epochs that cost at most `max_epsilon` at `delta`; 0 if not even one does.

    Raises `SettingError` where 2^40 epochs still fit: the noise is then so large that the question is
    meaningless.
    """
    check_positive("max_epsilon", max_epsilon)
    cost = partial(privacy_spent, event, delta=delta, adjacency=adjacency, accountant=accountant)
    excess = f"max_epsilon is {max_epsilon}; more than {MOST} epochs fit, choose a smaller one."
    return _smallest(lambda epochs: cost(epochs).epsilon > max_epsilon, excess) - 1


def _smallest(holds: Callable[[int], bool], otherwise: str) -> int:
    """The smallest integer in [1, MOST] at which the monotone `holds` is true; `SettingError` with `otherwise` for none."""
    high = 1
    while not holds(high):
        high *= 2
        if high > MOST:
            raise SettingError(otherwise)
    return bisect_left(range(high), True, lo=high // 2 + 1, hi=high, key=holds)

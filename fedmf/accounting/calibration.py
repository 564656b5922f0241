"""The noise multiplier that a target epsilon needs.

>>> z = calibrate_noise_multiplier(
...     epsilon=2.0, delta=1e-5, keep_probability=0.01, linf_over_l2=0.0063, epochs=16
... )
>>> round(z, 4)
0.0861
"""

import math
from collections.abc import Callable
from functools import partial

from scipy.optimize import brentq

from fedmf.accounting.release import EpochRelease
from fedmf.accounting.spent import privacy_spent
from fedmf.checks import check_at_least, check_open_unit, check_positive
from fedmf.errors import SettingError

LOG_TOLERANCE = 1e-9
LOOSE_LOG_TOLERANCE = 1e-5
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
) -> float:
    """Return the smallest z = sigma / kappa_2 with which `epochs` epochs cost at most `epsilon` at `delta`.

    The epsilon met is `PrivacySpent.epsilon`, so the exact Gaussian number at keep probability 1. The
    answer errs upwards, by some 1e-9 relative (1e-5 under replacement): the epsilon it gives never exceeds
    the target. Claims and errors as in `privacy_spent`; also `SettingError` for a target that no noise
    multiplier below 1e12 meets.
    """
    check_positive("epsilon", epsilon)
    check_open_unit("delta", delta)
    check_at_least("epochs", epochs, 1)

    start, tolerance = keep_probability * math.sqrt(epochs) / epsilon, LOG_TOLERANCE
    if adjacency == "replace" and keep_probability < 1:
        # Its curve is dear; zero-out needs less noise, most often more than half of it: a bracket at once.
        tolerance = LOOSE_LOG_TOLERANCE
        start = 2 * calibrate_noise_multiplier(
            epsilon=epsilon,
            delta=delta,
            keep_probability=keep_probability,
            linf_over_l2=linf_over_l2,
            epochs=epochs,
            accountant=accountant,
        )
    cost = partial(privacy_spent, epochs=epochs, delta=delta, adjacency=adjacency, accountant=accountant)
    return solve_noise_multiplier(
        lambda z: cost(EpochRelease(z, keep_probability, linf_over_l2)).epsilon,
        epsilon,
        start=start,
        tolerance=tolerance,
    )


def solve_noise_multiplier(
    epsilon_of: Callable[[float], float],
    target: float,
    *,
    start: float = 1.0,
    tolerance: float = LOG_TOLERANCE,
) -> float:
    """Return the smallest argument at which a decreasing `epsilon_of` is at most `target`, from above."""
    low, high = _bracket(epsilon_of, target, start)
    root = brentq(
        lambda u: math.log(min(max(epsilon_of(math.exp(u)) / target, 1e-3), 1e300)),  # nearly linear
        math.log(low),
        math.log(high),
        xtol=tolerance,
    )
    found = math.exp(root)
    while epsilon_of(found) > target:
        found *= 1 + 2 * tolerance
    return found


def _bracket(epsilon_of: Callable[[float], float], target: float, start: float) -> tuple[float, float]:
    """(low, high) with epsilon_of(low) > target >= epsilon_of(high), a factor of 2 apart."""
    value = start
    while epsilon_of(value) > target:
        value *= 2
        if value > LARGEST:
            raise SettingError(
                f"epsilon is {target}; no noise multiplier below {LARGEST:g} reaches it, ask for a "
                "larger one."
            )
    while epsilon_of(value / 2) <= target:
        value /= 2
    return value / 2, value

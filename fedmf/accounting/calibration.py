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
    answer errs upwards by at most 1e-8 relative: the epsilon it gives never exceeds the target. Claims and
    errors as in `privacy_spent`; also `SettingError` for a target that no noise multiplier below 1e12
    meets.
    """
    check_positive("epsilon", epsilon)
    check_open_unit("delta", delta)
    check_at_least("epochs", epochs, 1)

    cost = partial(privacy_spent, epochs=epochs, delta=delta, adjacency=adjacency, accountant=accountant)
    return solve_noise_multiplier(
        lambda z: cost(EpochRelease(z, keep_probability, linf_over_l2)).epsilon,
        epsilon,
        start=keep_probability * math.sqrt(epochs) / epsilon,
    )


def solve_noise_multiplier(
    epsilon_of: Callable[[float], float], target: float, *, start: float = 1.0
) -> float:
    """Return the smallest argument at which a decreasing `epsilon_of` is at most `target`, from above."""
    low, high = _bracket(epsilon_of, target, start)
    root = brentq(
        lambda u: min(epsilon_of(math.exp(u)), 1e300) - target,
        math.log(low),
        math.log(high),
        xtol=LOG_TOLERANCE,
    )
    found = math.exp(root)
    while epsilon_of(found) > target:
        found *= 1 + 2 * LOG_TOLERANCE
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

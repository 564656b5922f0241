"""What a privacy budget affords: fewest coordinates, smallest cohort, most epochs.

Noise is compared as it lands on the mean of one independent round: z Delta_2/(gamma n) per coordinate.

    >>> mean_noise_std(0.05, keep_probability=0.01, cohort_size=100)
    0.05
    >>> most_epochs(EpochEvent(0.05, 0.01, 0.006), max_epsilon=4.0, delta=1e-5)
    18
"""

import math
from collections.abc import Callable
from functools import partial

from fedmf.accounting.calibration import calibrate_noise_multiplier
from fedmf.accounting.epoch import EpochEvent
from fedmf.accounting.spent import privacy_spent
from fedmf.checks import check_at_least, check_keep_probability, check_non_negative, check_positive
from fedmf.errors import SettingError
from fedmf.updates.rotation import padded_dimension
from fedmf.updates.vectors import default_linf_bound

KEEP_TOLERANCE = 1e-4  # relative
SMALLEST_KEEP_PROBABILITY = 1e-9
LARGEST_COHORT = 1 << 40
MOST_EPOCHS = 1 << 40


def mean_noise_std(noise_multiplier: float, *, keep_probability: float, cohort_size: int) -> float:
    """Return z/(gamma n): the noise on each coordinate of the mean of one independent round, in units of Delta_2."""
    check_non_negative("noise_multiplier", noise_multiplier)
    check_keep_probability(keep_probability)
    check_at_least("cohort_size", cohort_size, 1)
    return noise_multiplier / (keep_probability * cohort_size)


def noise_saved(event: EpochEvent, epochs: int, *, delta: float) -> float | None:
    """Return the share of noise that accountant=tight saves over rdp at its own epsilon, zero-out adjacency.

    0 or above; None where both are the same number by definition (keep probability 1), and where epsilon is
    infinite or 0.
    """
    epsilon = privacy_spent(event, epochs, delta=delta, accountant="tight").epsilon
    if event.keep_probability == 1 or not 0 < epsilon < math.inf:
        return None
    by_rdp = calibrate_noise_multiplier(
        epsilon=epsilon,
        delta=delta,
        keep_probability=event.keep_probability,
        linf_over_l2=event.linf_over_l2,
        epochs=epochs,
    )
    return max(0.0, 1 - event.noise_multiplier / by_rdp)


def linf_ratio(dimension: int, cohort_size: int, rotation: str = "hadamard") -> float:
    """Return the default Delta_inf/Delta_2: min(1, sqrt(2 log(D n)/D)) after a rotation, 1 without.

    D is the dimension padded to a power of two.
    """
    if rotation == "identity":
        return 1.0
    return default_linf_bound(1.0, padded_dimension(dimension, rotation), cohort_size)


def resolve_linf_ratio(
    given: float | None, dimension: int | None, cohort_size: int | None, *, rotation: str = "hadamard"
) -> float:
    """Return `given`, at most 1, or the default formula if it is None.

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
    return linf_ratio(dimension, cohort_size, rotation)


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
    calibrate = partial(
        calibrate_noise_multiplier,
        epsilon=epsilon,
        delta=delta,
        linf_over_l2=linf_over_l2,
        epochs=epochs,
        adjacency=adjacency,
        accountant=accountant,
    )
    limit = max_effective_noise_multiplier
    least = calibrate(keep_probability=1.0)
    if least > limit:
        raise SettingError(
            f"max_effective_noise_multiplier is {limit}; even keep_probability=1 needs {least:.4g}."
        )
    # Just below 1 the exact Gaussian number is lost, so gamma = 1 may be the only one that fits.
    high, low = 1.0, 0.5
    while low > SMALLEST_KEEP_PROBABILITY and calibrate(keep_probability=low) <= limit * low:
        high, low = low, low / 2
    while high / low > 1 + KEEP_TOLERANCE:
        middle = (low * high) ** 0.5
        low, high = (low, middle) if calibrate(keep_probability=middle) <= limit * middle else (middle, high)
    return high


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
    calibrate = partial(
        calibrate_noise_multiplier,
        epsilon=epsilon,
        delta=delta,
        keep_probability=keep_probability,
        epochs=epochs,
        adjacency=adjacency,
        accountant=accountant,
    )
    ratio = partial(resolve_linf_ratio, linf_over_l2, dimension, rotation=rotation)
    noise = partial(mean_noise_std, keep_probability=keep_probability)
    found = _smallest(
        lambda n: noise(calibrate(linf_over_l2=ratio(n)), cohort_size=n) <= max_mean_noise_std,
        LARGEST_COHORT,
    )
    if found is None:
        raise SettingError(
            f"max_mean_noise_std is {max_mean_noise_std}; no cohort below {LARGEST_COHORT} reaches it."
        )
    return found


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
    found = _smallest(lambda epochs: cost(epochs).epsilon > max_epsilon, MOST_EPOCHS)
    if found is None:
        raise SettingError(
            f"max_epsilon is {max_epsilon}; more than {MOST_EPOCHS} epochs fit, choose a smaller one."
        )
    return found - 1


def _smallest(holds: Callable[[int], bool], largest: int) -> int | None:
    """The smallest integer in [1, largest] at which the monotone `holds` is true: doubling, then bisection."""
    high = 1
    while not holds(high):
        high *= 2
        if high > largest:
            return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high

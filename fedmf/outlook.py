"""What speaks against a run before it begins, in sentences: from its plan alone, so that no client has a part in it.

>>> about_cohort(64), about_unasked(100, cohort_size=25, rounds_per_epoch=3)
(None, None)
>>> print(about_unasked(100, cohort_size=24, rounds_per_epoch=3))
an epoch leaves 28 of 100 clients unasked, at the same epsilon as if it asked them; rounds_per_epoch=4 would ask 96.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from fedmf.accounting import EpochEvent, delta_warning, epsilon_warning, mean_noise_std

if TYPE_CHECKING:  # a plan needs the mechanisms, which take longer to import than these sentences should
    from fedmf.plan import Plan

# Above which `noise_over_signal` runs end near chance (docs/privacy.md): of any model, and of one with so many
# parameters that the whole noise is more than `LONGEST_NOISE` times as long as the signal can be.
MOST_NOISE, MOST_NOISE_OF_LARGE, LONGEST_NOISE = 0.05, 0.02, 3.5
MOST_UNASKED = 1 / 4  # of the clients, in an epoch
FEWEST = 3  # clients in a cohort


def misgivings(plan: "Plan") -> tuple[str, ...]:
    """Return a warning for each thing that makes a run of `plan` hopeless, wasteful or weak; none is the usual case.

    These are warnings, not errors: a run without any may fail nevertheless.
    """
    who, target = plan.participation, plan.privacy.epsilon
    return about_run(
        plan.epoch_event,
        epsilon=plan.spent(plan.affordable_epochs).epsilon,
        delta=plan.privacy.delta,
        noise=noise_of_run(plan),
        dimension=plan.dimension,
        clients=who.clients,
        cohort_size=who.cohort_size,
        rounds_per_epoch=who.rounds_per_epoch,
        calibrate=None if target is None else partial(_calibrated_at, plan, target),
        cut_short=plan.affordable_epochs < who.epochs,
    )


def _calibrated_at(plan: "Plan", epsilon: float, keep_probability: float) -> float:
    """Return the noise multiplier that `epsilon` needs at another keep probability."""
    compression = replace(plan.compression, keep_probability=keep_probability)
    return replace(plan, compression=compression).calibrated(epsilon, precision=0.0).noise_multiplier


def about_run(
    event: EpochEvent,
    *,
    epsilon: float,
    delta: float,
    noise: float | None,
    dimension: int | None,
    clients: int | None,
    cohort_size: int | None,
    rounds_per_epoch: int | None,
    calibrate: Callable[[float], float] | None,
    cut_short: bool = False,
) -> tuple[str, ...]:
    """Return the warnings about a run of epochs like `event` that costs `epsilon`; None is what is not known.

    `noise`: its `noise_over_signal`. `calibrate` as in `masks_add_noise`, None where the noise follows from no epsilon.
    """
    is_private = event.noise_multiplier > 0
    found = (
        epsilon_warning(epsilon) if is_private else None,
        None
        if noise is None
        else about_noise(
            noise,
            dimension=dimension,
            calibrated=calibrate is not None,
            cut_short=cut_short,
            rare_masks=lambda: calibrate is not None and masks_add_noise(event, calibrate),
        ),
        delta_warning(delta, clients) if is_private and clients is not None else None,
        None
        if clients is None or cohort_size is None or rounds_per_epoch is None
        else about_unasked(clients, cohort_size=cohort_size, rounds_per_epoch=rounds_per_epoch),
        None if cohort_size is None else about_cohort(cohort_size),
    )
    return tuple(filter(None, found))


def noise_of_run(plan: "Plan") -> float:
    """Return `noise_over_signal` after the last round that max_epsilon lets begin; 0 where none may."""
    last = plan.affordable_epochs * plan.participation.rounds_per_epoch - 1
    if last < 0 or plan.noise_multiplier == 0:
        return 0.0
    mean_noise = mean_noise_std(
        plan.noise_multiplier,
        keep_probability=plan.compression.keep_probability,
        cohort_size=plan.participation.cohort_size,
    )
    assert plan.counted_radius is not None  # make_plan refuses noise without an L2 bound
    assert plan.bounds.radius is not None
    return noise_over_signal(
        mean_noise=mean_noise * plan.counted_radius / plan.bounds.radius,
        error=float(plan.factorization.per_round_error[last]),
        reach=float(plan.factorization.per_round_reach[last]),
    )


def noise_over_signal(*, mean_noise: float, error: float, reach: float) -> float:
    """Return how large the noise in a model is along any one direction over the most that its signal can be.

    With a the row of the workload that belongs to a round (what the model holds of each round so far, by momentum and
    schedule; all 1 for plain SGD) the model is its start plus learning rate times (a X + noise), where X_t is the mean
    of round t.

        signal:  ||X_t|| <= Delta_2, the mean of at most n clipped updates, so ||a X|| <= Delta_2 sum_t a_t = Delta_2 reach;
        noise:   standard deviation z/(gamma n) Delta_2 error in every coordinate, hence along every unit vector, with
                 `error` the mechanism's in that round, the sensitivity of C counted, and z/(gamma n) = `mean_noise`.

    Learning rate and Delta_2 (with int8 the radius (1 + tau) Delta_2) cancel: mean_noise error / reach is left.

    Why one direction and not the L2 norm, which is sqrt(d) times that: to first order an output y of the model with
    gradient J moves by J times the change of the parameters. Noise moves it by ||J|| times the standard deviation above,
    whatever d is, and the signal by at most ||J|| times its length. What it leaves out: updates that differ in direction
    or are shorter than the clip norm add up to a fraction of the signal's bound (so that a few percent are much); a deep
    model is not linear in its parameters and stands less noise, all the less the more it has; the masks' own error; and
    learning rates that suit neither.
    """
    return mean_noise * error / reach


def is_too_much_noise(ratio: float, dimension: int | None) -> bool:
    """Say whether runs with this `noise_over_signal` ended near chance; `dimension` None: as of a small model.

    >>> is_too_much_noise(0.06, 650), is_too_much_noise(0.03, 650), is_too_much_noise(0.03, 300_000)
    (True, False, True)
    """
    is_long = dimension is not None and math.sqrt(dimension) * ratio > LONGEST_NOISE
    return ratio > MOST_NOISE or (ratio > MOST_NOISE_OF_LARGE and is_long)


def about_noise(
    ratio: float,
    *,
    dimension: int | None,
    calibrated: bool,
    rare_masks: Callable[[], bool],
    cut_short: bool = False,
) -> str | None:
    """Return what to say of a `noise_over_signal` that is too much, see `is_too_much_noise`, else None.

    `calibrated`: whether the noise follows from an epsilon. More clients help as larger cohorts or as more rounds.
    `cut_short`: whether max_epsilon ends the run before its last epoch. `rare_masks`, as `masks_add_noise` tells, is
    asked only where there is something to say.
    """
    if not is_too_much_noise(ratio, dimension):
        return None
    helps = [
        "more clients in an epoch",
        "a larger epsilon" if calibrated else "a smaller noise multiplier (which costs epsilon)",
    ]
    if cut_short:
        helps.append("a larger max_epsilon")
    if ratio <= MOST_NOISE:
        helps.append("fewer trained parameters")
    if rare_masks():
        helps.insert(0, "a larger keep_probability")
    length = 0.0 if dimension is None else math.sqrt(dimension) * ratio
    whole = f" ({length:.3g} times over all {dimension:,} parameters)" if length > 1 else ""
    small = f"small runs above {MOST_NOISE}"
    which = small if ratio > MOST_NOISE else f"runs of models with so many above {MOST_NOISE_OF_LARGE}"
    return (
        f"the noise in the last model has in every direction {ratio:.3g} times the length that all clipped updates would "
        f"have if they agreed{whole}; {which} ended near chance. What helps: {', '.join(helps)}."
    )


def masks_add_noise(event: EpochEvent, calibrate: Callable[[float], float]) -> bool:
    """Return whether ten times as many coordinates would leave a tenth less noise on the mean, at the same epsilon.

    `calibrate` returns the noise multiplier that this epsilon needs at another keep probability.
    """
    if event.keep_probability == 1:
        return False
    more = min(1.0, 10 * event.keep_probability)
    return calibrate(more) / more < 0.9 * event.effective_noise_multiplier


def about_unasked(clients: int, *, cohort_size: int, rounds_per_epoch: int) -> str | None:
    """Return what to say where an epoch asks fewer than three quarters of the clients, else None.

    An epoch costs a client the same epsilon whether it is asked or not.
    """
    unasked = clients - cohort_size * rounds_per_epoch
    if unasked <= MOST_UNASKED * clients:
        return None
    rounds, largest = clients // cohort_size, clients // rounds_per_epoch
    enough = clients - rounds * cohort_size <= MOST_UNASKED * clients
    helps = (
        f"rounds_per_epoch={rounds} would ask {rounds * cohort_size:,}"
        if enough
        else f"cohort_size={largest} would ask {largest * rounds_per_epoch:,}"
    )
    return f"an epoch leaves {unasked:,} of {clients:,} clients unasked, at the same epsilon as if it asked them; {helps}."


def about_cohort(cohort_size: int) -> str | None:
    """Return what to say of a cohort of one or two clients, else None."""
    if cohort_size >= FEWEST:
        return None
    whose = (
        "each round releases one client's update behind the noise alone"
        if cohort_size == 1
        else "each round releases the sum of two updates, and who sent one sees the other behind the noise alone"
    )
    return (
        f"cohort_size is {cohort_size}: {whose}, of which so small a mean averages little away. What helps: cohorts of "
        "dozens of clients or more."
    )

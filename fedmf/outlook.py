"""What speaks against a run before it begins, in sentences: from its plan alone, so that no client has a part in it.

>>> about_cohort(64), about_unasked(100, cohort_size=25, rounds_per_epoch=3)
(None, None)
"""

import math
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
    who, noise = plan.participation, about_noise(plan)
    others = about_cost(
        plan.epoch_event,
        epsilon=plan.spent(plan.affordable_epochs).epsilon,
        delta=plan.privacy.delta,
        clients=who.clients,
        cohort_size=who.cohort_size,
        rounds_per_epoch=who.rounds_per_epoch,
    )
    return others if noise is None else (noise, *others)


def about_cost(
    event: EpochEvent,
    *,
    epsilon: float,
    delta: float,
    clients: int | None,
    cohort_size: int | None,
    rounds_per_epoch: int | None,
) -> tuple[str, ...]:
    """Return the warnings about a run of epochs like `event` that costs `epsilon`; None is what is not known."""
    is_private = event.noise_multiplier > 0
    found = (
        epsilon_warning(epsilon) if is_private else None,
        delta_warning(delta, clients) if is_private and clients is not None else None,
        None
        if clients is None or cohort_size is None or rounds_per_epoch is None
        else about_unasked(clients, cohort_size=cohort_size, rounds_per_epoch=rounds_per_epoch),
        None if cohort_size is None else about_cohort(cohort_size),
    )
    return tuple(filter(None, found))


def noise_of_run(plan: "Plan") -> float:
    """Return `noise_over_signal` after the last round that max_epsilon lets begin; 0 where none may.

    That is how large the noise in the model is along any one direction over the most that its signal can be.

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
    mean_noise *= plan.counted_radius / plan.bounds.radius
    return float(
        mean_noise * plan.factorization.per_round_error[last] / plan.factorization.per_round_reach[last]
    )


def is_too_much_noise(ratio: float, dimension: int) -> bool:
    """Return whether runs with this `noise_over_signal` ended near chance.

    >>> is_too_much_noise(0.06, 650), is_too_much_noise(0.03, 650), is_too_much_noise(0.03, 300_000)
    (True, False, True)
    """
    is_long = math.sqrt(dimension) * ratio > LONGEST_NOISE
    return ratio > MOST_NOISE or (ratio > MOST_NOISE_OF_LARGE and is_long)


def about_noise(plan: "Plan") -> str | None:
    """Return what to say of a `noise_over_signal` that is too much, with all that would help; else None."""
    ratio, dimension = noise_of_run(plan), plan.dimension
    if not is_too_much_noise(ratio, dimension):
        return None
    helps = ["more clients in an epoch"]
    helps += [
        "a larger epsilon"
        if plan.privacy.epsilon is not None
        else "a smaller noise multiplier (which costs epsilon)"
    ]
    if plan.privacy.epsilon is not None and plan.compression.keep_probability < 1:
        helps += ["at small ones a larger keep_probability"]
    if plan.affordable_epochs < plan.participation.epochs:
        helps += ["a larger max_epsilon"]
    length = math.sqrt(dimension) * ratio
    whole = f" ({length:.3g} times over all {dimension:,} parameters)" if length > 1 else ""
    which = f"small runs above {MOST_NOISE}"
    if ratio <= MOST_NOISE:
        which = f"runs of models with so many above {MOST_NOISE_OF_LARGE}"
        helps += ["fewer trained parameters"]
    return (
        f"the noise in the last model has in every direction {ratio:.3g} times the length that all clipped updates would "
        f"have if they agreed{whole}; {which} ended near chance. What helps: "
        f"{', '.join(helps)}."
    )


def about_unasked(clients: int, *, cohort_size: int, rounds_per_epoch: int) -> str | None:
    """Return what to say where an epoch asks fewer than three quarters of the clients, else None.

    An epoch costs a client the same epsilon whether it is asked or not.
    """
    unasked = clients - cohort_size * rounds_per_epoch
    if unasked <= MOST_UNASKED * clients:
        return None
    return (
        f"an epoch leaves {unasked:,} of {clients:,} clients unasked, at the same epsilon as if it asked them; more "
        f"rounds_per_epoch or a larger cohort_size would ask them: {clients:,} is the most that the two may multiply to."
    )


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

"""What speaks against a run before it begins, in sentences: from its plan alone, so that no client has a part in it."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from fedmf.accounting import EpochEvent, delta_warning, epsilon_warning

if TYPE_CHECKING:  # a plan needs the mechanisms, which take longer to import than these sentences should
    from fedmf.plan import Plan

# Above which `noise_over_signal` runs end near chance (docs/privacy.md): of any model, and of one with so many
# parameters that the whole noise is more than `LONGEST_NOISE` times as long as the signal can be.
MOST_NOISE, MOST_NOISE_OF_LARGE, LONGEST_NOISE = 0.05, 0.02, 3.5
MOST_UNASKED = 1 / 4  # of the clients, in an epoch, which costs a client the same whether it is asked or not
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
    return tuple(others) if noise is None else (noise, *others)


def about_cost(
    event: EpochEvent,
    *,
    epsilon: float,
    delta: float,
    clients: int | None,
    cohort_size: int | None,
    rounds_per_epoch: int | None,
) -> Iterator[str]:
    """Yield the warnings about a run of epochs like `event` that costs `epsilon`; None is what is not known."""
    if event.noise_multiplier > 0:
        of_delta = None if clients is None else delta_warning(delta, clients)
        yield from filter(None, (epsilon_warning(epsilon), of_delta))
    asked = (cohort_size or 0) * (rounds_per_epoch or 0)
    if clients is not None and asked and clients - asked > MOST_UNASKED * clients:
        yield (
            f"an epoch leaves {clients - asked:,} of {clients:,} clients unasked, at the same epsilon as if it asked them; more "
            f"rounds_per_epoch or a larger cohort_size would ask them: {clients:,} is the most that the two may multiply to."
        )
    if cohort_size is not None and cohort_size < FEWEST:
        whose = (
            "each round releases one client's update behind the noise alone"
            if cohort_size == 1
            else "each round releases the sum of two updates, and who sent one sees the other behind the noise alone"
        )
        yield (
            f"cohort_size is {cohort_size}: {whose}, of which so small a mean averages little away. What helps: cohorts of "
            "dozens of clients or more."
        )


def noise_of_run(plan: "Plan") -> float:
    """Return `noise_over_signal` after the last round that max_epsilon lets begin; 0 where none may.

    That is how large the noise in the model is along any one direction over the most that its signal can be.

    With a the row of the workload that belongs to a round (what the model holds of each round so far, by momentum and
    schedule; all 1 for plain SGD) the model is its start plus learning rate times (a X + noise), where X_t is the mean
    of round t.

        signal:  ||X_t|| <= Delta_2, the mean of at most n clipped updates, so ||a X|| <= Delta_2 sum_t a_t = Delta_2 reach;
        noise:   standard deviation z/(gamma n) Delta_2 error in every coordinate, hence along every unit vector, with
                 `error` the mechanism's in that round, the sensitivity of C counted; `Plan.mean_noise_std` is z/(gamma n).

    Learning rate and Delta_2 (with int8 the radius (1 + tau) Delta_2) cancel: z/(gamma n) error / reach is left.

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
    reach = plan.factorization.per_round_reach[last]
    return float(plan.mean_noise_std * plan.factorization.per_round_error[last] / reach)


def about_noise(plan: "Plan") -> str | None:
    """Return what to say of a `noise_over_signal` with which runs ended near chance, with all that would help; else None."""
    ratio, dimension = noise_of_run(plan), plan.dimension
    length, is_calibrated = dimension**0.5 * ratio, plan.privacy.epsilon is not None
    if ratio > MOST_NOISE:
        which, smaller = f"small runs above {MOST_NOISE}", ""
    elif ratio > MOST_NOISE_OF_LARGE and length > LONGEST_NOISE:
        which, smaller = (
            f"runs of models with so many parameters above {MOST_NOISE_OF_LARGE}",
            "fewer trained parameters",
        )
    else:
        return None
    helps = (
        "more clients in an epoch",
        "a larger epsilon" if is_calibrated else "a smaller noise multiplier (which costs epsilon)",
        "at small ones a larger keep_probability"
        if is_calibrated and plan.compression.keep_probability < 1
        else "",
        "a larger max_epsilon" if plan.affordable_epochs < plan.participation.epochs else "",
        smaller,
    )
    whole = f" ({length:.3g} times as far over all {dimension:,} parameters)" if length > 1 else ""
    return (
        f"along any one direction the noise moves the last model {ratio:.3g} times as far as all clipped updates together "
        f"could{whole}; {which} ended near chance. What helps: "
        f"{', '.join(filter(None, helps))}."
    )

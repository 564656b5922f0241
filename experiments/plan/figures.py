"""A plan from figures: `plan clients=3400 cohort_size=100 epsilon=3`. No data set is read."""

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from experiments.plan.budget import (
    UNIT,
    Budget,
    Planned,
    PlanSettings,
    linf_unknown,
    make_budget,
)
from fedmf.accounting import (
    EpochEvent,
    FloatingPoint,
    delta_warning,
    epsilon_warning,
    finite_precision,
    mean_noise_std,
)
from fedmf.accounting.caveats import LARGEST, NOT_COVERED
from fedmf.accounting.floating_point import MOST, check_price
from fedmf.errors import ParticipationError
from fedmf.outlook import about_cohort, about_noise, about_unasked, masks_add_noise, noise_over_signal
from fedmf.participation import rounds_that_fit
from fedmf.updates.rotation import padded_dimension

if TYPE_CHECKING:
    from fedmf.mechanisms import RunFactorization

_log = logging.getLogger(__name__)

MOST_ROUNDS = 2**12  # of a run: beyond, the optimum takes longer to find than a plan should


@dataclass(frozen=True)
class ModelNoise:
    """Errors of the accumulated sum, per unit of noise multiplier, clip norm and first learning rate.

    `rms_error` and `last_error` are the mechanism's root mean square over all rounds of the run and its last round;
    `independent_rms_error` is the first of independent noise, `lowest_rms_error` the certificate: what no mechanism
    that restarts every epoch, with equal noise in all, goes below, None where it would take too long. `last_reach` is the longest that the last
    round's sum can be. `precision` has for each epoch what `finite_precision` must know of it.
    """

    rms_error: float
    last_error: float
    independent_rms_error: float
    lowest_rms_error: float | None
    last_reach: float
    precision: tuple[tuple[float, float], ...]


def model_noise(settings: PlanSettings) -> ModelNoise | None:
    """Return the errors of the run planned; None where its rounds are not known, or are too many for a plan."""
    rounds = rounds_per_epoch(settings)
    if rounds is None:
        return None
    # Not before it is needed: the families import scipy, which takes longer than the rest of a plan.
    from experiments.settings.factorization import factorize, find_family
    from fedmf.mechanisms import prefix_sum
    from fedmf.mechanisms.family import suits

    total = rounds * settings.epochs
    family = find_family(settings.mechanism.name)
    if total > MOST_ROUNDS or (isinstance(family, str) and not suits(family, prefix_sum(rounds))):
        _log.warning(
            "the error in the model is not computed: %d rounds are too many for %s in a plan",
            total,
            settings.mechanism.name,
        )
        return None
    run = factorize(
        settings.mechanism.name,
        settings.workload,
        rounds,
        settings.epochs,
        beta=settings.momentum,
        schedule=settings.schedule,
    )
    return errors_of(run)


def errors_of(run: "RunFactorization", rounds: int | None = None) -> ModelNoise:
    """Return the errors of a run; the last ones after `rounds` rounds, None: all of them."""
    from fedmf.mechanisms import design_run, run_lower_bound

    total = len(run.per_round_error)
    last = (rounds or total) - 1
    certified = run.family == "optimal" or total <= MOST_ROUNDS
    return ModelNoise(
        run.rms_error,
        float(run.per_round_error[last]),
        design_run("independent", run.workloads).rms_error,
        run_lower_bound(run.workloads) / total**0.5 if certified else None,
        float(run.per_round_reach[last]),
        tuple(epoch.precision for epoch in run.epochs),
    )


def rounds_per_epoch(settings: PlanSettings) -> int | None:
    """Return the rounds of an epoch: as given, or as many cohorts as there are; None where neither is known."""
    if settings.rounds_per_epoch is not None:
        return settings.rounds_per_epoch
    if settings.clients is None or settings.cohort_size is None:
        return None
    try:
        return rounds_that_fit(settings.clients, settings.cohort_size, None)
    except ParticipationError:
        return None  # said already


def from_figures(settings: PlanSettings) -> Planned:
    """Return the plan that `settings` describe."""
    budget = make_budget(settings)
    problem = participation_problem(settings)
    noise = model_noise(settings)
    budget = replace(budget, floating_point=_floating_point(settings, budget, noise))
    event = budget.event(_noise_multiplier(settings, budget), settings.keep_probability)
    ratio = _noise_over_signal(settings, budget, event, noise)
    return Planned(
        budget=budget,
        event=event,
        target=settings.epsilon,
        mechanism=settings.mechanism.name,
        workload=settings.workload,
        cohort_size=settings.cohort_size,
        padded=None
        if settings.dimension is None
        else padded_dimension(settings.dimension, settings.rotation),
        value_type="float32",
        noise=noise,
        noise_over_signal=ratio,
        unit=UNIT,
        not_covered=NOT_COVERED,
        orders=settings.orders,
        feasible=problem is None,
        comparable=not linf_unknown(settings),
        warnings=tuple(filter(None, (problem, *_misgivings(settings, budget, event, ratio)))),
    )


def _noise_multiplier(settings: PlanSettings, budget: Budget) -> float:
    """Return the noise multiplier that was given, or the one that the epsilon given needs."""
    if settings.noise_multiplier is not None:
        return settings.noise_multiplier
    assert settings.epsilon is not None  # `PlanSettings` checks that
    return budget.noise_multiplier(settings.epsilon, settings.keep_probability)


def _floating_point(settings: PlanSettings, budget: Budget, noise: ModelNoise | None) -> FloatingPoint | None:
    """Return what finite precision adds to epsilon; None where dimension, cohort or rounds are not known."""
    cohort_size, dimension, rounds = (
        settings.cohort_size,
        settings.dimension,
        rounds_per_epoch(settings),
    )
    noise_multiplier = _noise_multiplier(settings, budget)  # without it, and so no more than what it will be
    if noise is None or cohort_size is None or dimension is None or rounds is None or noise_multiplier == 0:
        return None
    price = finite_precision(
        noise.precision,
        dimension=dimension,
        rounds=rounds,
        cohort_size=cohort_size,
        noise_multiplier=noise_multiplier,
        delta=budget.delta,
    )
    event = budget.event(noise_multiplier, settings.keep_probability)
    if replace(budget, epochs=1).spent(event).epsilon <= LARGEST:
        check_price(price, f"{rounds * budget.epochs} rounds of {settings.mechanism.name}", dimension)
    return price if price.a <= MOST else None


def _noise_over_signal(
    settings: PlanSettings, budget: Budget, event: EpochEvent, noise: ModelNoise | None
) -> float | None:
    """Return the noise in the last model over its signal; None where cohort size or rounds are not known."""
    if settings.cohort_size is None or noise is None:
        return None
    mean_noise = budget.counted_over_l2 * mean_noise_std(
        event.noise_multiplier,
        keep_probability=event.keep_probability,
        cohort_size=settings.cohort_size,
    )
    return noise_over_signal(mean_noise=mean_noise, error=noise.last_error, reach=noise.last_reach)


def _rare_masks(settings: PlanSettings, budget: Budget, event: EpochEvent) -> bool:
    """Return whether a larger keep probability would leave less noise at the same epsilon, if one was asked for."""
    epsilon = settings.epsilon
    return epsilon is not None and masks_add_noise(event, lambda keep: budget.noise_multiplier(epsilon, keep))


def _misgivings(
    settings: PlanSettings, budget: Budget, event: EpochEvent, ratio: float | None
) -> list[str | None]:
    """Return what `fedmf.outlook` says of a plan, as far as it is known."""
    clients, cohort_size, rounds = (
        settings.clients,
        settings.cohort_size,
        rounds_per_epoch(settings),
    )
    said: list[str | None] = (
        [epsilon_warning(budget.spent(event).epsilon)] if event.noise_multiplier > 0 else []
    )
    if ratio is not None:
        said.append(
            about_noise(
                ratio,
                dimension=settings.dimension,
                calibrated=settings.epsilon is not None,
                rare_masks=lambda: _rare_masks(settings, budget, event),
            )
        )
    if clients is not None and event.noise_multiplier > 0:
        said.append(delta_warning(settings.delta, clients))
    if clients is not None and cohort_size is not None and rounds is not None:
        said.append(about_unasked(clients, cohort_size=cohort_size, rounds_per_epoch=rounds))
    if cohort_size is not None:
        said.append(about_cohort(cohort_size))
    return said


def participation_problem(settings: PlanSettings) -> str | None:
    """Return why the cohorts of an epoch cannot be disjoint, with the largest that fits; None if they can.

    Also None where clients or cohort_size is not given.
    """
    if settings.clients is None or settings.cohort_size is None:
        return None
    try:
        rounds_that_fit(settings.clients, settings.cohort_size, settings.rounds_per_epoch)
    except ParticipationError as error:
        return str(error)
    return None

"""The noise that a planned run leaves in its model: the mechanism's error over all its rounds."""

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from experiments.plan.budget import PlanSettings
from fedmf.errors import ParticipationError
from fedmf.participation import rounds_that_fit

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

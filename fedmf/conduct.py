"""How a run went, and the statement that follows from that and from its plan.

`write_statement` is the only place that decides what is said of a run's privacy.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from fedmf.accounting import Ledger
from fedmf.accounting.caveats import CHOICE, LARGEST, LONGER, NOT_COVERED, delta_warning, epsilon_warning
from fedmf.errors import SettingError
from fedmf.plan import Plan
from fedmf.statement import SECRETS_FROM_SYSTEM, Statement, counted

SECRETS_REPRODUCIBLE = "reproducible, NOT private"
UNIT_OF_PRIVACY = "one client"
RELEASED = (
    "every model iterate, hence every noisy sum of every round, to anyone, also to an adversary who chooses "
    "later updates after seeing earlier releases"
)
TRUST = (
    "the server is trusted: it sees masked updates without noise and holds the mask and noise keys "
    "(central privacy)"
)
NOT_COVERED_METRICS = (
    "unprotected metrics: the measured size of what a cohort sent in each round, "
    "which depends on the secret masks"
)
WARNING_METRICS = (
    "Unprotected metrics are switched on: what they reveal about a client is not bounded by epsilon."
)
NOT_COVERED_UNREADY = (
    "which nodes an epoch began with: with unready_nodes=without a node whose data could not be loaded is left out, which "
    "its data alone can decide"
)
WARNING_COPY = (
    "A session of this run had accept_copy=true, which lets a copy of a run, or an older state of it, continue: if anybody "
    "saw later rounds of another copy, the same noise has covered other replies, and epsilon does not hold."
)
WARNING_NOT_PRIVATE = "NOT private: the noise multiplier is 0, epsilon is infinite."
WARNING_REPRODUCIBLE = (
    "NOT private as run: masks and noise follow from a public seed, so anyone can recompute and remove them; the "
    "figures describe the same run with secrets from the operating system."
)


@dataclass(frozen=True)
class Conduct:
    """How a run went, as far as its plan does not say it already.

    epochs: epochs started, each of which counts whole.  reproducible: masks and noise follow from a public seed.
    participation_observed: the largest number of epochs any one client took part in, None before that is known.
    unprotected_metrics: figures that no noise covers were recorded.  optimized_metric: the figure that is handed to
    the user who chooses settings by several runs, None for none.  accepts_copy: a session had the permission
    to continue a copy.  leaves_out_unready: epochs began without nodes whose data could not be loaded.
    unit_of_privacy: what one client is; say so where a large
    user was cut into several.  uncovered: a sentence for each thing learnt from the training users
    outside the mechanism.  ledger: the events of the epochs started, from which epsilon is computed; None where all
    are the plan's.  Raises `SettingError` for a ledger of another number of epochs.
    """

    epochs: int
    reproducible: bool
    participation_observed: int | None = None
    unprotected_metrics: bool = False
    optimized_metric: str | None = None
    accepts_copy: bool = False
    leaves_out_unready: bool = False
    unit_of_privacy: str = UNIT_OF_PRIVACY
    uncovered: tuple[str, ...] = ()
    ledger: Ledger | None = None

    def __post_init__(self) -> None:
        if self.ledger is not None and len(self.ledger.entries) != self.epochs:
            raise SettingError(
                f"epochs is {self.epochs}, but the ledger holds {len(self.ledger.entries)}; give those of the ledger."
            )


def write_statement(plan: Plan, conduct: Conduct) -> Statement:
    """Return the statement of a run that followed `plan` as `conduct` says.

    The radii stated are those accounted, (1 + TAU) times the clip norm with int8. Raises `SettingError` as
    `Statement` does.
    """
    event, who = plan.epoch_event, plan.participation
    spent = plan.spent(conduct.epochs) if conduct.ledger is None else plan.spent_on(conduct.ledger)
    noisy = event.noise_multiplier > 0 and spent.is_private
    return Statement(
        private=noisy and not conduct.reproducible and spent.epsilon <= LARGEST,
        unit_of_privacy=conduct.unit_of_privacy,
        adjacency=spent.adjacency,
        released=RELEASED,
        trust=TRUST,
        mechanism=plan.factorization.family,
        rounds_per_epoch=who.rounds_per_epoch,
        epochs=conduct.epochs,
        epochs_planned=who.epochs,
        parts=who.epochs_of_parts,
        cohort_size=who.cohort_size,
        clients=who.clients,
        keep_probability=event.keep_probability,
        geometry=plan.privacy.geometry,
        coordinates=plan.rotation.padded,
        l2_norm=plan.bounds.radius,
        linf_norm=plan.bounds.linf_norm,
        linf_over_l2=event.linf_over_l2,
        ratio=event.ratio,
        sigma=plan.sigma,
        sigma_by_epoch=tuple(plan.sigma_in(epoch) for epoch in range(who.epochs)),
        noise_multiplier=event.noise_multiplier,
        effective_noise_multiplier=event.effective_noise_multiplier,
        epsilon=spent.epsilon if noisy else math.inf,
        epsilon_rdp=spent.epsilon_rdp if noisy else math.inf,
        epsilon_exact=spent.epsilon_exact,
        epsilon_tight=spent.epsilon_tight,
        delta=spent.delta,
        floating_point=plan.floating_point,
        order=spent.order,
        accountant=spent.accountant,
        participation_planned=who.epochs,
        participation_observed=conduct.participation_observed,
        secrets=SECRETS_REPRODUCIBLE if conduct.reproducible else SECRETS_FROM_SYSTEM,
        not_covered=(*NOT_COVERED, *_not_covered_besides(plan, conduct)),
        warnings=_warnings(plan, conduct, spent.epsilon if noisy else None),
    )


def _not_covered_besides(plan: Plan, conduct: Conduct) -> Iterator[str]:
    """Yield what epsilon does not cover of this run though it covers it of others."""
    if len(plan.participation.parts) > 1:
        yield LONGER.format(epochs=plan.participation.epochs)
    if conduct.unprotected_metrics:
        yield NOT_COVERED_METRICS
    if conduct.leaves_out_unready:
        yield NOT_COVERED_UNREADY
    if conduct.optimized_metric is not None:
        yield CHOICE.format(metric=conduct.optimized_metric)


def _warnings(plan: Plan, conduct: Conduct, epsilon: float | None) -> tuple[str, ...]:
    """Return the warnings of a run of this `epsilon`, None without noise."""
    about = (
        [epsilon_warning(epsilon), delta_warning(plan.privacy.delta, plan.participation.clients)]
        if epsilon
        else []
    )
    said = (
        WARNING_NOT_PRIVATE if epsilon is None else None,
        WARNING_REPRODUCIBLE if conduct.reproducible else None,
        *(f"Warning: {sentence}" for sentence in about if sentence is not None),
        WARNING_COPY if conduct.accepts_copy else None,
        WARNING_METRICS if conduct.unprotected_metrics else None,
        _other_events(plan, conduct),
    )
    return tuple(sentence for sentence in said if sentence is not None) + conduct.uncovered


def _other_events(plan: Plan, conduct: Conduct) -> str | None:
    """Return what to say where epochs began with another event than the plan's; None where none did."""
    entries = () if conduct.ledger is None else conduct.ledger.entries
    others = [entry for entry in entries if not entry.agrees_with(plan.epoch_event)]
    if not others:
        return None
    least = min(others, key=lambda entry: entry.noise_multiplier)
    return (
        f"Warning: {len(others)} of {counted(len(entries), 'started epoch')} began otherwise than stated, with a noise "
        f"multiplier down to {least.noise_multiplier:.4g}; epsilon is that of all epochs as they began."
    )

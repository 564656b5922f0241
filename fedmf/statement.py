"""The privacy statement of one run: the same facts as privacy.json and as a paragraph in plain words.

`write_statement` is the only place that decides what is said; `Statement` checks, holds and prints it.
"""

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fedmf.accounting import Ledger
from fedmf.accounting.caveats import CHOICE, LONGER, NOT_COVERED, TIGHT, delta_warning
from fedmf.checks import check_at_least, check_non_negative, check_positive
from fedmf.errors import SettingError
from fedmf.plan import Plan

SECRETS_FROM_SYSTEM = "from the operating system"
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
NOT_COVERED_STOP = (
    "that a round was released at all: a run that stops if all clients of a round fail in training shows whether they "
    "did, which their data alone can decide"
)
WARNING_STOP = (
    "This run stops where all clients of a round fail in training: what a stop, or that there was none, reveals about a "
    "client is not bounded by epsilon."
)
WARNING_NOT_PRIVATE = "NOT private: the noise multiplier is 0, epsilon is infinite."
WARNING_REPRODUCIBLE = (
    "NOT private as run: masks and noise follow from a public seed, so anyone can recompute and remove them; the "
    "figures describe the same run with secrets from the operating system."
)


@dataclass(frozen=True)
class Statement:
    """Everything a reader needs to judge one run's privacy; epsilon is in nats.

    private: noise was added and nobody can recompute it; False for a seeded run, whose epsilon is that of
    the same run with secret keys.  sigma = noise_multiplier * kappa_2, kappa_2 = (largest column norm of C)
    * l2_norm; sigma_by_epoch has it for each planned epoch, whose C is its own, and sigma is the largest. l2_norm (Delta_2) and linf_norm (Delta_inf) are the radii that the clients enforce, ratio is
    K = (kappa_2/kappa_inf)^2.  participation_planned and participation_observed count epochs of one client,
    the observed one is None before a run ends.  parts: how many of the planned epochs were planned when the run began,
    and how many were added each time that it was extended.  Raises `SettingError` for impossible values, also for an
    observed participation above the epochs started: the accounting would not cover it.
    """

    private: bool
    unit_of_privacy: str
    adjacency: str
    released: str
    trust: str
    mechanism: str
    rounds_per_epoch: int
    epochs: int
    epochs_planned: int
    parts: tuple[int, ...]
    cohort_size: int
    clients: int
    keep_probability: float
    l2_norm: float | None
    linf_norm: float | None
    linf_over_l2: float
    ratio: float
    sigma: float
    sigma_by_epoch: tuple[float, ...]
    noise_multiplier: float
    effective_noise_multiplier: float
    epsilon: float
    epsilon_rdp: float
    epsilon_exact: float | None
    epsilon_tight: float | None
    delta: float
    order: float | None
    accountant: str
    participation_planned: int
    participation_observed: int | None
    secrets: str
    not_covered: tuple[str, ...]
    warnings: tuple[str, ...]

    def __post_init__(self) -> None:
        check_at_least("rounds_per_epoch", self.rounds_per_epoch, 1)
        check_at_least("epochs", self.epochs, 0)
        check_at_least("epochs_planned", self.epochs_planned, self.epochs)
        if sum(self.parts) != self.epochs_planned:
            raise SettingError(
                f"parts is {self.parts}, which is not epochs_planned={self.epochs_planned} together."
            )
        check_at_least("cohort_size", self.cohort_size, 1)
        check_at_least("clients", self.clients, 1)
        check_non_negative("sigma", self.sigma)
        for name, norm in (("l2_norm", self.l2_norm), ("linf_norm", self.linf_norm)):
            if norm is not None:
                check_positive(name, norm)
        if self.participation_observed is not None and self.participation_observed > self.epochs:
            raise SettingError(
                f"participation_observed is {self.participation_observed} in {self.epochs} epochs; a client "
                "may take part at most once per epoch."
            )

    def to_dict(self) -> dict[str, Any]:
        """Return the statement as JSON-ready values (privacy.json): infinite becomes None, tuples lists."""
        return {field.name: _plain(getattr(self, field.name)) for field in dataclasses.fields(self)}

    def paragraph(self) -> str:
        """Return the statement in plain words, one paragraph."""
        parts = [
            self._headline(),
            self._mechanism(),
            self._participation(),
            f"Secrets: {self.secrets}.",
            *self.warnings,
        ]
        parts.append(f"Not covered: {'; '.join(self.not_covered)}.")
        return " ".join(parts)

    def _headline(self) -> str:
        if not math.isfinite(self.epsilon):
            return (
                "This run is NOT private: it adds no noise, so epsilon is infinite at every delta, under "
                f"{self.adjacency} as under any adjacency, for {self.unit_of_privacy}. Released: "
                f"{self.released}."
            )
        label = (
            ""
            if self.secrets == SECRETS_FROM_SYSTEM
            else "NOT private as run (reproducible secrets); with secret keys: "
        )
        relation = {
            "zero_out": "zero-out adjacency: one client's vector replaced by zero in its round",
            "replace": "replacement adjacency: one client's data changed to another's",
        }[self.adjacency]
        return (
            f"{label}epsilon = {self.epsilon:.4g} at delta = {self.delta:.3g} ({self._how()}), for "
            f"{self.unit_of_privacy}, under {relation}. Released: {self.released}; {self.trust}."
        )

    def _how(self) -> str:
        """How epsilon was computed, and the Renyi number beside it where it is another one."""
        if self.epsilon_exact is not None:
            return f"exact value for the Gaussian mechanism; by Renyi divergence {self.epsilon_rdp:.4g}"
        if self.accountant == "tight":
            return f"accountant tight, {TIGHT}; by Renyi divergence {self.epsilon_rdp:.4g}"
        return f"accountant {self.accountant}, best Renyi order {self.order or 0:.4g}"

    def _mechanism(self) -> str:
        clip = (
            "without clipping"
            if self.l2_norm is None
            else f"held to L2 norm {self.l2_norm:.4g}, its coordinates to {self.linf_norm or self.l2_norm:.4g}"
        )
        kept = (
            "every coordinate is sent"
            if self.keep_probability == 1
            else f"each coordinate is sent with probability {self.keep_probability:.4g} by fresh secret masks"
        )
        lowest, largest = f"{min(self.sigma_by_epoch):.4g}", f"{self.sigma:.4g}"
        sigma = largest if lowest == largest else f"{lowest} to {largest}, by epoch,"
        return (
            f"Mechanism {self.mechanism}: each update is {clip}, {kept}, and noise of standard deviation "
            f"sigma = {sigma} enters the sum (noise multiplier {self.noise_multiplier:.4g} of "
            f"the sum, {self.effective_noise_multiplier:.4g} of the mean; K = {self.ratio:.6g})."
        )

    def _participation(self) -> str:
        observed = (
            ""
            if self.participation_observed is None
            else f" (observed: at most {_counted(self.participation_observed)})"
        )
        return (
            f"{self.epochs} of {_counted(self.epochs_planned, 'planned epoch')} started, each of "
            f"{self.rounds_per_epoch} rounds with {self.cohort_size} of {self.clients} clients; a "
            f"client takes part at most once per epoch, so in at most "
            f"{_counted(self.participation_planned)}{observed}; a started epoch counts whole.{self._extension()}"
        )

    def _extension(self) -> str:
        """Say of an extended run what its epsilon covers; nothing of another."""
        if len(self.parts) == 1:
            return ""
        first, *added = self.parts
        return (
            f" The run had ended after {_counted(first)}, and was extended by "
            f"{' and then by '.join(map(_counted, added))} when all before had been released. Epsilon is that of all "
            f"{_counted(self.epochs, 'started epoch')} together; it also covers the choice to go on, which may follow from "
            f"what was released before, as long as it never leads to more than {self.epochs_planned} (adaptive "
            "composition of equal epochs)."
        )


def _counted(number: int, noun: str = "epoch") -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


@dataclass(frozen=True)
class Conduct:
    """How a run went, as far as its plan does not say it already.

    epochs: epochs started, each of which counts whole.  reproducible: masks and noise follow from a public seed.
    participation_observed: the largest number of epochs any one client took part in, None before that is known.
    unprotected_metrics: figures that no noise covers were recorded.  optimized_metric: the figure that is handed to
    whoever chooses settings by several runs, None for none.  stops_if_all_fail: the run would have stopped before a
    round in which every client failed in training.  unit_of_privacy: what one client is; say so where a large
    user was cut into several.  uncovered: a sentence for each thing learnt from the training users
    outside the mechanism.  ledger: the events of the epochs started, from which epsilon is computed; None where all
    are the plan's.  Raises `SettingError` for a ledger of another number of epochs.
    """

    epochs: int
    reproducible: bool
    participation_observed: int | None = None
    unprotected_metrics: bool = False
    optimized_metric: str | None = None
    stops_if_all_fail: bool = False
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
        private=noisy and not conduct.reproducible,
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
        order=spent.order,
        accountant=spent.accountant,
        participation_planned=who.epochs,
        participation_observed=conduct.participation_observed,
        secrets=SECRETS_REPRODUCIBLE if conduct.reproducible else SECRETS_FROM_SYSTEM,
        not_covered=(*NOT_COVERED, *_not_covered_besides(plan, conduct)),
        warnings=_warnings(plan, conduct, noisy=noisy),
    )


def _not_covered_besides(plan: Plan, conduct: Conduct) -> Iterator[str]:
    """Yield what epsilon does not cover of this run though it covers it of others."""
    if len(plan.participation.parts) > 1:
        yield LONGER.format(epochs=plan.participation.epochs)
    if conduct.unprotected_metrics:
        yield NOT_COVERED_METRICS
    if conduct.stops_if_all_fail:
        yield NOT_COVERED_STOP
    if conduct.optimized_metric is not None:
        yield CHOICE.format(metric=conduct.optimized_metric)


def _warnings(plan: Plan, conduct: Conduct, *, noisy: bool) -> tuple[str, ...]:
    about_delta = delta_warning(plan.privacy.delta, plan.participation.clients) if noisy else None
    said = (
        None if noisy else WARNING_NOT_PRIVATE,
        WARNING_REPRODUCIBLE if conduct.reproducible else None,
        None if about_delta is None else f"Warning: {about_delta}",
        WARNING_METRICS if conduct.unprotected_metrics else None,
        WARNING_STOP if conduct.stops_if_all_fail else None,
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
        f"Warning: {len(others)} of {_counted(len(entries), 'started epoch')} began otherwise than stated, with a noise "
        f"multiplier down to {least.noise_multiplier:.4g}; epsilon is that of all epochs as they began."
    )


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value

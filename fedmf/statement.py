"""The privacy statement of one run: the same facts as privacy.json and as a paragraph in plain words.

`write_statement` makes it from the plan of a run and the history of it, its `Conduct`; no other function decides what is
stated about a run's privacy.
"""

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from fedmf.accounting import Ledger, PrivacySpent
from fedmf.accounting.caveats import (
    LARGEST,
    LONGER,
    NOT_COVERED,
    TIGHT,
    delta_warning,
    epsilon_warning,
)
from fedmf.accounting.floating_point import FloatingPoint
from fedmf.checks import counted, rounded_up
from fedmf.clip_norm import AdaptiveClipping

if TYPE_CHECKING:  # a plan needs the mechanisms, which take longer to import than a statement should
    from fedmf.plan import Plan

SECRETS_FROM_SYSTEM = "from the operating system"
SECRETS_REPRODUCIBLE = "reproducible, NOT private"


@dataclass(frozen=True)
class Statement(PrivacySpent):
    """Everything a reader needs to judge one run's privacy: what it spent, where epsilon is in nats, and of what run.

    private: noise was added, it cannot be recomputed, and epsilon is at most `caveats.LARGEST`; False for a seeded run, whose
    epsilon is that of the same run with secret keys.  sigma = noise_multiplier * kappa_2, kappa_2 = (largest column norm of C)
    * l2_norm, or with geometry "linf" * sqrt(coordinates) linf_norm: `EpochEvent`; sigma_by_epoch has it for each planned
    epoch, whose C is its own, and sigma is the largest.  l2_norm (Delta_2) and linf_norm (Delta_inf) are the radii that the
    clients enforce, ratio is K = (kappa_2/kappa_inf)^2.  participation_planned and participation_observed count epochs of one
    client, the observed one is None before a run ends.  parts: how many of the planned epochs were planned when the run
    began, and how many were added each time that it was extended.  floating_point: what finite precision adds, which epsilon
    contains.  clipping: where the clip norm adapts, how it moves and the noise of its counts, which epsilon contains; radii and
    sigmas are then those of the first epoch.
    """

    private: bool
    unit_of_privacy: str
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
    geometry: str
    coordinates: int
    l2_norm: float | None
    linf_norm: float | None
    linf_over_l2: float
    ratio: float
    sigma: float
    sigma_by_epoch: tuple[float, ...]
    noise_multiplier: float
    effective_noise_multiplier: float
    floating_point: FloatingPoint | None
    participation_planned: int
    participation_observed: int | None
    secrets: str
    not_covered: tuple[str, ...]
    warnings: tuple[str, ...]
    clipping: AdaptiveClipping | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the statement as JSON-ready values (privacy.json): infinite becomes None, tuples lists."""
        said: dict[str, Any] = json.loads(json.dumps(asdict(self)), parse_constant=lambda _: None)
        if self.clipping is None:
            del said["clipping"]
        return said

    def paragraph(self) -> str:
        """Return the statement in plain words, one paragraph."""
        parts = self._headline(), self._mechanism(), self._participation(), f"Secrets: {self.secrets}."
        return " ".join([*parts, *self.warnings, f"Not covered: {'; '.join(self.not_covered)}."])

    def _headline(self) -> str:
        if not math.isfinite(self.epsilon):
            return (
                "This run is NOT private: it adds no noise, so epsilon is infinite at every delta, under "
                f"{self.adjacency} as under any adjacency, for {self.unit_of_privacy}. Released: "
                f"{self.released}."
            )
        label = "" if self.private else "No privacy is claimed: "
        if self.secrets != SECRETS_FROM_SYSTEM:
            label = "NOT private as run (reproducible secrets); with secret keys: "
        relation = {
            "zero_out": "zero-out adjacency: one client's vector replaced by zero in its round",
            "replace": "replacement adjacency: one client's data changed to another's",
        }[self.adjacency]
        return (
            f"{label}epsilon = {rounded_up(self.epsilon)} at delta = {rounded_up(self.delta)} ({self._how()}), for "
            f"{self.unit_of_privacy}, under {relation}. Released: {self.released}; {self.trust}."
        )

    def _how(self) -> str:
        """Return how epsilon was computed, and the Renyi number where it is another one."""
        if self.epsilon_exact is not None:
            return (
                f"exact value for the Gaussian mechanism; by Renyi divergence {rounded_up(self.epsilon_rdp)}"
            )
        if self.accountant == "tight":
            return f"accountant tight, {TIGHT}; by Renyi divergence {rounded_up(self.epsilon_rdp)}"
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
        text = (
            f"Mechanism {self.mechanism}: each update is {clip}, {kept}, and noise of standard deviation "
            f"sigma = {sigma} enters the sum (noise multiplier {self.noise_multiplier:.4g} of "
            f"the sum, {self.effective_noise_multiplier:.4g} of the mean; K = {self.ratio:.6g})."
        )
        if self.geometry == "linf" and self.linf_norm is not None and math.isfinite(self.epsilon):
            radius = self.linf_norm * math.sqrt(self.coordinates)
            text += (
                f" Epsilon is counted from the L-infinity bound alone: all {self.coordinates} coordinates of a client's "
                f"vector may be at it, which together is an L2 norm of {radius:.4g} (L_inf-CSGM, a baseline: its noise is "
                "relative to that norm)."
            )
        if self.clipping is not None:
            text += (
                " Norms and sigma are those of the first epoch. After each epoch they move by one factor, to the "
                f"{self.clipping.quantile:g} quantile of the clients' norms before clipping: each client also sends one bit, whether "
                "its norm is within the bound, and the number of these in the epoch is released once, with noise of standard deviation "
                f"{self.clipping.noise or 0:.4g}{'; its cost is contained in epsilon.' if math.isfinite(self.epsilon) else '.'} One client "
                "changes that number by at most 1: where its vector is replaced by zero, so is its bit."
            )
        # Above the largest epsilon the price of floating point is not proved.
        if self.floating_point is not None and self.epsilon <= LARGEST:
            text += (
                " The noise that is released lies on one lattice whatever the data are. Its law and that of the real numbers "
                f"of the theorem differ by at most a factor e^a in the probability of any event, a = {self.floating_point.a:.2g}: "
                "2 a is contained in epsilon."
            )
        return text

    def _participation(self) -> str:
        observed = (
            ""
            if self.participation_observed is None
            else f" (observed: at most {counted(self.participation_observed)})"
        )
        text = (
            f"{self.epochs} of {counted(self.epochs_planned, 'planned epoch')} started, each of "
            f"{counted(self.rounds_per_epoch, 'round')} with {self.cohort_size} of {self.clients} clients; a "
            f"client takes part at most once per epoch, so in at most "
            f"{counted(self.participation_planned)}{observed}; a started epoch counts whole."
        )
        first, *added = self.parts
        if added:
            text += (
                f" The run had ended after {counted(first)}, and was extended by "
                f"{' and then by '.join(map(counted, added))} when all before had been released. Epsilon is that of all "
                f"{counted(self.epochs, 'started epoch')} together; it also covers the choice to extend it, which may follow "
                f"from what was released before, as long as it never leads to more than {self.epochs_planned} (adaptive "
                "composition of equal epochs)."
            )
        return text


@dataclass(frozen=True)
class Conduct:
    """How a run went, as far as its plan does not say it already.

    reproducible: masks and noise follow from a public seed.  participation_observed: the largest number of epochs any one
    client took part in, None before that is known.  unprotected_metrics: figures that no noise covers were recorded.
    optimized_metric: the figure that is handed to the user who chooses settings by several runs, None for none.
    accepts_copy: a session had the permission to continue a copy.  leaves_out_unready: epochs began without nodes whose data
    could not be loaded.  unit_of_privacy: what one client is, also where a large user was cut into several.  uncovered: a
    sentence for each thing learnt from the training users outside the mechanism.
    """

    reproducible: bool
    participation_observed: int | None = None
    unprotected_metrics: bool = False
    optimized_metric: str | None = None
    accepts_copy: bool = False
    leaves_out_unready: bool = False
    unit_of_privacy: str = "one client"
    uncovered: tuple[str, ...] = ()


def write_statement(plan: "Plan", ledger: Ledger, conduct: Conduct) -> Statement:
    """Return the statement of a run that followed `plan` as `conduct` says, and started the epochs in `ledger`.

    The radii stated are those accounted, (1 + TAU) times the clip norm with int8.
    """
    event, who, spent, epochs = (
        plan.epoch_event,
        plan.participation,
        plan.spent_on(ledger),
        len(ledger.entries),
    )
    assert (conduct.participation_observed or 0) <= epochs, "a client took part twice in an epoch"
    if event.noise_multiplier == 0:
        spent = replace(spent, epsilon=math.inf, epsilon_rdp=math.inf)
    return Statement(
        **vars(spent),
        private=math.isfinite(spent.epsilon) and not conduct.reproducible and spent.epsilon <= LARGEST,
        unit_of_privacy=conduct.unit_of_privacy,
        released="every model iterate, hence every noisy sum of every round, to anyone, also to an adversary who chooses later "
        "updates after seeing earlier releases",
        trust="the server is trusted: it sees masked updates without noise and holds the mask and noise keys (central privacy)",
        mechanism=plan.factorization.family,
        rounds_per_epoch=who.rounds_per_epoch,
        epochs=epochs,
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
        floating_point=plan.floating_point,
        participation_planned=who.epochs,
        participation_observed=conduct.participation_observed,
        secrets=SECRETS_REPRODUCIBLE if conduct.reproducible else SECRETS_FROM_SYSTEM,
        not_covered=(*NOT_COVERED, *_not_covered_besides(plan, conduct)),
        warnings=tuple(_warnings(plan, ledger, conduct, spent.epsilon)),
        clipping=plan.clipping,
    )


def _not_covered_besides(plan: "Plan", conduct: Conduct) -> Iterator[str]:
    """Yield what epsilon does not cover of this run though it covers it of others."""
    if len(plan.participation.parts) > 1:
        yield LONGER.format(epochs=plan.participation.epochs)
    if conduct.unprotected_metrics:
        yield (
            "unprotected metrics of each round: the norms of its clients' updates and how many were clipped, their mean loss, the "
            "noise relative to their sum, and the measured size of what they sent, which depends on the secret masks"
        )
    if conduct.leaves_out_unready:
        yield (
            "which nodes an epoch began with: with unready_nodes=without a node whose data could not be loaded is left out, "
            "which its data alone can decide"
        )
    if conduct.optimized_metric is not None:
        yield (
            f"choosing settings by the {conduct.optimized_metric} of several runs, of which this one hands it to a sweep: every run "
            "on the same clients spends an epsilon of its own, and they compose"
        )


def _warnings(plan: "Plan", ledger: Ledger, conduct: Conduct, epsilon: float) -> Iterator[str]:
    """Yield the warnings of a run of this `epsilon`, infinite without noise."""
    if epsilon == math.inf:
        yield "NOT private: the noise multiplier is 0, epsilon is infinite."
    if conduct.reproducible:
        yield (
            "NOT private as run: masks and noise follow from a public seed, so anyone can recompute and remove them; the "
            "figures describe the same run with secrets from the operating system."
        )
    if 0 < epsilon < math.inf:
        about = (epsilon_warning(epsilon), delta_warning(plan.privacy.delta, plan.participation.clients))
        yield from (f"Warning: {sentence}" for sentence in about if sentence is not None)
    if conduct.accepts_copy:
        yield (
            "A session of this run had accept_copy=true, which lets a copy of a run, or an older state of it, continue: if "
            "anybody saw later rounds of another copy, the same noise has covered other replies, and epsilon does not hold."
        )
    if conduct.unprotected_metrics:
        yield "Unprotected metrics are switched on: what they reveal about a client is not bounded by epsilon."
    if others := [entry for entry in ledger.entries if not entry.agrees_with(plan.epoch_event)]:
        least = min(entry.noise_multiplier for entry in others)
        yield (
            f"Warning: {len(others)} of {counted(len(ledger.entries), 'started epoch')} began otherwise than stated, with a "
            f"noise multiplier down to {least:.4g}; epsilon is that of all epochs as they began."
        )
    yield from conduct.uncovered

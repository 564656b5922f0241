"""The plan of a run: participation, bounds, mechanism and accountant in one value, so that they agree."""

import math
from bisect import bisect_right
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

from fedmf.accounting import (
    EpochEvent,
    FloatingPoint,
    Ledger,
    PrivacySpent,
    calibrate_noise_multiplier,
    finite_precision,
    privacy_spent,
)
from fedmf.accounting.calibration import DIGITS, LARGEST as MOST_MULTIPLIER, solve_noise_multiplier
from fedmf.accounting.caveats import LARGEST
from fedmf.accounting.floating_point import check_price, stated
from fedmf.accounting.target import PrivacyTarget
from fedmf.checks import counted, rounded_up
from fedmf.clip_norm import MORE_NOISE, MOST_NOISE, AdaptiveClipping
from fedmf.errors import PrivacyBudgetExhausted, SettingError
from fedmf.mechanisms.factorization import Factorization
from fedmf.mechanisms.run_factorization import RunFactorization, as_run, restarted
from fedmf.participation import Participation
from fedmf.randomness import PublicSeed
from fedmf.updates.client_plan import ClientPlan, Compression, make_bounds, make_client_plan
from fedmf.updates.rotation import Rotation
from fedmf.updates.wire import Bounds, value_bytes

__all__ = ["Compression", "Participation", "Plan", "PrivacyTarget", "make_bounds", "make_plan"]


@dataclass(frozen=True)
class Plan:
    """Everything that client, server and accountant must agree on. Make one with `make_plan`.

    `bounds` hold for each client's rotated vector; `noise_multiplier` is sigma over kappa_2 = sensitivity of C times
    `counted_radius`, the same in every epoch; `factorization` has one factorization of T = `participation.rounds_per_epoch` rounds
    for each of the E epochs. `clipping` is how the clip norm moves from epoch to epoch: then all bounds here are those of the first.
    """

    dimension: int
    participation: Participation
    compression: Compression
    bounds: Bounds
    privacy: PrivacyTarget
    noise_multiplier: float
    factorization: RunFactorization
    seed: PublicSeed
    clipping: AdaptiveClipping | None = None

    def __post_init__(self) -> None:
        made = len(self.factorization.epochs), self.factorization.rounds
        needed = self.participation.epochs, self.participation.rounds_per_epoch
        if made != needed:
            raise SettingError(
                f"the factorization is for {counted(made[0])} of {made[1]} rounds, but the run has {counted(needed[0])} of "
                f"{needed[1]}; make it for as many."
            )

    @cached_property
    def client_plan(self) -> ClientPlan:
        """What a client enforces itself, so that the bounds accounted are the bounds enforced."""
        return make_client_plan(
            dimension=self.dimension,
            compression=self.compression,
            bounds=self.bounds,
            seed=self.seed,
            sends_bit=self.clipping is not None,
        )

    @cached_property
    def rotation(self) -> Rotation:
        """The public rotation between model coordinates and sent ones."""
        return self.client_plan.rotation

    @cached_property
    def counted_radius(self) -> float | None:
        """The L2 radius of one client's rotated vector that is accounted; None where no bound is enforced.

        `bounds.radius`, or with geometry "linf" that of all D coordinates at the L-infinity bound.
        """
        if self.privacy.geometry == "l2":
            return self.bounds.radius
        linf_norm = self.bounds.linf_norm
        return None if linf_norm is None else linf_norm * math.sqrt(self.rotation.padded)

    @property
    def linf_over_l2(self) -> float:
        """kappa_inf / kappa_2 of the vectors accounted, in (0, 1]; 1 where no L-infinity bound is enforced."""
        if self.bounds.linf_norm is None or self.counted_radius is None:
            return 1.0
        return min(1.0, self.bounds.linf_norm / self.counted_radius)

    def sigma_in(self, epoch: int) -> float:
        """Standard deviation of each entry of Z in `epoch` (0-based), in units of the update.

        noise_multiplier times the sensitivity of that epoch's C, as its float32 tables deploy it, times the radius
        accounted.
        """
        if self.noise_multiplier == 0:
            return 0.0
        assert self.counted_radius is not None  # make_plan refuses noise without an L2 bound
        return self.noise_multiplier * self.factorization.epochs[epoch].sensitivity * self.counted_radius

    @cached_property
    def sigma(self) -> float:
        """The largest `sigma_in` of any epoch: where columns are unit in all of them they differ by rounding only."""
        return max(self.sigma_in(epoch) for epoch in range(self.participation.epochs))

    @cached_property
    def floating_point(self) -> FloatingPoint | None:
        """What finite precision adds to epsilon over all planned epochs; None of a run without noise.

        None too where it would add more than 2 `MOST`: `make_plan` refuses that but for runs that claim no privacy.
        """
        return stated(self._price_of(self.epoch_event))

    def _price_of(self, event: EpochEvent) -> FloatingPoint | None:
        """Return what finite precision adds to epochs with the noise of `event`; None without noise."""
        if event.noise_multiplier == 0:
            return None
        return finite_precision(
            [epoch.precision for epoch in self.factorization.epochs],
            dimension=self.dimension,
            rounds=self.participation.rounds_per_epoch,
            cohort_size=self.participation.cohort_size,
            noise_multiplier=event.noise_multiplier,
            delta=self.privacy.delta,
            count_noise=event.count_noise or None,
        )

    @property
    def count_noise(self) -> float:
        """z_s, the standard deviation of the noise on an epoch's count; 0 without a count, or where nothing has noise."""
        return 0.0 if self.clipping is None else self.clipping.noise or 0.0

    @property
    def precision(self) -> float:
        """The `a` of `floating_point`; 0 where that is None."""
        return 0.0 if self.floating_point is None else self.floating_point.a

    @property
    def epoch_event(self) -> EpochEvent:
        """The event that the ledger records when an epoch begins."""
        return EpochEvent(
            self.noise_multiplier,
            self.compression.keep_probability,
            self.linf_over_l2,
            None if self.clipping is None else self.count_noise,
        )

    @cached_property
    def denominator(self) -> float:
        """gamma n with the PLANNED n: what the noisy sum is divided by, however many answered."""
        return self.compression.keep_probability * self.participation.cohort_size

    @cached_property
    def counted_over_l2(self) -> float:
        """`counted_radius` over the radius enforced: 1 but for geometry "linf"; 1 where no bound is enforced."""
        return (self.counted_radius or 1.0) / (self.bounds.radius or 1.0)

    @property
    def mean_noise_std(self) -> float:
        """Noise on each coordinate of the mean of one independent round, in units of the radius enforced."""
        return self.counted_over_l2 * (self.noise_multiplier / self.denominator)

    @cached_property
    def value_bytes(self) -> float:
        """Expected bytes of values, and of the bit if there is one, that one client sends in a round."""
        values = value_bytes(
            self.rotation.padded, self.compression.keep_probability, self.compression.value_type
        )
        return values + self.client_plan.sends_bit

    def spent(self, epochs: int | None = None) -> PrivacySpent:
        """Return what `epochs` started epochs cost (all planned ones if None)."""
        return privacy_spent(
            self.epoch_event, self.participation.epochs if epochs is None else epochs, **self._terms
        )

    def spent_on(self, ledger: Ledger) -> PrivacySpent:
        """Return what the epochs in `ledger` cost, whatever this plan would have recorded.

        Finite precision costs what it would cost if all of them had the least noise of any, on their sums and on their counts.
        """
        others = [entry for entry in ledger.entries if not entry.agrees_with(self.epoch_event)]
        if not others:
            return ledger.spent(**self._terms)
        events = [self.epoch_event, *others]
        least = replace(
            self.epoch_event,
            noise_multiplier=min(event.noise_multiplier for event in events),
            count_noise=min(
                (event.count_noise for event in events if event.count_noise is not None), default=None
            ),
        )
        price = stated(self._price_of(least))
        return ledger.spent(**self._terms | {"precision": 0.0 if price is None else price.a})

    @property
    def _terms(self) -> dict[str, Any]:
        """What `privacy_spent` is asked besides events and epochs."""
        return {
            "delta": self.privacy.delta,
            "adjacency": self.privacy.adjacency,
            "accountant": self.privacy.accountant,
            "precision": self.precision,
        }

    def next_event(self, ledger: Ledger) -> EpochEvent:
        """Return the event of an epoch that begins now.

        An event that differs from the last one's by rounding only is that one, so that a resume on another machine
        leaves the epochs equal, as the tight accountant needs.
        """
        last = ledger.entries[-1:]
        return last[0] if last and last[0].agrees_with(self.epoch_event) else self.epoch_event

    def start_epoch(self, ledger: Ledger) -> Ledger:
        """Return the ledger with one more started epoch, `next_event`.

        Raises `PrivacyBudgetExhausted` if it would exceed max_epsilon.
        """
        if self.privacy.max_epsilon is not None:
            self._check_more(ledger, 1, "max_epsilon", self.privacy.max_epsilon)
        return ledger.record(self.next_event(ledger))

    def check_extension(self, ledger: Ledger, epochs: int) -> PrivacySpent:
        """Return what the epochs in `ledger` and `epochs` more of this plan's cost together, if that is allowed.

        Allowed is max_epsilon, or without one the target epsilon. What finite precision costs is that of the plan's
        epochs: ask the plan that holds all of them (`extended`).

        All epochs of an extended run are equal events. Whether and when further ones are added may follow from everything that was
        released: an epoch that is not run costs nothing, one that is run costs its event whatever came before, so that a procedure
        which under no outcome runs more than M epochs costs at most what M epochs do. That is adaptive composition with bounds
        that are fixed beforehand, under which Renyi divergences add up (Mironov 2017, Proposition 1), Gaussians add in mu^2 (Dong,
        Roth, Su 2022, Theorem 4), and the quadratic variation of docs/theory.md is bounded. A limit that is fixed before the first
        round is a privacy filter (Feldman and Zrnic 2021; Lecuyer 2021; Whitehouse et al. 2023). Where a limit is raised because of
        what was seen, the number is that of procedures which stop at the raised limit; docs/privacy.md, "More epochs than were planned".

        A run without noise costs no more by being longer. Raises `PrivacyBudgetExhausted` with the new epsilon otherwise, or without a limit.
        """
        asked = self.privacy
        limit = asked.epsilon if asked.max_epsilon is None else asked.max_epsilon
        name = "epsilon" if asked.max_epsilon is None else "max_epsilon"
        return self._check_more(ledger, epochs, name, math.inf if self.noise_multiplier == 0 else limit)

    def _check_more(self, ledger: Ledger, epochs: int, name: str, limit: float | None) -> PrivacySpent:
        """Return what the epochs in `ledger` and `epochs` more cost together, if `limit`, which is that of `name`, allows it."""
        after = self.spent_on(Ledger((*ledger.entries, *[self.next_event(ledger)] * epochs)))
        if limit is not None and after.epsilon <= limit:
            return after
        before, new = (rounded_up(spent.epsilon) for spent in (self.spent_on(ledger), after))
        why = "to which no limit was set" if limit is None else f"above {name}={limit:g}"
        allow = f"max_epsilon={new}" if math.isfinite(after.epsilon) else "max_epsilon=null, no limit at all"
        raise PrivacyBudgetExhausted(
            f"{counted(epochs, 'more epoch')} would bring epsilon from {before} to {new} at "
            f"delta={rounded_up(after.delta)} (one client, {after.adjacency}), {why}: not started. "
            f"If that is acceptable for the clients, allow it with {allow}."
        )

    @property
    def affordable_epochs(self) -> int:
        """How many of the planned epochs max_epsilon lets begin."""
        most, limit = self.participation.epochs, self.privacy.max_epsilon
        if limit is None:
            return most
        return bisect_right(range(1, most + 1), limit, key=lambda epochs: self.spent(epochs).epsilon)

    def extended(self, after: int, factorization: RunFactorization) -> Self:
        """Return the plan of a run that ended after `after` epochs and continues with the epochs of `factorization`.

        The noise multiplier stays what it was, so that all epochs are equal events. `factorization` is fitted to its
        own epochs, as if it were a run, and that is the best that can be done once the first epochs are out: a later
        round's squared error is its own part's plus what the earlier epochs left, which no later design changes. The
        earlier epochs were designed for fewer later rounds than there are now; their cost here counts all of them.
        """
        plan = replace(
            self,
            participation=self.participation.extended(after, len(factorization.epochs)),
            factorization=as_run((*self.factorization.epochs[:after], *factorization.epochs)),
        )
        plan.check_precision()
        return plan

    def calibrated(self, epsilon: float, *, precision: float) -> Self:
        """Return the plan with the least noise that all planned epochs cost at most `epsilon` with.

        Raises `SettingError` where none is enough.
        """
        if self.count_noise and replace(self, noise_multiplier=MOST_MULTIPLIER).spent().epsilon > epsilon:
            raise SettingError(
                f"adapt_noise is {self.count_noise:g}, with which the counts alone cost more than epsilon={epsilon:g}. "
                "Take a larger one, or set adapt_noise to None."
            )
        noise_multiplier = calibrate_noise_multiplier(
            epsilon=epsilon,
            keep_probability=self.compression.keep_probability,
            linf_over_l2=self.linf_over_l2,
            epochs=self.participation.epochs,
            count_noise=self.epoch_event.count_noise,
            **self._terms | {"precision": precision},
        )
        return replace(self, noise_multiplier=noise_multiplier)

    def _with_priced_count(self, clipping: AdaptiveClipping) -> Self:
        """Return the plan, which has no count, with the count that costs `MORE_NOISE` times the noise.

        Where an epsilon was asked for, that is more noise than the plan has; where a noise multiplier was, epsilon grows as if
        it were so much less. Where that epsilon is 0 or infinite, the count has the noise that is right at keep probability 1,
        1/z^2 + 1/z_s^2 = `MORE_NOISE`^2/z^2.
        """
        plan, target = self, self.privacy.epsilon
        if target is None:
            target = replace(self, noise_multiplier=self.noise_multiplier / MORE_NOISE).spent().epsilon
        else:
            plan = replace(
                self, noise_multiplier=float(rounded_up(MORE_NOISE * self.noise_multiplier, DIGITS))
            )
        near = plan.noise_multiplier / math.sqrt(MORE_NOISE**2 - 1)
        plan = replace(plan, clipping=replace(clipping, noise=near or None))
        if not 0 < target < math.inf:
            return plan
        return plan.with_count_noise(
            solve_noise_multiplier(
                lambda noise: plan.with_count_noise(noise).spent().epsilon, target, start=near
            )
        )

    def with_count_noise(self, noise: float) -> Self:
        """Return the plan, whose clip norm adapts, with another noise of its counts."""
        return replace(self, clipping=self.clipping and replace(self.clipping, noise=noise))

    def check_precision(self) -> None:
        """Raise `SettingError` where finite precision adds more than 2 `MOST` to an epsilon that any epoch could claim."""
        price = self._price_of(self.epoch_event)
        if price is not None and self.spent(1).epsilon <= LARGEST:
            check_price(
                price, f"{self.participation.rounds} rounds of {self.factorization.family}", self.dimension
            )


def make_plan(
    *,
    dimension: int,
    participation: Participation,
    compression: Compression,
    bounds: Bounds,
    privacy: PrivacyTarget,
    factorization: Factorization | RunFactorization,
    seed: PublicSeed,
    clipping: AdaptiveClipping | None = None,
) -> Plan:
    """Return the plan, with the noise multiplier calibrated if `privacy` names an epsilon.

    A `Factorization` is that of every epoch; a `RunFactorization` has one for each. `clipping` makes the clip norm adapt, with
    the noise of its counts chosen if it names none. Raises `SettingError` for noise without an L2 bound: such a run could state no
    privacy; and for a clip norm that adapts without one, or by counts with more noise than a tenth of an epoch's clients.
    """
    plan = Plan(
        dimension=dimension,
        participation=participation,
        compression=compression,
        bounds=bounds,
        privacy=privacy,
        noise_multiplier=privacy.noise_multiplier or 0.0,
        factorization=factorization
        if isinstance(factorization, RunFactorization)
        else restarted(factorization, participation.epochs),
        seed=seed,
        clipping=clipping if clipping is not None and clipping.noise is not None else None,
    )
    if clipping is not None and bounds.radius is None:
        raise SettingError(
            "l2_norm is None, so that no clip norm can adapt; give a norm, or set adapt to None."
        )
    if bounds.radius is None and privacy.noise_multiplier != 0:
        raise SettingError(
            "l2_norm=None leaves one client's influence without a bound; "
            "give a norm, or set epsilon=None and noise_multiplier=0 "
            "for a run that is not private."
        )
    if privacy.epsilon is not None:
        plan = plan.calibrated(privacy.epsilon, precision=0.0)
        plan = plan.calibrated(privacy.epsilon, precision=plan.precision)  # which more noise makes no larger
    if clipping is not None:
        plan = plan if plan.clipping is not None else plan._with_priced_count(clipping)
        asked = participation.cohort_size * participation.rounds_per_epoch
        if plan.count_noise > MOST_NOISE * asked:
            raise SettingError(
                f"adapt_noise is {plan.count_noise:.4g}, and an epoch asks {asked} clients; the count of those within the clip "
                f"norm would be off by more than a tenth of them. Ask more clients, take a larger epsilon, or set adapt to None."
            )
    plan.check_precision()
    return plan

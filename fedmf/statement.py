"""The privacy statement of one run: the same facts as privacy.json and as a paragraph in plain words.

`fedmf.conduct` decides what is said; `Statement` checks, holds and prints it.
"""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from fedmf.accounting.caveats import LARGEST, TIGHT
from fedmf.accounting.floating_point import FloatingPoint
from fedmf.checks import check_at_least, check_non_negative, check_positive
from fedmf.errors import SettingError
from fedmf.rounding import rounded_up

SECRETS_FROM_SYSTEM = "from the operating system"


@dataclass(frozen=True)
class Statement:
    """Everything a reader needs to judge one run's privacy; epsilon is in nats.

    private: noise was added, nobody can recompute it, and epsilon is at most `caveats.LARGEST`; False for a seeded run, whose
    epsilon is that of the same run with secret keys.  sigma = noise_multiplier * kappa_2, kappa_2 = (largest column norm of C)
    * l2_norm, or with geometry "linf" * sqrt(coordinates) linf_norm: `EpochEvent`; sigma_by_epoch has it for each planned epoch, whose C is its own, and sigma is the largest. l2_norm (Delta_2) and linf_norm (Delta_inf) are the radii that the clients enforce, ratio is
    K = (kappa_2/kappa_inf)^2.  participation_planned and participation_observed count epochs of one client,
    the observed one is None before a run ends.  parts: how many of the planned epochs were planned when the run began,
    and how many were added each time that it was extended.  floating_point: what finite precision adds, which epsilon contains.  Raises `SettingError` for impossible values, also for an
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
    epsilon: float
    epsilon_rdp: float
    epsilon_exact: float | None
    epsilon_tight: float | None
    delta: float
    floating_point: FloatingPoint | None
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
            *self._precision(),
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
        """How epsilon was computed, and the Renyi number beside it where it is another one."""
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
        return (
            f"Mechanism {self.mechanism}: each update is {clip}, {kept}, and noise of standard deviation "
            f"sigma = {sigma} enters the sum (noise multiplier {self.noise_multiplier:.4g} of "
            f"the sum, {self.effective_noise_multiplier:.4g} of the mean; K = {self.ratio:.6g}).{self._counted()}"
        )

    def _precision(self) -> list[str]:
        """Say what floating point costs; nothing of a run without noise, nor above the epsilon that this is proved for."""
        if self.floating_point is None or self.epsilon > LARGEST:
            return []
        return [
            "The noise that is released lies on one lattice whatever the data are. Its law and that of the real numbers of the "
            f"theorem differ by at most a factor e^a in the probability of any event, a = {self.floating_point.a:.2g}: 2 a is "
            "contained in epsilon."
        ]

    def _counted(self) -> str:
        """Say of the L-infinity geometry what epsilon is counted from; nothing of the other."""
        if self.geometry == "l2" or self.linf_norm is None or not math.isfinite(self.epsilon):
            return ""
        radius = self.linf_norm * math.sqrt(self.coordinates)
        return (
            f" Epsilon is counted from the L-infinity bound alone: all {self.coordinates} coordinates of a client's vector "
            f"may be at it, which together is an L2 norm of {radius:.4g} (L_inf-CSGM, a baseline: its noise is relative to that "
            "norm)."
        )

    def _participation(self) -> str:
        observed = (
            ""
            if self.participation_observed is None
            else f" (observed: at most {counted(self.participation_observed)})"
        )
        return (
            f"{self.epochs} of {counted(self.epochs_planned, 'planned epoch')} started, each of "
            f"{counted(self.rounds_per_epoch, 'round')} with {self.cohort_size} of {self.clients} clients; a "
            f"client takes part at most once per epoch, so in at most "
            f"{counted(self.participation_planned)}{observed}; a started epoch counts whole.{self._extension()}"
        )

    def _extension(self) -> str:
        """Say of an extended run what its epsilon covers; nothing of another."""
        if len(self.parts) == 1:
            return ""
        first, *added = self.parts
        return (
            f" The run had ended after {counted(first)}, and was extended by "
            f"{' and then by '.join(map(counted, added))} when all before had been released. Epsilon is that of all "
            f"{counted(self.epochs, 'started epoch')} together; it also covers the choice to go on, which may follow from "
            f"what was released before, as long as it never leads to more than {self.epochs_planned} (adaptive "
            "composition of equal epochs)."
        )


def counted(number: int, noun: str = "epoch") -> str:
    """Return a number and what it counts.

    >>> counted(1), counted(2)
    ('1 epoch', '2 epochs')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _plain(value: Any) -> Any:
    if isinstance(value, FloatingPoint):
        return dataclasses.asdict(value)
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value

"""What a run would cost, before it runs: `python -m experiments.plan epsilon=8 keep_probability=0.1 ...`.

From exactly one of `epsilon` and `noise_multiplier` follows the other. Nothing is trained and no data set
is read: all noise is relative to the sensitivity of the mechanism, so no factorization is needed either. As
text it also prints what other keep probabilities would cost; `output=json` prints one JSON document.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from experiments.cli import command, output
from experiments.settings.mechanism import MechanismSettings
from experiments.settings.output import Output
from fedmf.accounting import (
    EpochEvent,
    PrivacySpent,
    calibrate_noise_multiplier,
    check_accountant,
    delta_warning,
    divergence,
    mean_noise_std,
    noise_saved,
    privacy_spent,
    resolve_linf_ratio,
)
from fedmf.accounting.caveats import NOT_COVERED, TIGHT
from fedmf.checks import check_at_least, check_keep_probability, check_open_unit, check_positive
from fedmf.errors import ParticipationError, SettingError
from fedmf.participation import rounds_that_fit
from fedmf.updates.rotation import padded_dimension
from fedmf.updates.wire import value_bytes

if TYPE_CHECKING:
    from rich.table import Table

UNIT = "one client"
KEEP_PROBABILITIES = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 0.0003, 0.0001)


@dataclass(frozen=True)
class PlanSettings:
    """Keys of the command."""

    mechanism: MechanismSettings
    clients: int | None
    dimension: int | None
    rotation: str
    cohort_size: int | None
    rounds_per_epoch: int | None
    epochs: int
    keep_probability: float
    linf_over_l2: float | None
    delta: float
    adjacency: str
    accountant: str
    epsilon: float | None
    noise_multiplier: float | None
    orders: tuple[float, ...] | None
    output: Output


@dataclass(frozen=True)
class Budget:
    """What every row of the table has in common."""

    linf_over_l2: float
    epochs: int
    delta: float
    adjacency: str
    accountant: str

    def event(self, noise_multiplier: float, keep_probability: float) -> EpochEvent:
        """Return one epoch with this noise and keep probability."""
        return EpochEvent(noise_multiplier, keep_probability, self.linf_over_l2)

    def spent(self, event: EpochEvent) -> PrivacySpent:
        """Return what all epochs cost."""
        return privacy_spent(
            event, self.epochs, delta=self.delta, adjacency=self.adjacency, accountant=self.accountant
        )

    def epsilon_tight(self, event: EpochEvent) -> float | None:
        """Return what all epochs cost by accountant=tight, whichever was chosen; None where it is not proved."""
        if self.adjacency != "zero_out":
            return None
        return replace(self, accountant="tight").spent(event).epsilon_tight

    def noise_multiplier(self, epsilon: float, keep_probability: float) -> float:
        """Return the noise multiplier that `epsilon` needs."""
        return calibrate_noise_multiplier(
            epsilon=epsilon,
            delta=self.delta,
            keep_probability=keep_probability,
            linf_over_l2=self.linf_over_l2,
            epochs=self.epochs,
            adjacency=self.adjacency,
            accountant=self.accountant,
        )


def plan(settings: PlanSettings) -> None:
    """Print the plan that `settings` describes."""
    check(settings)
    budget = make_budget(settings)
    event = budget.event(_noise_multiplier(settings, budget), settings.keep_probability)
    problem = participation_problem(settings)
    for warning in (problem, settings.clients and delta_warning(settings.delta, settings.clients)):
        if warning:
            print(f"warning: {warning}", file=sys.stderr)
    document = as_document(settings, budget, event, feasible=problem is None)
    if settings.output is Output.json:
        output.print_json(document)
    else:
        print_text(settings, budget, event, document)


def _noise_multiplier(settings: PlanSettings, budget: Budget) -> float:
    """Return the noise multiplier that was given, or the one that the epsilon given needs."""
    if settings.noise_multiplier is not None:
        return settings.noise_multiplier
    assert settings.epsilon is not None  # `check` saw to it
    return budget.noise_multiplier(settings.epsilon, settings.keep_probability)


def check(settings: PlanSettings) -> None:
    """Raise `SettingError` for a key out of range or for keys that contradict each other."""
    if (settings.epsilon is None) == (settings.noise_multiplier is None):
        raise SettingError(
            f"epsilon is {settings.epsilon} and noise_multiplier is {settings.noise_multiplier}; give "
            "exactly one of them."
        )
    if settings.epsilon is not None:
        check_positive("epsilon", settings.epsilon)
    for name in ("clients", "dimension", "cohort_size", "rounds_per_epoch"):
        if (value := getattr(settings, name)) is not None:
            check_at_least(name, value, 1)
    check_at_least("epochs", settings.epochs, 1)
    check_keep_probability(settings.keep_probability)
    check_open_unit("delta", settings.delta)
    padded_dimension(1, settings.rotation)
    check_accountant(settings.accountant, settings.adjacency)


def make_budget(settings: PlanSettings) -> Budget:
    """Return the settings that all keep probabilities share; without sparsification linf_over_l2 does not count."""
    if settings.keep_probability == 1 and linf_unknown(settings):
        ratio = 1.0
    else:
        ratio = resolve_linf_ratio(
            settings.linf_over_l2, settings.dimension, settings.cohort_size, rotation=settings.rotation
        )
    return Budget(ratio, settings.epochs, settings.delta, settings.adjacency, settings.accountant)


def linf_unknown(settings: PlanSettings) -> bool:
    """Return whether linf_over_l2 is neither given nor computable."""
    incomplete = settings.dimension is None or settings.cohort_size is None
    return settings.linf_over_l2 is None and settings.rotation == "hadamard" and incomplete


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


def as_document(
    settings: PlanSettings, budget: Budget, event: EpochEvent, *, feasible: bool
) -> dict[str, Any]:
    """Return the plan with the keys of the command's contract; what is not known is None."""
    spent = budget.spent(event)
    return {
        "epsilon": spent.epsilon,
        "epsilon_rdp": spent.epsilon_rdp,
        "epsilon_tight": budget.epsilon_tight(event) if spent.epsilon_tight is None else spent.epsilon_tight,
        "epsilon_exact": spent.epsilon_exact,
        "noise_multiplier": event.noise_multiplier,
        "effective_noise_multiplier": event.effective_noise_multiplier,
        "linf_over_l2": event.linf_over_l2,
        "delta": spent.delta,
        "order": spent.order,
        "adjacency": spent.adjacency,
        "unit_of_privacy": UNIT,
        "not_covered": list(NOT_COVERED),
        "accountant": spent.accountant,
        "rdp": None if settings.orders is None else renyi_curve(settings, event, settings.orders),
        "feasible": feasible,
        "uplink_bytes_per_client": uplink_bytes(settings, event.keep_probability),
        "mean_noise_std": mean_noise(settings, event),
    }


def renyi_curve(settings: PlanSettings, event: EpochEvent, orders: Sequence[float]) -> dict[str, float]:
    """Return the divergence of one epoch by order, as short as the order can be written: 2, 1.1, 2.5."""
    return {
        repr(order).removesuffix(".0"): divergence({event: 1}, order, settings.adjacency) for order in orders
    }


def uplink_bytes(settings: PlanSettings, keep_probability: float) -> float | None:
    """Return the expected bytes of float32 values a client sends in a round; None without a dimension."""
    if settings.dimension is None:
        return None
    return value_bytes(padded_dimension(settings.dimension, settings.rotation), keep_probability, "float32")


def mean_noise(settings: PlanSettings, event: EpochEvent) -> float | None:
    """Return the noise per coordinate of the mean at Delta_2 = 1; None without a cohort size."""
    if settings.cohort_size is None:
        return None
    return mean_noise_std(
        event.noise_multiplier, keep_probability=event.keep_probability, cohort_size=settings.cohort_size
    )


def print_text(settings: PlanSettings, budget: Budget, event: EpochEvent, document: dict[str, Any]) -> None:
    """Print the plan in words and the table of keep probabilities."""
    console = output.console()
    console.print(headline(settings, event, document))
    for order, value in (document["rdp"] or {}).items():
        console.print(f"One epoch at Renyi order {order}: {value:.6g}")
    if not document["feasible"]:
        console.print("NOT feasible: the cohorts of an epoch would not be disjoint.")
    if linf_unknown(settings):
        console.print("Give dimension and cohort_size to compare keep probabilities.")
    elif event.noise_multiplier > 0:
        console.print(comparison(settings, budget, event))


def headline(settings: PlanSettings, event: EpochEvent, document: dict[str, Any]) -> str:
    """Return the plan in plain words."""
    if event.noise_multiplier == 0:
        return "NOT private: noise_multiplier is 0, epsilon is infinite at every delta under every adjacency."
    exact = document["epsilon_exact"] is not None
    how = f"{settings.accountant} accountant"
    if exact:
        how = f"exact; by Renyi divergence {document['epsilon_rdp']:.4g}"
    elif settings.accountant == "tight":
        how += f", {TIGHT}; by Renyi divergence {document['epsilon_rdp']:.4g}"
    return "\n".join(
        (
            f"epsilon = {document['epsilon']:.4g} at delta = {settings.delta:g} ({how}), "
            f"unit of privacy: {UNIT}, adjacency {settings.adjacency}; "
            f"epochs (one participation each): {settings.epochs}.",
            f"Noise multiplier {event.noise_multiplier:.4g} of the sum, "
            f"{event.effective_noise_multiplier:.4g} of the mean; "
            f"keep probability {event.keep_probability:g}, Delta_inf/Delta_2 {event.linf_over_l2:.4g}.",
            f"Not covered: {'; '.join(NOT_COVERED)}.",
        )
    )


def comparison(settings: PlanSettings, budget: Budget, event: EpochEvent) -> "Table":
    """Return the table of keep probabilities: at the same epsilon if one was asked for, else at the same noise."""
    from rich.table import Table  # JSON has no need of it

    epsilon = settings.epsilon
    table = Table(
        title=f"What compression costs at the same {'noise of the mean' if epsilon is None else 'epsilon'}"
    )
    tight = settings.accountant == "tight"
    names = (
        "keep probability",
        "epsilon",
        "noise multiplier",
        "of the mean",
        "mean noise std",
        "bytes per client",
    )
    for name in (*names, "less noise than rdp") if tight else names:
        table.add_column(name, justify="right")
    chosen = event.keep_probability
    for gamma in sorted({*KEEP_PROBABILITIES, chosen}, reverse=True):
        z = (
            budget.noise_multiplier(epsilon, gamma)
            if epsilon is not None
            else event.effective_noise_multiplier * gamma
        )
        row = budget.event(z, gamma)
        cells = [
            f"{gamma:g}",
            f"{budget.spent(row).epsilon:.4g}",
            f"{z:.4g}",
            f"{row.effective_noise_multiplier:.4g}",
            _or_dash(mean_noise(settings, row), ".3g"),
            _or_dash(uplink_bytes(settings, gamma), ",.0f"),
        ]
        if tight:
            cells.append(_or_dash(noise_saved(row, settings.epochs, delta=settings.delta), ".1%"))
        table.add_row(*cells, style="bold" if gamma == chosen else None)
    return table


def _or_dash(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


if __name__ == "__main__":
    command.run(plan, "plan", PlanSettings, __doc__)

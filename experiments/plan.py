"""What a run would cost, before it runs: `python -m experiments.plan epsilon=8 keep_probability=0.1 ...`.

From exactly one of `epsilon` and `noise_multiplier` follows the other. Nothing is trained and no data set
is read: all noise is relative to the sensitivity of the mechanism, so no factorization is needed either. As
text it also prints what other keep probabilities would cost; `output=json` prints one JSON document.
"""

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from experiments.cli import command
from experiments.settings.data import Output
from fedmf.accounting import (
    EpochEvent,
    PrivacySpent,
    calibrate_noise_multiplier,
    check_accountant,
    delta_warning,
    divergence,
    mean_noise_std,
    privacy_spent,
    resolve_linf_ratio,
)
from fedmf.accounting.caveats import NOT_COVERED
from fedmf.checks import check_at_least, check_keep_probability, check_open_unit, check_positive
from fedmf.errors import ParticipationError, SettingError
from fedmf.participation import rounds_that_fit
from fedmf.updates.rotation import padded_dimension
from fedmf.updates.wire import value_bytes

if TYPE_CHECKING:
    from rich.table import Table

UNIT = "one client"
KEEP_PROBABILITIES = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 0.0003, 0.0001)


@dataclass
class PlanConfig:
    """Keys of the command."""

    mechanism: Any = None
    clients: int | None = None
    dimension: int | None = None
    rotation: str = "hadamard"
    cohort_size: int | None = None
    rounds_per_epoch: int | None = None
    epochs: int = 1
    keep_probability: float = 1.0
    linf_over_l2: float | None = None
    delta: float = 1e-5
    adjacency: str = "zero_out"
    accountant: str = "rdp"
    epsilon: float | None = None
    noise_multiplier: float | None = None
    orders: list[float] | None = None
    output: Output = Output.text


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


def plan(config: DictConfig) -> None:
    """Print the plan that `config` describes."""
    check(config)
    budget = make_budget(config)
    gamma = config.keep_probability
    z = config.noise_multiplier if config.epsilon is None else budget.noise_multiplier(config.epsilon, gamma)
    event = budget.event(z, gamma)
    problem = participation_problem(config)
    for warning in (problem, config.clients and delta_warning(config.delta, config.clients)):
        if warning:
            print(f"warning: {warning}", file=sys.stderr)
    document = as_document(config, budget, event, feasible=problem is None)
    if config.output is Output.json:
        command.print_json(document)
    else:
        print_text(config, budget, event, document)


def check(config: DictConfig) -> None:
    """Raise `SettingError` for a key out of range or for keys that contradict each other."""
    if (config.epsilon is None) == (config.noise_multiplier is None):
        raise SettingError(
            f"epsilon is {config.epsilon} and noise_multiplier is {config.noise_multiplier}; give "
            "exactly one of them."
        )
    if config.epsilon is not None:
        check_positive("epsilon", config.epsilon)
    for name in ("clients", "dimension", "cohort_size", "rounds_per_epoch"):
        if config[name] is not None:
            check_at_least(name, config[name], 1)
    check_at_least("epochs", config.epochs, 1)
    check_keep_probability(config.keep_probability)
    check_open_unit("delta", config.delta)
    padded_dimension(1, config.rotation)
    check_accountant(config.accountant, config.adjacency)


def make_budget(config: DictConfig) -> Budget:
    """Return the settings that all keep probabilities share; without sparsification linf_over_l2 does not count."""
    if config.keep_probability == 1 and linf_unknown(config):
        ratio = 1.0
    else:
        ratio = resolve_linf_ratio(
            config.linf_over_l2, config.dimension, config.cohort_size, rotation=config.rotation
        )
    return Budget(ratio, config.epochs, config.delta, config.adjacency, config.accountant)


def linf_unknown(config: DictConfig) -> bool:
    """Return whether linf_over_l2 is neither given nor computable."""
    incomplete = config.dimension is None or config.cohort_size is None
    return config.linf_over_l2 is None and config.rotation == "hadamard" and incomplete


def participation_problem(config: DictConfig) -> str | None:
    """Return why the cohorts of an epoch cannot be disjoint, with the largest that fits; None if they can.

    Also None where clients or cohort_size is not given.
    """
    if config.clients is None or config.cohort_size is None:
        return None
    try:
        rounds_that_fit(config.clients, config.cohort_size, config.rounds_per_epoch)
    except ParticipationError as error:
        return str(error)
    return None


def as_document(config: DictConfig, budget: Budget, event: EpochEvent, *, feasible: bool) -> dict[str, Any]:
    """Return the plan with the keys of the command's contract; what is not known is None."""
    spent = budget.spent(event)
    return {
        "epsilon": spent.epsilon,
        "epsilon_rdp": spent.epsilon_rdp,
        "epsilon_tight": spent.epsilon_tight,
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
        "rdp": None if config.orders is None else renyi_curve(config, event),
        "feasible": feasible,
        "uplink_bytes_per_client": uplink_bytes(config, event.keep_probability),
        "mean_noise_std": mean_noise(config, event),
    }


def renyi_curve(config: DictConfig, event: EpochEvent) -> dict[str, float]:
    """Return the divergence of one epoch by order, as short as the order can be written: 2, 1.1, 2.5."""
    return {
        repr(order).removesuffix(".0"): divergence({event: 1}, order, config.adjacency)
        for order in config.orders
    }


def uplink_bytes(config: DictConfig, keep_probability: float) -> float | None:
    """Return the expected bytes of float32 values a client sends in a round; None without a dimension."""
    if config.dimension is None:
        return None
    return value_bytes(padded_dimension(config.dimension, config.rotation), keep_probability, "float32")


def mean_noise(config: DictConfig, event: EpochEvent) -> float | None:
    """Return the noise per coordinate of the mean at Delta_2 = 1; None without a cohort size."""
    if config.cohort_size is None:
        return None
    return mean_noise_std(
        event.noise_multiplier, keep_probability=event.keep_probability, cohort_size=config.cohort_size
    )


def print_text(config: DictConfig, budget: Budget, event: EpochEvent, document: dict[str, Any]) -> None:
    """Print the plan in words and the table of keep probabilities."""
    console = command.console()
    console.print(headline(config, event, document))
    for order, value in (document["rdp"] or {}).items():
        console.print(f"One epoch at Renyi order {order}: {value:.6g}")
    if not document["feasible"]:
        console.print("NOT feasible: the cohorts of an epoch would not be disjoint.")
    if linf_unknown(config):
        console.print("Give dimension and cohort_size to compare keep probabilities.")
    elif event.noise_multiplier > 0:
        console.print(comparison(config, budget, event))


def headline(config: DictConfig, event: EpochEvent, document: dict[str, Any]) -> str:
    """Return the plan in plain words."""
    if event.noise_multiplier == 0:
        return "NOT private: noise_multiplier is 0, epsilon is infinite at every delta under every adjacency."
    exact = document["epsilon_exact"] is not None
    how = (
        f"exact; by Renyi divergence {document['epsilon_rdp']:.4g}"
        if exact
        else f"{config.accountant} accountant"
    )
    return "\n".join(
        (
            f"epsilon = {document['epsilon']:.4g} at delta = {config.delta:g} ({how}), "
            f"unit of privacy: {UNIT}, adjacency {config.adjacency}; "
            f"epochs (one participation each): {config.epochs}.",
            f"Noise multiplier {event.noise_multiplier:.4g} of the sum, "
            f"{event.effective_noise_multiplier:.4g} of the mean; "
            f"keep probability {event.keep_probability:g}, Delta_inf/Delta_2 {event.linf_over_l2:.4g}.",
            f"Not covered: {'; '.join(NOT_COVERED)}.",
        )
    )


def comparison(config: DictConfig, budget: Budget, event: EpochEvent) -> "Table":
    """Return the table of keep probabilities: at the same epsilon if one was asked for, else at the same noise."""
    from rich.table import Table  # JSON has no need of it

    same_epsilon = config.epsilon is not None
    table = Table(
        title=f"What compression costs at the same {'epsilon' if same_epsilon else 'noise of the mean'}"
    )
    for name in (
        "keep probability",
        "epsilon",
        "noise multiplier",
        "of the mean",
        "mean noise std",
        "bytes per client",
    ):
        table.add_column(name, justify="right")
    chosen = event.keep_probability
    for gamma in sorted({*KEEP_PROBABILITIES, chosen}, reverse=True):
        z = (
            budget.noise_multiplier(config.epsilon, gamma)
            if same_epsilon
            else event.effective_noise_multiplier * gamma
        )
        row = budget.event(z, gamma)
        cells = (
            f"{gamma:g}",
            f"{budget.spent(row).epsilon:.4g}",
            f"{z:.4g}",
            f"{row.effective_noise_multiplier:.4g}",
            _or_dash(mean_noise(config, row), ".3g"),
            _or_dash(uplink_bytes(config, gamma), ",.0f"),
        )
        table.add_row(*cells, style="bold" if gamma == chosen else None)
    return table


def _or_dash(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


if __name__ == "__main__":
    command.run(plan, "plan", PlanConfig, __doc__)

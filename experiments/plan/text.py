"""A plan in words, and the table of what other keep probabilities would cost."""

from typing import TYPE_CHECKING, Any

from experiments.cli import output
from experiments.plan.budget import (
    KEEP_PROBABILITIES,
    UNIT,
    Budget,
    PlanSettings,
    linf_unknown,
    mean_noise,
    uplink_bytes,
)
from fedmf.accounting import (
    EpochEvent,
    noise_saved,
)
from fedmf.accounting.caveats import NOT_COVERED, TIGHT

if TYPE_CHECKING:
    from rich.table import Table


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
            *in_model(settings, document),
            f"Not covered: {'; '.join(NOT_COVERED)}.",
        )
    )


def in_model(settings: PlanSettings, document: dict[str, Any]) -> list[str]:
    """Return what the mechanism makes of the noise over the run, if its rounds are known."""
    error = document["rms_error"]
    if error is None:
        return []
    std = document["model_noise_std"]
    absolute = "" if std is None else f" Per coordinate, at clip norm and learning rate 1: {std:.3g}."
    return [
        f"Noise in the model, root mean square over the run, per unit of noise multiplier and clip norm: {error:.4g} "
        f"with {settings.mechanism.name} (workload={settings.workload}), {document['independent_rms_error']:.4g} with "
        f"independent noise, at least {document['lowest_rms_error']:.4g} with any that restarts every epoch.{absolute}"
    ]


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

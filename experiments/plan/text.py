"""A plan in words, and the table of what other keep probabilities would cost."""

from typing import TYPE_CHECKING, Any

from experiments.cli import output
from experiments.plan.budget import KEEP_PROBABILITIES, Planned
from fedmf.accounting import noise_saved
from fedmf.accounting.caveats import TIGHT
from fedmf.rounding import rounded_up

if TYPE_CHECKING:
    from rich.table import Table


def print_text(planned: Planned, document: dict[str, Any]) -> None:
    """Print the plan in words and the table of keep probabilities."""
    console = output.console()
    console.print(headline(planned, document))
    for order, value in (document["rdp"] or {}).items():
        console.print(f"One epoch at Renyi order {order}: {value:.6g}")
    if not document["feasible"]:
        console.print("NOT feasible: the cohorts of an epoch would not be disjoint.")
    if not planned.comparable:
        console.print("Give dimension and cohort_size to compare keep probabilities.")
    elif planned.event.noise_multiplier > 0:
        console.print(comparison(planned))


def headline(planned: Planned, document: dict[str, Any]) -> str:
    """Return the plan in plain words."""
    budget, event = planned.budget, planned.event
    if event.noise_multiplier == 0:
        return "NOT private: noise_multiplier is 0, epsilon is infinite at every delta under every adjacency."
    exact = document["epsilon_exact"] is not None
    how = f"{budget.accountant} accountant"
    if exact:
        how = f"exact; by Renyi divergence {rounded_up(document['epsilon_rdp'])}"
    elif budget.accountant == "tight":
        how += f", {TIGHT}; by Renyi divergence {rounded_up(document['epsilon_rdp'])}"
    return "\n".join(
        (
            f"epsilon = {rounded_up(document['epsilon'])} at delta = {rounded_up(budget.delta)} ({how}), "
            f"unit of privacy: {planned.unit}, adjacency {budget.adjacency}; "
            f"epochs (one participation each): {budget.epochs}.",
            f"Noise multiplier {event.noise_multiplier:.4g} of the sum, "
            f"{event.effective_noise_multiplier:.4g} of the mean; "
            f"keep probability {event.keep_probability:g}, Delta_inf/Delta_2 {event.linf_over_l2:.4g}.",
            *_counted(planned),
            *in_model(planned, document),
            f"Not covered: {'; '.join(planned.not_covered)}.",
        )
    )


def _counted(planned: Planned) -> list[str]:
    """Return what to say of the L-infinity geometry: nothing of the other."""
    if planned.budget.geometry == "l2":
        return []
    return [
        f"Epsilon is counted from the L-infinity bound alone: all {planned.padded} coordinates may be at it. Delta_2 stands "
        f"above for their L2 norm, {planned.budget.counted_over_l2:.4g} times the clip norm (L_inf-CSGM, a baseline)."
    ]


def in_model(planned: Planned, document: dict[str, Any]) -> list[str]:
    """Return what the mechanism makes of the noise over the run, if its rounds are known."""
    error, lowest = document["rms_error"], document["lowest_rms_error"]
    if error is None:
        return []
    std = document["model_noise_std"]
    absolute = "" if std is None else f" Per coordinate, at clip norm and learning rate 1: {std:.3g}."
    least = (
        ""
        if lowest is None
        else f", at least {lowest:.4g} with any that restarts every epoch and has equal noise in all"
    )
    return [
        f"Noise in the model, root mean square over the run, per unit of noise multiplier and clip norm: {error:.4g} "
        f"with {planned.mechanism} (workload={planned.workload}), {document['independent_rms_error']:.4g} with "
        f"independent noise{least}.{absolute}"
    ]


def comparison(planned: Planned) -> "Table":
    """Return the table of keep probabilities: at the same epsilon if one was asked for, else at the same noise."""
    from rich.table import Table  # JSON has no need of it

    budget, event, epsilon = planned.budget, planned.event, planned.target
    table = Table(
        title=f"What compression costs at the same {'noise of the mean' if epsilon is None else 'epsilon'}"
    )
    tight = budget.accountant == "tight"
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
            rounded_up(budget.spent(row).epsilon),
            f"{z:.4g}",
            f"{row.effective_noise_multiplier:.4g}",
            _or_dash(planned.mean_noise(row), ".3g"),
            _or_dash(planned.uplink_bytes(gamma), ",.0f"),
        ]
        if tight:
            cells.append(_or_dash(noise_saved(row, budget.epochs, delta=budget.delta), ".1%"))
        table.add_row(*cells, style="bold" if gamma == chosen else None)
    return table


def _or_dash(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)

"""A plan as the JSON document of the command's contract, in words, and as the table of other keep probabilities."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from experiments.cli import output
from experiments.plan.budget import KEEP_PROBABILITIES, Budget, Planned
from fedmf.accounting import EpochEvent, divergence, noise_saved
from fedmf.accounting.caveats import TIGHT
from fedmf.rounding import rounded_up

ERRORS = ("rms_error", "last_error", "independent_rms_error", "lowest_rms_error")


def as_document(planned: Planned) -> dict[str, Any]:
    """Return the plan with the keys of the command's contract; what is not known is None."""
    budget, event = planned.budget, planned.event
    spent = budget.spent(event)
    return {
        "epsilon": spent.epsilon,
        "epsilon_rdp": spent.epsilon_rdp,
        "epsilon_tight": budget.epsilon_tight(event) if spent.epsilon_tight is None else spent.epsilon_tight,
        "epsilon_tight_is": TIGHT if budget.adjacency == "zero_out" else None,
        "epsilon_exact": spent.epsilon_exact,
        "noise_multiplier": event.noise_multiplier,
        "effective_noise_multiplier": event.effective_noise_multiplier,
        "linf_over_l2": event.linf_over_l2,
        "geometry": budget.geometry,
        "counted_over_l2": budget.counted_over_l2,
        "delta": spent.delta,
        "floating_point": None if budget.floating_point is None else asdict(budget.floating_point),
        "order": spent.order,
        "adjacency": spent.adjacency,
        "unit_of_privacy": planned.unit,
        "not_covered": list(planned.not_covered),
        "accountant": spent.accountant,
        "rdp": None if planned.orders is None else renyi_curve(budget, event, planned.orders),
        "feasible": planned.feasible,
        "warnings": list(planned.warnings),
        "uplink_bytes_per_client": planned.uplink_bytes(event.keep_probability),
        "mean_noise_std": planned.mean_noise(event),
        **error_in_model(planned),
    }


def error_in_model(planned: Planned) -> dict[str, float | None]:
    """Return the errors of the mechanism over the run, and the noise in the model that follows; None if not known."""
    noise, per_round = planned.noise, planned.mean_noise(planned.event)
    return {
        **{name: None if noise is None else getattr(noise, name) for name in ERRORS},
        "model_noise_std": None if noise is None or per_round is None else per_round * noise.rms_error,
        "noise_over_signal": planned.noise_over_signal,
    }


def renyi_curve(budget: Budget, event: EpochEvent, orders: Sequence[float]) -> dict[str, float]:
    """Return the divergence of one epoch by order, as short as the order can be written: 2, 1.1, 2.5."""
    return {
        repr(order).removesuffix(".0"): divergence({event: 1}, order, budget.adjacency) for order in orders
    }


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

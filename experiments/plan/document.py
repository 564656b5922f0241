"""A plan as the JSON document of the command's contract."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from experiments.plan.budget import Budget, Planned
from fedmf.accounting import EpochEvent, divergence
from fedmf.accounting.caveats import TIGHT

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

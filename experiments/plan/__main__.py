"""What a run would cost, before it runs: `python -m experiments.plan epsilon=8 keep_probability=0.1 ...`.

From exactly one of `epsilon` and `noise_multiplier` follows the other. Nothing is trained and no data set is read:
all noise is relative to the sensitivity of the mechanism, which therefore does not change epsilon. What it changes is
the error in the model, which is computed once the rounds of an epoch are known, from `rounds_per_epoch` or from
`clients` and `cohort_size`. As text it also prints what other keep probabilities would cost; `output=json` prints one
JSON document.
"""

import sys
from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any

from experiments.cli import command, output
from experiments.plan.budget import (
    UNIT,
    Budget,
    PlanSettings,
    make_budget,
    mean_noise,
    uplink_bytes,
)
from experiments.plan.model_noise import ModelNoise, model_noise
from experiments.plan.text import print_text
from experiments.settings.output import Output
from fedmf.accounting import (
    EpochEvent,
    check_accountant,
    delta_warning,
    divergence,
)
from fedmf.accounting.caveats import NOT_COVERED, TIGHT
from fedmf.checks import (
    check_at_least,
    check_below_one,
    check_choice,
    check_keep_probability,
    check_open_unit,
    check_positive,
)
from fedmf.choices import SCHEDULES
from fedmf.errors import ParticipationError, SettingError
from fedmf.participation import rounds_that_fit
from fedmf.updates.rotation import padded_dimension


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
    check_below_one("momentum", settings.momentum)
    check_choice("schedule", settings.schedule, SCHEDULES)
    check_keep_probability(settings.keep_probability)
    check_open_unit("delta", settings.delta)
    padded_dimension(1, settings.rotation)
    check_accountant(settings.accountant, settings.adjacency)


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
        "epsilon_tight_is": TIGHT if budget.adjacency == "zero_out" else None,
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
        **error_in_model(settings, event),
    }


def error_in_model(settings: PlanSettings, event: EpochEvent) -> dict[str, float | None]:
    """Return the errors of the mechanism over the run, and the noise in the model that follows; None if not known."""
    noise = model_noise(settings)
    errors = dict.fromkeys(field.name for field in fields(ModelNoise)) if noise is None else asdict(noise)
    per_round = mean_noise(settings, event)
    absolute = None if noise is None or per_round is None else per_round * noise.rms_error
    return {**errors, "model_noise_std": absolute}


def renyi_curve(settings: PlanSettings, event: EpochEvent, orders: Sequence[float]) -> dict[str, float]:
    """Return the divergence of one epoch by order, as short as the order can be written: 2, 1.1, 2.5."""
    return {
        repr(order).removesuffix(".0"): divergence({event: 1}, order, settings.adjacency) for order in orders
    }


if __name__ == "__main__":
    command.run(plan, "plan", PlanSettings, __doc__)

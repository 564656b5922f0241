"""The adviser of `fedmf plan`: a table of the plans of several settings, of which one is recommended."""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

from experiments.pages.wording import number, text_of
from experiments.settings.figures import MOST_ROUNDS, PlanSettings, plan_of, sizes_of
from fedmf.errors import SettingError
from fedmf.outlook import about_noise, noise_of_run
from fedmf.plan import Plan

# What a table tries where it is not given: rounds of an epoch, epochs, keep probabilities.
TRIED_ROUNDS, TRIED_EPOCHS, TRIED_KEEP = (10, 30, 100), (1, 3, 10), (0.01, 0.1, 1.0)
SMALLEST_COHORT = 10
ENOUGH_ROUNDS = 100  # of a run that is recommended, where there is one
NEAR = 1.25  # times the least noise over signal of the table is as good, for a recommendation
COLUMNS = {
    "": "recommended",
    "cohort n": "cohort_size",
    "keep gamma": "keep_probability",
    "epochs E": "epochs",
    "rounds": "rounds",
    "noise over signal": "noise_over_signal",
    "a client sends a round": "uplink_bytes_per_client",
    "in all": "uplink_bytes_per_client_in_all",
    "all clients send": "uplink_bytes_of_all_clients",
}
"""The columns of a table, with the keys of its rows."""


def advised(settings: PlanSettings, clients: int) -> tuple[Plan, dict[str, Any]]:
    """Return the plan that is recommended, and the `table` of all that were tried with the `reason`."""
    if not (plans := [*plans_to_try(settings, clients)]):
        raise SettingError(
            f"cohort_size is null, and the runs of a table would have more than {MOST_ROUNDS} rounds; give cohort_size."
        )
    chosen, why = recommended(plans)
    rows = [_row(plan) | {"recommended": plan is chosen} for plan in plans]
    return chosen, {"table": rows, "reason": why}


def plans_to_try(settings: PlanSettings, clients: int) -> Iterator[Plan]:
    """Yield the plans of a table: cohorts of one significant digit of which about `TRIED_ROUNDS` fit in an epoch.

    And `TRIED_EPOCHS` and `TRIED_KEEP` where these are not given. Runs of too many rounds are left out.
    """
    sizes = (int(float(f"{clients / rounds:.0e}")) for rounds in TRIED_ROUNDS)
    cohorts = dict.fromkeys(min(clients, max(SMALLEST_COHORT, size)) for size in sizes)
    epochs = TRIED_EPOCHS if settings.epochs is None else (settings.epochs,)
    keeps = TRIED_KEEP if settings.keep_probability is None else (settings.keep_probability,)
    for times, size, keep in product(epochs, cohorts, keeps):
        if (plan := plan_of(settings, size, clients // size, times, keep)) is not None:
            yield plan


def recommended(plans: Sequence[Plan]) -> tuple[Plan, str]:
    """Return the plan of `plans` that costs a client the fewest bytes, of those with little noise and enough rounds, and why.

    Little is at most `NEAR` times the least noise over signal of all; enough are `ENOUGH_ROUNDS` rounds, if any has them.
    """
    least = min(map(noise_of_run, plans))
    quiet = [plan for plan in plans if noise_of_run(plan) <= NEAR * least]
    long = [plan for plan in quiet if plan.participation.rounds >= ENOUGH_ROUNDS]
    chosen = min(long or quiet, key=lambda plan: (_bytes_in_all(plan), noise_of_run(plan)))
    rounds = f"with at least {ENOUGH_ROUNDS} rounds" if long else f"(none has {ENOUGH_ROUNDS} rounds)"
    why = (
        f"of the settings {rounds} whose noise over signal is at most {NEAR} times the least of the table, {number(least)}, a client "
        f"sends the fewest bytes in all, {text_of('bytes', _bytes_in_all(chosen))}"
    )
    if about_noise(chosen) is not None:
        why += "; but with so much noise runs ended near chance"
    return chosen, why


def _row(plan: Plan) -> dict[str, Any]:
    """Return a plan as a row of the table; the bytes are of values, without envelopes."""
    return {
        **sizes_of(plan),
        "epochs": plan.participation.epochs,
        "noise_multiplier": plan.noise_multiplier,
        "noise_over_signal": noise_of_run(plan),
        "uplink_bytes_per_client": plan.value_bytes,
        "uplink_bytes_per_client_in_all": _bytes_in_all(plan),
        "uplink_bytes_of_all_clients": _bytes_in_all(plan)
        * plan.participation.cohort_size
        * plan.participation.rounds_per_epoch,
    }


def _bytes_in_all(plan: Plan) -> float:
    """Return the bytes of values that a client sends in the run, once an epoch."""
    return plan.value_bytes * plan.participation.epochs

"""The figures of a plan as settings, and the adviser: a table of the plans of several settings, of which one is recommended."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Any

from rich.filesize import decimal

from experiments.settings.groups import MechanismSettings, factorize, find_family
from experiments.settings.values import PRINTED, Output, keyed
from fedmf.mechanisms import prefix_sum
from fedmf.outlook import about_noise, noise_of_run
from fedmf.participation import Participation
from fedmf.plan import Compression, Plan, PrivacyTarget, make_bounds, make_plan
from fedmf.randomness import PublicSeed
from fedmf.setting import ACCOUNTANTS, ADJACENCIES, REQUIRED, ROTATIONS, setting

MOST_ROUNDS = 2**12  # of a run: beyond, the optimum takes longer to find than a plan should


@dataclass(frozen=True)
class PlanSettings:
    mechanism: MechanismSettings = setting(
        REQUIRED,
        "factorization family; epsilon does not depend on it, since noise is relative to its sensitivity",
        chosen="optimal",
    )
    momentum: float = setting(0.9, "momentum of the server's optimizer, in [0, 1)")
    clients: int | None = setting(
        None,
        "number of clients with training examples (N); null: unknown, so the cohorts are not checked",
        at_least=1,
    )
    dimension: int | None = setting(
        None, "number of model parameters before padding (d); null: unknown", at_least=1
    )
    cohort_size: int | None = setting(
        None,
        "clients in a round (n); null: a table of several, if clients, dimension and epsilon are given",
        at_least=1,
    )
    rounds_per_epoch: int | None = setting(
        None, "rounds in an epoch; null: as many as there are disjoint cohorts", at_least=1
    )
    epochs: int | None = setting(
        None,
        "number of times that every client participates; the noise restarts in each epoch; null: 1, several in a table",
        at_least=1,
    )
    keep_probability: float | None = setting(
        None,
        "share of the coordinates that a client sends (gamma), in (0, 1]; null: 1, several in a table",
    )
    rotation: str = setting("hadamard", "rotation of an update before its coordinates are clipped", ROTATIONS)
    linf_over_l2: float | None = setting(
        None,
        "ratio of the clip norms, Delta_inf/Delta_2; null: the default of a run, at most 1, and 1 with rotation=identity",
    )
    delta: float = setting(1e-05, "delta of the statement, in (0, 1)")
    adjacency: str = setting("zero_out", "difference between neighbouring datasets", ADJACENCIES)
    accountant: str = setting(
        "rdp",
        "accountant: Renyi divergence, or this project's own tighter bound (docs/theory.md)",
        ACCOUNTANTS,
    )
    epsilon: float | None = setting(None, "target epsilon; give this or noise_multiplier, not both")
    noise_multiplier: float | None = setting(
        None, "sigma over the sensitivity; give this or epsilon, not both"
    )
    orders: tuple[float, ...] | None = setting(
        None, "orders at which the Renyi divergence of one epoch is printed, such as [2,4.5,16]; null: none"
    )
    output: Output = setting("text", PRINTED)


factorize_once = lru_cache(maxsize=16)(factorize)  # rows of a table share it


def privacy_of(settings: PlanSettings) -> PrivacyTarget:
    """Return the target for the accountant."""
    with keyed("plan", ()):  # whose keys have no group: null in the place of None alone
        return PrivacyTarget(
            settings.delta,
            settings.noise_multiplier,
            settings.epsilon,
            settings.adjacency,
            settings.accountant,
        )


def plan_of(
    settings: PlanSettings, cohort_size: int, rounds: int, epochs: int, keep_probability: float
) -> Plan | None:
    """Return the plan of a run of `rounds` rounds an epoch, None where these are too many to design here."""
    privacy, name, dimension = privacy_of(settings), settings.mechanism.name, settings.dimension or 0
    if rounds * epochs > MOST_ROUNDS or not find_family(name).suits(prefix_sum(rounds)):
        return None
    compression = Compression(keep_probability, settings.rotation)
    return make_plan(
        dimension=dimension,
        participation=Participation(settings.clients or cohort_size * rounds, cohort_size, rounds, epochs),
        compression=compression,
        bounds=make_bounds(
            l2_norm=1.0,
            linf_norm=settings.linf_over_l2,
            dimension=dimension,
            cohort_size=cohort_size,
            compression=compression,
        ),
        privacy=privacy,
        factorization=factorize_once(
            name, "run", rounds, epochs, beta=settings.momentum, schedule="constant"
        ),
        seed=PublicSeed(0),
    )


def sizes_of(plan: Plan) -> dict[str, Any]:
    """Return N, n, T, all rounds, d and gamma, by the keys of documents."""
    participation = plan.participation
    return {
        "clients": participation.clients,
        "cohort_size": participation.cohort_size,
        "rounds_per_epoch": participation.rounds_per_epoch,
        "rounds": participation.rounds,
        "parameters": plan.dimension,
        "keep_probability": plan.compression.keep_probability,
    }


# What a table tries where it is not given: rounds of an epoch, epochs, keep probabilities.
TRIED_ROUNDS, TRIED_EPOCHS, TRIED_KEEP = (10, 30, 100), (1, 3, 10), (0.01, 0.1, 1.0)
SMALLEST_COHORT = 10
ENOUGH_ROUNDS = 100  # of a run that is recommended, where there is one
NEAR = 1.25  # times the least noise over signal of the table is as good, for a recommendation


# Makes the plan of a run from its cohort size, rounds of an epoch, epochs and keep probability; None where it has none.
PlanOf = Callable[[int, int, int, float], Plan | None]


def plans_to_try(
    plan_of: PlanOf, clients: int, epochs: int | None, keep_probability: float | None
) -> list[Plan]:
    """Return the plans of a table: cohorts of one significant digit of which about `TRIED_ROUNDS` fit in an epoch.

    And `TRIED_EPOCHS` and `TRIED_KEEP` where these are None.
    """
    sizes = (int(float(f"{clients / rounds:.0e}")) for rounds in TRIED_ROUNDS)
    cohorts = dict.fromkeys(min(clients, max(SMALLEST_COHORT, size)) for size in sizes)
    plans = (
        plan_of(size, clients // size, times, keep)
        for times, size, keep in product(
            TRIED_EPOCHS if epochs is None else (epochs,),
            cohorts,
            TRIED_KEEP if keep_probability is None else (keep_probability,),
        )
    )
    return [plan for plan in plans if plan is not None]


def advised(plans: Sequence[Plan], keys: Sequence[str]) -> tuple[Plan, dict[str, Any]]:
    """Return the recommended plan, and a document with the `table` of all `plans`, the `recommended` row and the `reason`.

    It is the one that costs a client the fewest bytes, of those with little noise and enough rounds. Little is at most `NEAR`
    times the least noise over signal of all; enough are `ENOUGH_ROUNDS` rounds, if any has them. `keys` are those of cohort size,
    keep probability and epochs, by which the recommended ones are written as settings.
    """
    least = min(map(noise_of_run, plans))
    quiet = [plan for plan in plans if noise_of_run(plan) <= NEAR * least]
    long = [plan for plan in quiet if plan.participation.rounds >= ENOUGH_ROUNDS]
    chosen = min(long or quiet, key=lambda plan: (_bytes_in_all(plan), noise_of_run(plan)))
    rounds = f"with at least {ENOUGH_ROUNDS} rounds" if long else f"(none has {ENOUGH_ROUNDS} rounds)"
    why = (
        f"of the settings {rounds} whose noise over signal is at most {NEAR} times the least of the table, {least:.4g}, a client "
        f"sends the fewest bytes in all, {decimal(round(_bytes_in_all(chosen)))}"
    )
    if about_noise(chosen) is not None:
        why += "; but with so much noise runs ended near chance"
    participation = chosen.participation
    values = participation.cohort_size, chosen.compression.keep_probability, participation.epochs
    return chosen, {
        "table": [_row(plan) | {"recommended": plan is chosen} for plan in plans],
        "recommended": " ".join(f"{key}={value}" for key, value in zip(keys, values, strict=True)),
        "reason": why,
    }


def _row(plan: Plan) -> dict[str, Any]:
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
    return plan.value_bytes * plan.participation.epochs

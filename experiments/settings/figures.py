"""The figures of a plan, and the plans of runs that have them: no data set is read and nothing is trained."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from experiments.settings.groups import MechanismSettings, factorize, find_family
from experiments.settings.values import PRINTED, Output, keyed
from fedmf.checks import check_positive
from fedmf.mechanisms import RunFactorization, prefix_sum
from fedmf.participation import Participation
from fedmf.plan import Compression, Plan, PrivacyTarget, make_bounds, make_plan
from fedmf.randomness import PublicSeed
from fedmf.setting import ACCOUNTANTS, ADJACENCIES, REQUIRED, ROTATIONS, setting

MOST_ROUNDS = 2**12  # of a run: beyond, the optimum takes longer to find than a plan should


@dataclass(frozen=True)
class PlanSettings:
    """Keys of the command: the figures of a plan."""

    mechanism: MechanismSettings = setting(
        REQUIRED, "does not change epsilon: all is relative to its sensitivity", chosen="optimal"
    )
    momentum: float = setting(0.9, "of the server's optimizer, in [0, 1)")
    clients: int | None = setting(
        None, "N, clients with training examples; null: whether the cohorts fit is not checked", at_least=1
    )
    dimension: int | None = setting(None, "d, model parameters before padding; null: not known", at_least=1)
    cohort_size: int | None = setting(
        None,
        "n, clients of a round; null: a table of several, where clients, dimension and epsilon are given",
        at_least=1,
    )
    rounds_per_epoch: int | None = setting(
        None, "rounds of an epoch; null: as many disjoint cohorts as there are", at_least=1
    )
    epochs: int | None = setting(
        None,
        "times that every client takes part; the noise restarts in each; null: 1, in a table several",
        at_least=1,
    )
    keep_probability: float | None = setting(
        None,
        "gamma, the share of the coordinates that a client sends, in (0, 1]; null: 1, in a table several",
    )
    rotation: str = setting(
        "hadamard", "what an update is rotated by before its coordinates are clipped", ROTATIONS
    )
    linf_over_l2: float | None = setting(
        None,
        "Delta_inf/Delta_2; null: the formula, at most 1, and 1 with rotation=identity",
        check=check_positive,
    )
    delta: float = setting(1e-05, "of the statement, in (0, 1)")
    adjacency: str = setting("zero_out", "what neighbouring data sets differ by", ADJACENCIES)
    accountant: str = setting(
        "rdp",
        "Renyi divergence, or this project's own tighter bound (docs/theory.md)",
        ACCOUNTANTS,
    )
    epsilon: float | None = setting(None, "the epsilon to reach; exactly one of it and noise_multiplier")
    noise_multiplier: float | None = setting(
        None, "sigma over the sensitivity; exactly one of it and epsilon"
    )
    orders: tuple[float, ...] | None = setting(
        None, "such as [2,4.5,16]: print the Renyi divergence of one epoch at these orders; null: none"
    )
    output: Output = setting("text", PRINTED)


@lru_cache(maxsize=16)
def _designed(name: str, rounds: int, epochs: int, momentum: float) -> RunFactorization:
    """Return the factorization of a run; settings of one table share it."""
    return factorize(name, "run", rounds, epochs, beta=momentum, schedule="constant")


def privacy_of(settings: PlanSettings) -> PrivacyTarget:
    """Return what the accountant is asked."""
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
        factorization=_designed(name, rounds, epochs, settings.momentum),
        seed=PublicSeed(0),
    )


def sizes_of(plan: Plan) -> dict[str, Any]:
    """Return N, n, T, all rounds, d and gamma, by the keys of documents."""
    who = plan.participation
    return {
        "clients": who.clients,
        "cohort_size": who.cohort_size,
        "rounds_per_epoch": who.rounds_per_epoch,
        "rounds": who.rounds,
        "parameters": plan.dimension,
        "keep_probability": plan.compression.keep_probability,
    }

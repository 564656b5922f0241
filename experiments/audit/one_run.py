"""One run whose clients are all canaries: the audit of Steinke, Nasr, Jagielski (NeurIPS 2023).

Every client has a coordinate of its own and takes part once; its fair coin decides whether it sends all of
its L2 bound there, or zeros. The attacker estimates each coin from the releases, says "in" of those with the
highest estimates and "out" of those with the lowest, and is silent about the rest. How many guesses it makes
is fixed beforehand. Without masks only: coordinates do not interfere, so one coin is one privacy unit's.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import nn

from client.data import Examples
from client.settings import TrainingSettings
from experiments.audit.law import Float64
from experiments.audit.pipeline import Filter, Pipeline, known
from experiments.audit.sabotage import NONE, Sabotage
from fedmf.checks import check_at_least
from fedmf.errors import SettingError
from fedmf.mechanisms import design, prefix_sum
from fedmf.plan import Compression, Participation, Plan, PrivacyTarget, make_bounds, make_plan
from fedmf.randomness import PublicSeed, SecretKey
from server.cohort import cohort_indices

L2_NORM = 1.0
ROUNDS = 8


@dataclass(frozen=True)
class OneRunSetup:
    """One run under audit: `canaries` m clients in `ROUNDS` cohorts, of whom the attacker guesses `guesses`."""

    mechanism: str
    epsilon: float
    delta: float
    canaries: int
    guesses: int
    seed: int
    sabotage: Sabotage = NONE

    def __post_init__(self) -> None:
        check_at_least("guesses", self.guesses, 2)
        check_at_least("canaries", self.canaries, self.guesses)
        if self.canaries % ROUNDS:
            raise SettingError(f"canaries is {self.canaries}; it must be a multiple of {ROUNDS}, the rounds.")

    @property
    def name(self) -> str:
        """The settings in words; draws of different setups are unrelated."""
        return f"one run {self.mechanism} {self.sabotage.name}"


def play_one_run(setup: OneRunSetup) -> int:
    """Return how many of the setup's guesses are right."""
    plan = make_one_run_plan(setup)
    coins = PublicSeed(setup.seed).generator("audit coins", setup.name).integers(2, size=setup.canaries)
    model = nn.Linear(plan.dimension, 1, bias=False)
    nn.init.zeros_(model.weight)
    pipeline = Pipeline(plan, model, TrainingSettings(learning_rate=1.0, device="cpu"), setup.sabotage)
    secret = SecretKey.reproducible(setup.seed).derive("audit", setup.name)
    sums = pipeline.run(secret, lambda client, number: canary(client, plan.dimension, bool(coins[client])))
    estimates = Filter.of(plan, 0).weights @ sums[0]  # (T, d): coordinate i matters in the round of client i
    return sum(
        right_guesses(estimates[step, cohort], coins[cohort], quota)
        for step, (cohort, quota) in enumerate(zip(cohorts(plan), quotas(setup.guesses), strict=True))
    )


def right_guesses(estimates: Float64, coins: npt.NDArray[np.int64], guesses: int) -> int:
    """Return how many of a round's guesses are right: "out" of the lowest estimates, "in" of the highest."""
    order = np.argsort(estimates)
    lowest, highest = order[: guesses // 2], order[len(order) - (guesses + 1) // 2 :]
    return int((coins[lowest] == 0).sum() + (coins[highest] == 1).sum())


def quotas(guesses: int) -> list[int]:
    """Return how many of the guesses go to each round: its share of the clients, with the rest in the first ones.

    >>> quotas(19)
    [3, 3, 3, 2, 2, 2, 2, 2]
    """
    return [guesses // ROUNDS + (step < guesses % ROUNDS) for step in range(ROUNDS)]


def stated_mu(setup: OneRunSetup) -> float:
    """Return the signal-to-noise of the one Gaussian that the setup's run claims to be."""
    return 1 / make_one_run_plan(setup).noise_multiplier


def canary(client: int, dimension: int, present: bool) -> Examples:
    """Return what canary number `client` holds: its own unit vector at the bound, or zeros."""
    vector = np.zeros(dimension, np.float32)
    vector[client] = L2_NORM if present else 0.0
    return known(vector)


def cohorts(plan: Plan) -> list[npt.NDArray[np.int64]]:
    """Return the clients of each round."""
    return [np.asarray(cohort_indices(plan, number + 1)) for number in range(plan.participation.rounds)]


def make_one_run_plan(setup: OneRunSetup) -> Plan:
    """Return the plan calibrated to the setup's epsilon: one epoch, one coordinate for each client, no masks."""
    compression = Compression(1.0)
    cohort_size = setup.canaries // ROUNDS
    return make_plan(
        dimension=setup.canaries,
        participation=Participation(setup.canaries, cohort_size, ROUNDS, epochs=1),
        compression=compression,
        bounds=make_bounds(
            l2_norm=L2_NORM,
            linf_norm=None,
            dimension=setup.canaries,
            cohort_size=cohort_size,
            compression=compression,
        ),
        privacy=PrivacyTarget(delta=setup.delta, epsilon=setup.epsilon),
        factorization=design(setup.mechanism, prefix_sum(ROUNDS)),
        seed=PublicSeed(setup.seed),
    )

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
EXACT = 1e-4  # of a copy; what float32 models leave of equality, and rarer than 1 in 100 with noise
SMALLEST_SHARE = 0.01  # of what a client sent that a combination of rounds must hold


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
    scores = certainties(plan, sums[0] / L2_NORM)
    return sum(
        right_guesses(scores[cohort], coins[cohort], quota)
        for cohort, quota in zip(cohorts(plan), quotas(setup.guesses), strict=True)
    )


def certainties(plan: Plan, sums: Float64) -> Float64:
    """Return how sure the attacker is that each client is in, (clients,): the lower below 0, the surer that it is out.

    `sums` (T, d) are those of the epoch, in units of a canary; coordinate i matters in the round of client i. The best
    estimate decides, unless one of the estimates that leave out noise which is missing or repeats is a whole copy or
    none: that is no chance where there is noise.
    """
    used = Filter.of(plan, 0)
    scores = np.empty(sums.shape[1])
    for step, cohort in enumerate(cohorts(plan)):
        looks = estimates(plan, sums[:, cohort], step)
        none, one = (np.any(np.abs(looks - copies) < EXACT, axis=0) for copies in (0, 1))
        best = used.weights[step] @ sums[:, cohort] / used.gains[step] - 1 / 2
        scores[cohort] = np.where(none == one, best, np.where(one, np.inf, -np.inf))
    return scores


def estimates(plan: Plan, rows: Float64, step: int) -> Float64:
    """Return estimates of what clients sent in round `step`, (estimates, clients), of their sums `rows` (T, clients).

    The round's sum, alone and without another round's; the same of the rows that C makes of the sums, whose noise is
    independent.
    """
    noising = plan.factorization.epochs[0].stream.materialize_noising()
    whitening = np.linalg.inv(np.linalg.cholesky(noising @ noising.T))
    found = []
    for matrix in (np.eye(len(rows)), whitening):
        combinations = np.concatenate(
            [matrix[step : step + 1], matrix[step] - np.delete(matrix, step, axis=0)]
        )
        usable = combinations[np.abs(combinations[:, step]) > SMALLEST_SHARE]
        found.append(usable @ rows / usable[:, step : step + 1])
    return np.concatenate(found)


def right_guesses(scores: Float64, coins: npt.NDArray[np.int64], guesses: int) -> int:
    """Return how many of a round's guesses are right: "out" of the lowest scores, "in" of the highest."""
    order = np.argsort(scores)
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

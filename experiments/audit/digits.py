"""Many runs on digits with one canary: logistic regression that trains for real around it.

The canary sends a worst-case vector: equal entries, at the L-infinity bound, that fill the L2 bound, on the
weights of pixels that are blank in every image. There the real clients' updates are exactly zero, so that the
attacker, who knows their data, has nothing to subtract. Runs come in pairs with one canary, which sends the vector
in one of them and zeros in the other (zero-out adjacency); a fair coin decides in which. The canaries of the pairs
are drawn without replacement until every client was one, and so that every few pairs go through all rounds of the
first epoch: no round of any epoch is left out, and the attacker knows whose turn it is. The other clients of the
canary's cohort are the attacker's companions: silent (zeros), or sending the canary's vector too.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from client.data import Examples
from client.data.digits import load
from client.models import build
from client.parameters import layout_of
from client.settings import TrainingSettings
from experiments.audit.law import Clients, Float64
from experiments.audit.pipeline import OPTIMIZER, Filter, Pipeline, canary_entry, known
from experiments.audit.sabotage import NONE, Sabotage
from fedmf.mechanisms import design_run, of_run
from fedmf.plan import Compression, Participation, Plan, PrivacyTarget, make_bounds, make_plan
from fedmf.randomness import PublicSeed, SecretKey
from server.cohort import cohort_indices

L2_NORM = 1.0
_OFFSET = np.float32(0.3)  # the loader's public shift of pixels; adding it back makes blank ones exact zeros
_TRAINING = TrainingSettings(learning_rate=0.5, batch_size=1000, device="cpu")


@dataclass(frozen=True)
class Setup:
    """One pipeline under audit: its public settings, what is broken in it, and whether companions speak."""

    mechanism: str
    keep_probability: float
    epsilon: float
    delta: float
    cohort_size: int
    rounds_per_epoch: int
    epochs: int
    seed: int
    sabotage: Sabotage = NONE
    companions: bool = False

    @property
    def name(self) -> str:
        """The settings in words; draws of different setups are unrelated."""
        return f"{self.mechanism} {self.keep_probability!r} {self.sabotage.name} companions={self.companions}"


@dataclass(frozen=True)
class Runs:
    """What the attacker has of some runs, and the coins that it is to guess.

    `sums` (runs, epochs, T, coordinates) are the noisy sums in the canary's coordinates, in units of its entries, so
    that one copy is 1; `observations` (runs, epochs, coordinates) the best estimates from them of what the canary sent,
    in units of their stated noise. `canaries` (runs,) is the client that was one, `present` (runs,) whether it was in.
    """

    observations: Float64
    sums: Float64
    canaries: Clients
    present: npt.NDArray[np.bool_]

    def part(self, chosen: slice) -> "Runs":
        """Return some of the runs."""
        return Runs(self.observations[chosen], self.sums[chosen], self.canaries[chosen], self.present[chosen])


class Stage:
    """The pipeline of a setup with its clients, resident between runs."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._data = dealt_digits(setup.cohort_size * setup.rounds_per_epoch)
        self._coordinates = blank_weights(self._data)
        self.plan = make_digits_plan(setup, len(self._coordinates))
        model = build("logistic", input_shape=(8, 8), classes=10, seed=setup.seed)
        assert layout_of(model).dimension == self.plan.dimension
        self._pipeline = Pipeline(self.plan, model, _TRAINING, setup.sabotage)
        self._filters = [Filter.of(self.plan, epoch) for epoch in range(setup.epochs)]
        self._cohorts = cohorts_of(self.plan)
        self.steps = participation_steps(self._cohorts)
        self._vector = np.zeros(self.plan.dimension, np.float32)
        self._vector[self._coordinates] = canary_entry(L2_NORM, len(self._coordinates))

    @property
    def coordinates(self) -> int:
        """How many coordinates the canary fills, K."""
        return len(self._coordinates)

    @property
    def shifts(self) -> Float64:
        """What one kept copy of each client adds to an observation, (clients, epochs), in units of the stated noise."""
        gains = [used.gains[self.steps[:, epoch]] for epoch, used in enumerate(self._filters)]
        return np.stack(gains, axis=1) * canary_entry(L2_NORM, self.coordinates)

    def play(self, first: int, count: int) -> Runs:
        """Return runs number first .. first + count - 1; each has its own secret."""
        runs = range(first, first + count)
        canaries = np.array([self.canary(run // 2) for run in runs])
        present = np.array([self._coin(run // 2) != bool(run % 2) for run in runs])
        seen = [self._play(*turn) for turn in zip(runs, canaries.tolist(), present.tolist(), strict=True)]
        observations, sums = (np.array(parts) for parts in zip(*seen, strict=True))
        return Runs(observations, sums, canaries, present)

    def canary(self, pair: int) -> int:
        """Return the client that is the canary of a pair of runs."""
        lap, place = divmod(pair, len(self.steps))
        rng = PublicSeed(self._setup.seed).generator("audit canaries", self._setup.name, lap)
        return int(canary_order(self._cohorts[0], rng)[place])

    def _coin(self, pair: int) -> bool:
        """Return whether the canary of a pair is in in the first of its two runs."""
        rng = PublicSeed(self._setup.seed).generator("audit coin", self._setup.name, pair)
        return bool(rng.integers(2))

    def _play(self, run: int, canary: int, present: bool) -> tuple[Float64, Float64]:
        """Play one run; return its observations (epochs, coordinates) and sums (epochs, T, coordinates) as in `Runs`."""
        secret = SecretKey.reproducible(self._setup.seed).derive("audit", self._setup.name, run)
        sums = self._pipeline.run(
            secret, lambda client, number: self._examples(client, number, canary, present)
        )[:, :, self._coordinates]
        epochs = zip(self._filters, sums, self.steps[canary], strict=True)
        estimates = np.array([used.weights[step] @ rows for used, rows, step in epochs])
        return estimates, sums / canary_entry(L2_NORM, self.coordinates)

    def _examples(self, client: int, number: int, canary: int, present: bool) -> Examples:
        """Return what a client holds in server round `number`: data, a known vector, or zeros."""
        epoch, step = divmod(number - 1, self.plan.participation.rounds_per_epoch)
        if self.steps[canary, epoch] != step:
            return self._data[client]
        speaks = present if client == canary else self._setup.companions
        return known(self._vector if speaks else np.zeros_like(self._vector))


def cohorts_of(plan: Plan) -> Clients:
    """Return the clients of each round, (epochs, T, n)."""
    who = plan.participation
    cohorts = [cohort_indices(plan, number) for number in range(1, who.rounds + 1)]
    return np.reshape(np.array(cohorts, np.int64), (who.epochs, who.rounds_per_epoch, who.cohort_size))


def participation_steps(cohorts: Clients) -> Clients:
    """Return the step (0-based) of each epoch in which each client takes part, (clients, epochs)."""
    epochs, rounds, size = cohorts.shape
    steps = np.empty((rounds * size, epochs), np.int64)
    for epoch, step in np.ndindex(epochs, rounds):
        steps[cohorts[epoch, step], epoch] = step
    return steps


def canary_order(cohorts: Clients, rng: np.random.Generator) -> Clients:
    """Return all clients of an epoch's `cohorts` (T, n) in random order, (n T,), each T of them of T different rounds."""
    rounds = rng.permuted(cohorts, axis=1).T  # (n, T): row j has one client of each round
    return np.asarray(rng.permuted(rounds, axis=1).ravel())


@lru_cache(maxsize=1)
def build_stage(setup: Setup) -> Stage:
    """Return the stage of a setup, built once per process while it is in use."""
    return Stage(setup)


def play(setup: Setup, first: int, count: int) -> Runs:
    """Return some runs of a setup; see `Stage.play`."""
    return build_stage(setup).play(first, count)


def number_of_images() -> int:
    """Return how many training images there are to deal out."""
    return len(load().clients)


@lru_cache(maxsize=4)
def dealt_digits(clients: int) -> tuple[Examples, ...]:
    """Return the training images of digits, dealt out to `clients` clients; pixels in [0, 1], blank is 0."""
    everyone = load().clients[:]
    x = np.concatenate([examples.x for examples in everyone]) + _OFFSET
    y = np.concatenate([examples.y for examples in everyone])
    return tuple(Examples(x[i::clients], y[i::clients]) for i in range(clients))


def blank_weights(data: tuple[Examples, ...]) -> npt.NDArray[np.int64]:
    """Return the flat indices of logistic weights (10 x 64) whose pixel is blank in all images of all clients."""
    is_blank = np.all([(examples.x == 0).all(axis=0).ravel() for examples in data], axis=0)
    return np.flatnonzero(np.tile(is_blank, 10))


def make_digits_plan(setup: Setup, coordinates: int) -> Plan:
    """Return the plan calibrated to the setup's epsilon, for logistic regression on digits.

    With masks the L-infinity bound is what a canary of `coordinates` equal entries reaches, and there is no
    rotation, so that it can reach it; without masks rotation and bound are the defaults.
    """
    sparse = setup.keep_probability < 1
    compression = Compression(setup.keep_probability, "identity" if sparse else "hadamard")
    rounds = setup.rounds_per_epoch
    dimension = 650
    return make_plan(
        dimension=dimension,
        participation=Participation(setup.cohort_size * rounds, setup.cohort_size, rounds, setup.epochs),
        compression=compression,
        bounds=make_bounds(
            l2_norm=L2_NORM,
            linf_norm=canary_entry(L2_NORM, coordinates) if sparse else None,
            dimension=dimension,
            cohort_size=setup.cohort_size,
            compression=compression,
        ),
        privacy=PrivacyTarget(delta=setup.delta, epsilon=setup.epsilon),
        factorization=design_run(setup.mechanism, of_run(rounds, setup.epochs, OPTIMIZER.momentum)),
        seed=PublicSeed(setup.seed),
    )

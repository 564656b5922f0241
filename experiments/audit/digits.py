"""Many runs on digits with one canary: logistic regression that trains for real around it.

The canary sends a worst-case vector: equal entries, at the L-infinity bound, that fill the L2 bound, on the
weights of pixels that are blank in every image. There the real clients' updates are exactly zero, so that the
attacker, who knows their data, has nothing to subtract. In each run a fair coin decides whether the canary
sends it or zeros (zero-out adjacency). The other clients of the canary's cohort are the attacker's companions: silent
(zeros), or sending the canary's vector too.
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
from experiments.audit.law import Float64
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
    """What the attacker has of some runs: observations (runs, epochs, coordinates), and the coins (runs,)."""

    observations: Float64
    present: npt.NDArray[np.bool_]


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
        self._cohorts = {
            number + 1: cohort_indices(self.plan, number + 1)
            for number in range(self.plan.participation.rounds)
        }
        self._canary = self._cohorts[1][0]
        vector = np.zeros(self.plan.dimension, np.float32)
        vector[self._coordinates] = canary_entry(L2_NORM, len(self._coordinates))
        self._vector = vector

    @property
    def coordinates(self) -> int:
        """How many coordinates the canary fills, K."""
        return len(self._coordinates)

    @property
    def steps(self) -> list[int]:
        """The step (0-based) of each epoch in which the canary takes part."""
        rounds = [number - 1 for number, cohort in self._cohorts.items() if self._canary in cohort]
        return [number % self.plan.participation.rounds_per_epoch for number in rounds]

    @property
    def shifts(self) -> Float64:
        """What one kept copy adds to an observation in each epoch, (epochs,), in units of the stated noise."""
        gains = [used.gains[step] for used, step in zip(self._filters, self.steps, strict=True)]
        return np.array(gains) * canary_entry(L2_NORM, self.coordinates)

    def play(self, first: int, count: int) -> Runs:
        """Return runs number first .. first + count - 1; each has its own secret and its own coin."""
        coins = [self._coin(run) for run in range(first, first + count)]
        observed = [self._observe(run, coin) for run, coin in enumerate(coins, first)]
        return Runs(np.array(observed), np.array(coins))

    def _coin(self, run: int) -> bool:
        return bool(PublicSeed(self._setup.seed).generator("audit coin", self._setup.name, run).integers(2))

    def _observe(self, run: int, present: bool) -> Float64:
        """Play one run; return its observations (epochs, coordinates)."""
        secret = SecretKey.reproducible(self._setup.seed).derive("audit", self._setup.name, run)
        sums = self._pipeline.run(secret, lambda client, number: self._examples(client, number, present))
        epochs = zip(self._filters, sums[:, :, self._coordinates], self.steps, strict=True)
        return np.array([used.weights[step] @ rows for used, rows, step in epochs])

    def _examples(self, client: int, number: int, present: bool) -> Examples:
        """Return what a client holds in server round `number`: data, a known vector, or zeros."""
        if self._canary not in self._cohorts[number]:
            return self._data[client]
        speaks = present if client == self._canary else self._setup.companions
        return known(self._vector if speaks else np.zeros_like(self._vector))


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

"""The real pipeline under audit, and what an attacker reads off its releases.

A run is the Flower strategy and ClientApp on the local grid, as in a simulation. The audit decides only what
clients hold: a known vector in place of data, which then goes through clipping, rotation, masking, the wire,
the bounded sum, the noise and the server optimizer like any other update. The attacker knows the plan, the
schedule and every released model, no key and no mask.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from flwr.app import Context
from torch import nn

from client.app import make_client_app
from client.data import Examples
from client.parameters import flat_parameters
from client.settings import TrainingSettings
from client.training import Trainer
from experiments.audit.sabotage import Fault, broken_plan, broken_secret
from experiments.players.local_grid import InProcessPlayer, LocalGrid
from fedmf.plan import Plan
from fedmf.randomness import SecretKey
from fedmf.updates.vectors import Vector
from server.cohort import SimulatedPopulation
from server.optimizer import Sgd
from server.state import ServerState, first_state
from server.strategy import FedMF

Float64 = npt.NDArray[np.float64]

OPTIMIZER = Sgd(learning_rate=0.5, momentum=0.5)
_KNOWN_VECTOR = -1  # a label that no data set has


def known(vector: Vector) -> Examples:
    """Return examples that stand for "the update is `vector`", (d,) float32."""
    return Examples(vector[None], np.array([_KNOWN_VECTOR]))


class CanaryTrainer(Trainer):
    """A trainer whose update for a known vector is that vector; all else is trained on for real."""

    def update(self, start: Vector, x: np.ndarray, y: np.ndarray, *, order: np.random.Generator) -> Vector:
        """Return the update (d,) float32; see `Trainer.update`."""
        return x[0] if y[0] == _KNOWN_VECTOR else super().update(start, x, y, order=order)


class Pipeline:
    """One plan's strategy and clients, resident between runs; `fault` is what is broken in it, if anything."""

    def __init__(self, plan: Plan, model: nn.Module, settings: TrainingSettings, fault: Fault) -> None:
        self.plan = plan
        self._fault = fault
        self._start = flat_parameters(model)
        self._examples_of: Callable[[int, int], Examples]
        self._round = 0
        client_app = make_client_app(self._examples, lambda: CanaryTrainer(model, settings), plan.client_plan)
        self._grid = LocalGrid(InProcessPlayer(client_app))

    def run(self, secret: SecretKey, examples_of: Callable[[int, int], Examples]) -> Float64:
        """Return the noisy sums (epochs, rounds per epoch, d) that follow from the models of one run.

        `examples_of(client, round)` gives what a client (0-based) holds in a server round (1-based).
        """
        models = [self._start]
        self._examples_of, self._round = examples_of, 1
        strategy = FedMF(
            broken_plan(self.plan, self._fault),
            OPTIMIZER,
            SimulatedPopulation(),
            first_state(self.plan, self._start, broken_secret(secret, self._fault)),
            on_release=[lambda state, release: models.append(self._seen(state))],
        )
        strategy.start(self._grid)
        return noisy_sums(self.plan, np.array(models, np.float64))

    def _seen(self, state: ServerState) -> Vector:
        """Return the model just released, and note that the next round begins."""
        self._round = state.round + 1
        return state.model

    def _examples(self, name: str, context: Context) -> Examples:
        return self._examples_of(int(name), self._round)


def noisy_sums(plan: Plan, models: Float64) -> Float64:
    """Return what the server optimizer was given, times its denominator, (epochs, T, d).

    Made from the models before and after each round, (E T + 1, d).
    """
    velocities = np.diff(models, axis=0) / OPTIMIZER.learning_rate
    means = velocities.copy()
    means[1:] -= OPTIMIZER.momentum * velocities[:-1]
    who = plan.participation
    return plan.denominator * means.reshape(who.epochs, who.rounds_per_epoch, -1)


@dataclass(frozen=True)
class Filter:
    """The best linear estimate of what one round's sum holds in a coordinate, from an epoch's noisy sums.

    The noise of an epoch has covariance sigma^2 N N^T over rounds, N = A^-1 B (C^-1 where C is square). By
    Gauss and Markov the best weights for round t are proportional to (N N^T)^-1 e_t; with square C that is
    C^T C e_t: decorrelate with C, then project on column t of C. `weights` (T, T), row t for round t, give
    an estimate whose noise is 1 at the stated sigma; `gains` (T,) what a unit in round t then adds.
    """

    weights: Float64
    gains: Float64

    @classmethod
    def of(cls, plan: Plan, epoch: int) -> "Filter":
        """Return the filter of the plan's mechanism in `epoch` (0-based), at its stated sigma."""
        noising = plan.factorization.epochs[epoch].stream.materialize_noising()
        sigma = plan.sigma_in(epoch)
        precision = np.linalg.inv(noising @ noising.T)
        information = np.sqrt(np.diag(precision))  # column norms of C where C is square
        return cls(precision / (information[:, None] * sigma), information / sigma)


def canary_entry(l2_norm: float, coordinates: int) -> float:
    """Return the entry that `coordinates` equal entries of a vector of norm `l2_norm` have."""
    return l2_norm / math.sqrt(coordinates)

"""The real pipeline under audit, and what an attacker reads off its releases.

A run is the Flower strategy and ClientApp on the local grid, as in a simulation. The audit decides only what
clients hold: a known vector in place of data, which then goes through clipping, rotation, masking, the wire,
the bounded sum, the noise and the server optimizer like any other update. The attacker knows the plan, the
schedule and every released model, no key and no mask.
"""

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import numpy.typing as npt
from flwr.app import Context
from torch import nn

from client.app import make_client_app
from client.data import Examples
from client.parameters import flat_parameters
from client.settings import TrainingSettings
from client.training import Trainer
from experiments.audit.sabotage import NONE, ExamplesOf, Sabotage
from experiments.engines.grid import InProcessWorker, LocalGrid, Worker
from fedmf.plan import Plan
from fedmf.randomness import SecretKey
from fedmf.updates.vectors import Vector
from server import journal
from server.checkpoint import Checkpoint
from server.optimizer import Sgd
from server.state import Release, ServerState, first_state
from server.strategy import OnRelease

Float64 = npt.NDArray[np.float64]

OPTIMIZER = Sgd(learning_rate=0.5, momentum=0.5)
_KNOWN_VECTOR = -1  # a label that no data set has


def known(vector: Vector) -> Examples:
    """Return examples that stand for "the update is `vector`", (d,) float32."""
    return Examples(vector[None], np.array([_KNOWN_VECTOR]))


class CanaryTrainer(Trainer):
    """A trainer whose update for a known vector is that vector, to rounding; all else is trained on for real.

    It gives the trained model, from which the client takes away the start as in every run: what is bounded is one path.
    """

    def train(self, start: Vector, x: np.ndarray, y: np.ndarray, *, order: np.random.Generator) -> Vector:
        """Return the trained model (d,) float32; see `Trainer.train`."""
        if y[0] != _KNOWN_VECTOR:
            return super().train(start, x, y, order=order)
        with np.errstate(over="ignore", invalid="ignore"):
            return np.asarray(start + x[0], np.float32)


class Killed(BaseException):
    """Ends a run in the middle of a commit, as a crash of its process would."""


@dataclass(frozen=True)
class Played:
    """What an attacker sees of one run: `models` (E T + 1, d) float64, the first one before any round.

    `sums` (E, T, d) are the noisy sums that follow from them. `committed` are all releases in the order in which they
    were given out, and in a run that is resumed what its journal holds of each; a round released twice is there twice.
    """

    models: Float64
    sums: Float64
    committed: tuple[Release, ...]


class Pipeline:
    """One plan's strategy and clients, resident between runs; `sabotage` is what is broken in it, if anything.

    `player` wraps who computes replies (to drop or delay some). With `resume_after` the process is killed when the
    journal holds that round, and another one goes on from its checkpoint.
    """

    def __init__(
        self,
        plan: Plan,
        model: nn.Module,
        settings: TrainingSettings,
        sabotage: Sabotage = NONE,
        *,
        tasks_per_message: int = 1,
        player: Callable[[Worker], Worker] | None = None,
        resume_after: int | None = None,
    ) -> None:
        self.plan = plan
        self._sabotage = sabotage
        self._start = flat_parameters(model)
        self._tasks_per_message = tasks_per_message
        self._resume_after = resume_after
        self._examples_of: ExamplesOf
        self._round = 0
        client_app = make_client_app(self._examples, lambda: CanaryTrainer(model, settings), plan.client_plan)
        here = InProcessWorker(client_app)
        self._grid = LocalGrid(here if player is None else player(here))

    def run(self, secret: SecretKey, examples_of: ExamplesOf) -> Float64:
        """Return the noisy sums (epochs, rounds per epoch, d) that follow from the models of one run.

        `examples_of(client, round)` gives what a client (0-based) holds in a server round (1-based).
        """
        return self.play(secret, examples_of).sums

    def play(self, secret: SecretKey, examples_of: ExamplesOf) -> Played:
        """Return all that an attacker sees of one run; `examples_of` as in `run`."""
        self._examples_of, self._round = examples_of, 1
        committed: list[Release] = []
        with self._sabotage.patches():
            start = self._sabotage.start(self._start, self.plan, examples_of)
            models = [start]
            state = first_state(self.plan, start, self._sabotage.secret(secret))
            if self._resume_after is None:
                self._go_on(state, models, committed.append)
            else:
                self._play_in_two_processes(state, models, committed)
        seen = np.array(models, np.float64)
        return Played(seen, noisy_sums(self.plan, seen), tuple(committed))

    def _go_on(
        self,
        state: ServerState,
        models: list[Vector],
        commit: Callable[[Release], None],
        settle: OnRelease = lambda state, release: None,
    ) -> None:
        """Play the rounds after `state`; each one's model is added to `models`."""

        def see(state: ServerState, release: Release) -> None:
            self._round = state.round + 1  # the next round begins
            models.append(state.model)

        strategy = self._sabotage.strategy(
            self._sabotage.plan(self.plan),
            OPTIMIZER,
            self._sabotage.population(),
            state,
            commit=commit,
            on_release=[see, settle],
            tasks_per_message=self._tasks_per_message,
        )
        strategy.start(self._grid)

    def _play_in_two_processes(
        self, state: ServerState, models: list[Vector], committed: list[Release]
    ) -> None:
        """Play a run that is killed once `resume_after` is in the journal, and resumed from its checkpoint."""
        plan = self._sabotage.plan(self.plan)
        with TemporaryDirectory(prefix="fedmf-audit-") as run:
            folder = Path(run) / "checkpoints"
            folder.mkdir()
            checkpoint = Checkpoint(folder, {}, plan.factorization.epochs)
            checkpoint.begin(state)

            def settle(state: ServerState, release: Release) -> None:
                checkpoint.settle(plan, state)

            def commit(release: Release) -> None:
                checkpoint.commit(release)
                committed.extend([release, _last_written(folder)])
                if release.round == self._resume_after:
                    raise Killed

            with suppress(Killed):
                self._go_on(state, models, commit, settle)
            state, replayed = self._sabotage.restored(checkpoint.restore(plan, OPTIMIZER), plan)
            for reached, _ in replayed:
                models[reached.round :] = [reached.model]
            checkpoint.rebase(state)
            self._round = state.round + 1
            self._resume_after, once = None, self._resume_after
            try:
                self._go_on(state, models, commit, settle)
            finally:
                self._resume_after = once
            checkpoint.forget_secrets()

    def _examples(self, name: str, context: Context) -> Examples:
        return self._examples_of(int(name), self._round)


def _last_written(folder: Path) -> Release:
    """Return the last release that the newest journal in a checkpoint folder holds, which is public."""
    newest = max(folder.glob("journal-*.bin"))
    return journal.read(newest)[-1]


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

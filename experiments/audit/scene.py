"""Small runs whose clients all hold known vectors, and an independent twin's account of what these add to a sum.

A scene runs the Flower strategy, the ClientApp, the local grid and the checkpoint that `simulate` uses. The audit decides
only what clients hold: a known vector in place of data, which goes through clipping, rotation, masking, the wire, the
bounded sum, the noise and the server optimizer like any other update.
"""

from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.linalg
import torch
from flwr.app import Context
from torch import Tensor, nn

from client.app import make_client_app
from client.data import CLASSIFICATION, Examples
from client.settings import TrainingSettings
from client.training import Trainer
from experiments.engines.grid import FaultyWorker, InProcessWorker, LocalGrid, Worker
from experiments.settings.groups import Faults
from fedmf.audit import Stated
from fedmf.mechanisms import design_run, of_run
from fedmf.mechanisms.workload import Float64
from fedmf.plan import Compression, Participation, Plan, PrivacyTarget, make_bounds, make_plan
from fedmf.randomness import PublicSeed, SecretKey
from fedmf.updates.vectors import Vector
from server import strategy
from server.checkpoint import Checkpoint
from server.cohort import SimulatedPopulation, cohort_indices
from server.optimizer import Sgd
from server.state import Release, ServerState, first_state

L2_NORM = 1.0
# Int8 levels are then 2^-10 apart, so that digits are levels and nothing is rounded.
INT8_LINF = (1024 / 127) ** 2
OPTIMIZER = Sgd(learning_rate=0.5, momentum=0.5)
EXAMPLES = 1, 2, 5, 17, 40  # of clients, in turn
SILENCE = Faults(drop_out=0.2, delay=0.1, error=0.2, duplicate=0.3)
FAR = 10.0  # times the bound
HOSPITALS = "north", "south"  # in the names of clients
OVER, OVER_L2, OVER_LINF, AT, NOT_FINITE, WITHIN = KINDS = (
    "over both bounds",
    "over the L2 bound",
    "over the L-infinity bound",
    "at both bounds",
    "not finite",
    "within the bounds",
)
# Clients clip to this much less than the bound, so that rounding cannot exceed it (docs/theory.md, section 3).
CLIPPED_SHORT = 2.0**-14

Holds = Callable[[int, int], Vector]
"""The vector (d,) that a client (from 0) holds in a server round (from 1)."""


@dataclass(frozen=True)
class Scene:
    """The settings of a small run.

    With `linf` the L-infinity bound is that of a vector of so many equal entries that fills the L2 bound. `together`: how
    many clients share a message. `silent`: replies are lost, late, doubled or errors. `resume_after`: the round after
    which the process is killed and another one resumes. `speaking`: in runs that look at the noise clients send vectors at
    and over their bounds, in place of zeros. `runs`: how many of these there are.
    """

    name: str
    mechanism: str = "optimal"
    keep_probability: float = 1.0
    rotation: str = "hadamard"
    value_type: str = "float32"
    dimension: int = 256
    linf: float | None = None
    cohort_size: int = 4
    rounds_per_epoch: int = 3
    epochs: int = 3
    noise_multiplier: float = 1.0
    together: int = 1
    silent: bool = False
    speaking: bool = False
    resume_after: int | None = None
    runs: int = 50


@lru_cache(maxsize=64)
def plan_of(scene: Scene) -> Plan:
    """Return the plan of a scene; each client takes part once in each epoch."""
    compression = Compression(scene.keep_probability, scene.rotation, scene.value_type)
    n, rounds, epochs = scene.cohort_size, scene.rounds_per_epoch, scene.epochs
    return make_plan(
        dimension=scene.dimension,
        participation=Participation(n * rounds, n, rounds, epochs),
        compression=compression,
        bounds=make_bounds(
            l2_norm=L2_NORM,
            linf_norm=None if scene.linf is None else L2_NORM / scene.linf**0.5,
            dimension=scene.dimension,
            cohort_size=n,
            compression=compression,
        ),
        privacy=PrivacyTarget(delta=1e-5, noise_multiplier=scene.noise_multiplier),
        factorization=design_run(scene.mechanism, of_run(rounds, epochs, OPTIMIZER.momentum)),
        seed=PublicSeed(0),
    )


@lru_cache(maxsize=64)
def stated_of(scene: Scene) -> Stated:
    """Return what a scene's plan states."""
    return Stated.of_plan(plan_of(scene))


def cohorts(plan: Plan) -> npt.NDArray[np.int64]:
    """Return the clients of every round, (epochs, T, n)."""
    who = plan.participation
    found = [cohort_indices(plan, number + 1) for number in range(who.rounds)]
    return np.reshape(np.array(found, np.int64), (who.epochs, who.rounds_per_epoch, who.cohort_size))


def steps_of(plan: Plan, client: int) -> tuple[int, ...]:
    """Return the round of each epoch (from 0) in which a client takes part."""
    return tuple(int(step) for step in np.argwhere(cohorts(plan) == client)[:, 1])


def vector(scene: Scene, kind: str, epoch: int = 0) -> Vector:
    """Return a vector (d,) float32 of a kind, made in sent coordinates where the rotation pads none.

    Each epoch has its own public signs, so that what the server keeps of one does not cancel what is sent in the next.
    """
    plan, size = plan_of(scene), scene.dimension
    linf = plan.bounds.linf_norm or L2_NORM
    filled = min(size, max(1, round((L2_NORM / linf) ** 2)))
    entry = min(linf, L2_NORM / filled**0.5)
    if kind in (OVER, OVER_L2):
        filled, entry = size, FAR * max(linf if kind == OVER else 0.0, L2_NORM / size**0.5)
    elif kind == OVER_LINF:
        filled, entry = max(1, int((L2_NORM / (FAR * linf)) ** 2)), FAR * linf
    sent = np.zeros(size)
    sent[(np.arange(filled) + epoch * filled) % size] = entry / (2 if kind == WITHIN else 1)
    found = sent * PublicSeed(0).signs(size, f"audit vectors {scene.name} {epoch}")
    found = plan.rotation.unrotate(found) if plan.rotation.padded == size else found
    if kind == NOT_FINITE:
        found[[0, -1]] = np.nan, np.inf
    return np.asarray(found, np.float32)


def rotated(plan: Plan, rows: Float64) -> Float64:
    """Return rows (.., d) in sent coordinates (.., D), float64, by a Hadamard transform that is not the product's."""
    rotation = plan.rotation
    if rotation.kind == "identity":
        return rows
    size, shape = rotation.padded, rows.shape[:-1]
    wide = np.zeros((*shape, size))
    wide[..., : plan.dimension] = rows * rotation.signs[: plan.dimension]
    block = scipy.linalg.hadamard(min(size, 256))
    outer = scipy.linalg.hadamard(size // len(block))  # H of a product is the Kronecker product of both
    turned = outer @ wide.reshape(*shape, len(outer), len(block)) @ block
    return np.asarray(turned.reshape(*shape, size) / size**0.5)


def kind_of(run: int, client: int, number: int) -> str:
    """Return what a client sends in a round (from 1) of a run that looks at the noise: all kinds in turn."""
    return KINDS[(run + client + number) % len(KINDS)]


def known_sums(scene: Scene, run: int, masks: npt.NDArray[np.bool_] | None) -> Float64:
    """Return what the clients of such a run add to its releases, (E, T, d), where no coordinate is padded.

    In float64, with a line of its own for each bound: what the product made of the vectors is tested against it. `masks`
    are (E, T, n, D), None without.
    """
    plan, total = plan_of(scene), np.zeros((scene.epochs, scene.rounds_per_epoch, scene.dimension))
    for (epoch, step, place), client in np.ndenumerate(cohorts(plan)):
        kind = kind_of(run, int(client), epoch * scene.rounds_per_epoch + step + 1)
        given = vector(scene, kind).astype(np.float64)
        if np.isfinite(given).all():
            shortened = min(1.0, L2_NORM * (1 - CLIPPED_SHORT) / float(np.linalg.norm(given)))
            sent = np.clip(
                shortened * rotated(plan, given), -(plan.bounds.linf_norm or np.inf), plan.bounds.linf_norm
            )
            total[epoch, step] += sent if masks is None else sent * masks[epoch, step, place]
    signs = plan.rotation.signs if plan.rotation.kind != "identity" else 1.0
    return rotated(plan, total * signs) * signs  # its own inverse


def name_of(client: int) -> str:
    """Return the name of a client (from 0): north:995, south:995, north:1507, south:1507, ...

    Whatever a part of the name would be used for, two clients have it in common: prefix, number, number modulo 512, last letters.
    """
    return f"{HOSPITALS[client % 2]}:{995 + 512 * (client // 2)}"


def number_of(name: str) -> int:
    """Return the client (from 0) of a name."""
    hospital, number = name.split(":")
    return 2 * ((int(number) - 995) // 512) + HOSPITALS.index(hospital)


class Named(SimulatedPopulation):
    """The clients of a scene under their names."""

    def cohort(self, plan: Plan, server_round: int, grid: Any, *, key: SecretKey) -> dict[int, list[str]]:
        places = super().cohort(plan, server_round, grid, key=key)
        return {node: [name_of(int(name)) for name in names] for node, names in places.items()}


class KnownTrainer(Trainer):
    """A trainer whose result is the start plus the vector in the client's first example; some examples it cannot train on."""

    def train(self, start: Tensor, x: np.ndarray, y: np.ndarray, *, order: np.random.Generator) -> Tensor:
        """Return the trained model (d,) float32; see `Trainer.train`. Raises for several examples that are not finite."""
        if len(x) > 2 and not np.isfinite(x).all():
            raise ValueError("examples that are not finite")
        return start + torch.from_numpy(x[0])


class Killed(BaseException):
    """Ends a run in the middle of a commit, as a crash of its process would."""


class Run:
    """One run of a scene, and what anyone sees of it.

    `models` are those before the first and after each round; `committed` all releases in order, and where a process is killed
    what the record holds of each; `sums` (epochs, T, d) the noisy sums that were committed first of each round.
    """

    def __init__(self, scene: Scene, holds: Holds, secret: SecretKey) -> None:
        self._scene, self._holds, self.plan = scene, holds, plan_of(scene)
        model, settings = nn.Linear(scene.dimension, 1, bias=False), TrainingSettings(0.1, device="cpu")
        app = make_client_app(
            self._examples,
            lambda: KnownTrainer(model, settings, CLASSIFICATION),
            self.plan.client_plan,
            at_once=True,
        )
        worker: Worker = InProcessWorker(app)
        self._grid = LocalGrid(FaultyWorker(worker, SILENCE, PublicSeed(0)) if scene.silent else worker)
        self.models = [np.zeros(scene.dimension, np.float32)]
        self.committed: list[Release] = []
        self._dies_after = scene.resume_after
        state = first_state(self.plan, self.models[0], secret)
        with (
            TemporaryDirectory(prefix="fedmf-audit-") as folder,
            closing(Checkpoint(Path(folder), {}, self.plan.factorization.epochs)) as checkpoint,
        ):
            if scene.resume_after is not None:
                checkpoint.begin(state)
                with suppress(Killed):
                    self._continue(state, checkpoint)
                state, again = checkpoint.restore(self.plan, OPTIMIZER)
                for reached, _ in again:
                    self.models[reached.round :] = [reached.model]
                checkpoint.rebase(state)
            self._continue(state, checkpoint)
        first = {release.round: release.noisy_sum for release in reversed(self.committed)}
        rows = np.array([first[number] for number in sorted(first)], np.float64)
        self.sums = rows.reshape(scene.epochs, scene.rounds_per_epoch, -1)

    def _continue(self, state: ServerState, checkpoint: Checkpoint) -> None:
        """Run the rounds after `state`, with a checkpoint on disk where a process is killed."""

        def commit(release: Release) -> None:
            self.committed.append(release)
            if self._scene.resume_after is not None:
                checkpoint.commit(release)
                self.committed += checkpoint.record.releases(release.round - 1)
                if release.round == self._dies_after:
                    self._dies_after = None  # once
                    raise Killed

        def released(state: ServerState, release: Release) -> None:
            self.models.append(state.model)
            if self._scene.resume_after is not None:
                checkpoint.settle(self.plan, state)

        self._strategy = strategy.FedMF(
            self.plan,
            OPTIMIZER,
            Named(),
            state,
            commit=commit,
            on_release=[released],
            tasks_per_message=self._scene.together,
        )
        self._strategy.start(self._grid)

    def _examples(self, name: str, context: Context) -> Examples:
        """Return a client's examples: its vector, so often."""
        client = number_of(name)
        vector, count = self._holds(client, self._strategy.state.round + 1), EXAMPLES[client % len(EXAMPLES)]
        return Examples(np.tile(vector, (count, 1)), np.zeros(count, np.int64))

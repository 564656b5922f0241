"""Rows of whole simulated rounds: strategy, messages, local grid, training, clipping, rotation, masks, noise.

The floor is what a user would write without any of it: a bare PyTorch loop over the same clients, with one model,
torch.optim.SGD, the same batches, and the mean of the updates.
"""

from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import nn

import client.models
from client.app import make_client_app
from client.data import Examples
from client.parameters import flat_parameters
from client.settings import TrainingSettings
from client.training import Trainer, pick_device
from experiments.benchmark.row import Row
from experiments.benchmark.versus import work
from experiments.engines.grid import InProcessWorker, LocalGrid, Worker
from fedmf.mechanisms import design, prefix_sum
from fedmf.plan import Compression, Participation, Plan, PrivacyTarget, make_bounds, make_plan
from fedmf.randomness import PublicSeed, SecretKey
from fedmf.updates.vectors import Vector
from server.cohort import SimulatedPopulation
from server.exchange import tasks_per_message
from server.optimizer import Sgd
from server.state import first_state
from server.strategy import FedMF

ROUNDS = 1024  # in an epoch: what decides the buffers of the noise stream
COMPRESSION = Compression(keep_probability=0.01)
TRAINING = TrainingSettings(learning_rate=work.LEARNING_RATE, batch_size=work.BATCH_SIZE, device="cpu")


@dataclass(frozen=True)
class Federation:
    """A model and a cohort of clients with `examples` random images each, in memory."""

    model: str
    classes: int
    cohort_size: int = work.CLIENTS
    examples: int = work.EXAMPLES
    compression: Compression = COMPRESSION
    device: str = "cpu"

    def build(self) -> nn.Module:
        """Return the initial model."""
        return client.models.build(self.model, input_shape=work.SHAPE, classes=self.classes, seed=0)

    def cohort(self) -> list[Examples]:
        """Return the examples of the cohort."""
        return [Examples(x, y) for x, y in work.cohort(self.classes, self.cohort_size, self.examples)]


def simulation(federation: Federation, goal: float | None) -> Row:
    """Return the row of a round of the real pipeline over a bare loop."""
    device = pick_device(federation.device)
    model = federation.build().to(device)
    cohort = [
        (torch.from_numpy(one.x).to(device), torch.from_numpy(one.y).to(device))
        for one in federation.cohort()
    ]
    where = "" if device.type == "cpu" else " on the device"
    return Row(
        simulated_round(federation),
        partial(work.bare_round, model, cohort),
        f"bare PyTorch loop{where} with the same cohort: {federation.cohort_size} clients x {federation.examples} examples, batch "
        f"{TRAINING.batch_size}, {len(flat_parameters(federation.build())):,} parameters; a round: keep "
        f"{federation.compression.keep_probability:g}, rotation {federation.compression.rotation}",
        goal,
    )


def simulated_round(federation: Federation) -> "partial[None]":
    """Return what plays one round of `federation` with the strategy, the client app and the local grid."""
    initial, cohort = flat_parameters(federation.build()), federation.cohort()
    plan = build_plan(len(initial), federation.cohort_size, federation.compression)
    app = make_client_app(
        lambda name, context: cohort[int(name) % len(cohort)],
        lambda: Trainer(federation.build(), replace(TRAINING, device=federation.device)),
        plan.client_plan,
    )
    return repeated_round(plan, initial, InProcessWorker(app))


def build_plan(
    dimension: int, cohort_size: int, compression: Compression, buffers: int | None = None
) -> Plan:
    """Return the plan of one epoch under the optimal mechanism."""
    bounds = make_bounds(
        l2_norm=work.L2_NORM,
        linf_norm=None,
        dimension=dimension,
        cohort_size=cohort_size,
        compression=compression,
    )
    return make_plan(
        dimension=dimension,
        participation=Participation(cohort_size * ROUNDS, cohort_size, ROUNDS, epochs=1),
        compression=compression,
        bounds=bounds,
        privacy=PrivacyTarget(delta=1e-6, noise_multiplier=work.NOISE_MULTIPLIER),
        factorization=design("optimal", prefix_sum(ROUNDS), buffers=buffers),
        seed=PublicSeed(0),
    )


def repeated_round(plan: Plan, initial: Vector, worker: Worker) -> "partial[None]":
    """Return what plays the second round of an epoch, the same one at each call but for its noise."""
    strategy = FedMF(
        plan,
        Sgd(1.0, 0.9),
        SimulatedPopulation(),
        first_state(plan, initial, SecretKey.generate()),
        tasks_per_message=tasks_per_message(plan),
    )
    grid = LocalGrid(worker)
    strategy.start(grid, num_rounds=1)
    return partial(_play, strategy, grid)


def _play(strategy: FedMF, grid: LocalGrid) -> None:
    before = strategy.state
    strategy.start(grid, num_rounds=1)
    secrets = strategy.state.secrets
    assert secrets is not None
    assert secrets.stream is not None
    stream = replace(secrets.stream, step=before.round)  # back in step, with the buffers of the round played
    strategy.state = replace(before, secrets=replace(secrets, stream=stream))

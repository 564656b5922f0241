"""Rows of whole simulated rounds: strategy, messages, local grid, training, clipping, rotation, masks, noise.

What they are held against is what a user would write without any of it: a bare PyTorch loop over the same
clients, with one model, torch.optim.SGD, the same batches, and the mean of the updates.
"""

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector

import client.models
from client.app import make_client_app
from client.data import Examples
from client.parameters import flat_parameters
from client.settings import TrainingSettings
from client.training import Trainer, pick_device
from experiments.benchmark.row import Row
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
SHAPE = (28, 28)
COMPRESSION = Compression(keep_probability=0.01)
TRAINING = TrainingSettings(learning_rate=0.1, batch_size=10, device="cpu")
L2_NORM, NOISE_MULTIPLIER = 0.1, 1.0


@dataclass(frozen=True)
class Federation:
    """A model and a cohort of clients with `examples` random images each, in memory."""

    model: str
    classes: int
    cohort_size: int = 100
    examples: int = 20
    compression: Compression = COMPRESSION
    device: str = "cpu"

    @property
    def training(self) -> TrainingSettings:
        """How a client trains, and where."""
        return replace(TRAINING, device=self.device)

    def build(self) -> nn.Module:
        """Return the initial model."""
        return client.models.build(self.model, input_shape=SHAPE, classes=self.classes, seed=0)

    def cohort(self) -> list[Examples]:
        """Return the examples of the cohort."""
        rng = np.random.default_rng(0)
        return [
            Examples(
                rng.standard_normal((self.examples, *SHAPE), dtype=np.float32),
                rng.integers(0, self.classes, self.examples),
            )
            for _ in range(self.cohort_size)
        ]


def simulation(federation: Federation, goal: float | None) -> Row:
    """A round of the real pipeline over a bare loop."""
    device = pick_device(federation.device)
    model, cohort = federation.build().to(device), tensors(federation.cohort(), device)
    return Row(
        simulated_round(federation),
        partial(bare_round, model, cohort),
        f"bare PyTorch loop{'' if device.type == 'cpu' else ' on the device'} with the same cohort: {federation.cohort_size} clients x {federation.examples} "
        f"examples, batch {TRAINING.batch_size}, {len(flat_parameters(federation.build())):,} parameters; a round: keep "
        f"{federation.compression.keep_probability:g}, rotation {federation.compression.rotation}",
        goal,
    )


def simulated_round(federation: Federation) -> "partial[None]":
    """Return what plays one round of `federation` with the strategy, the client app and the local grid."""
    initial, cohort = flat_parameters(federation.build()), federation.cohort()
    plan = build_plan(len(initial), federation.cohort_size, federation.compression)
    app = make_client_app(
        lambda name, context: cohort[int(name) % len(cohort)],
        lambda: Trainer(federation.build(), federation.training),
        plan.client_plan,
    )
    return repeated_round(plan, initial, InProcessWorker(app))


def build_plan(
    dimension: int, cohort_size: int, compression: Compression, buffers: int | None = None
) -> Plan:
    """Return the plan of one epoch under the optimal mechanism."""
    return make_plan(
        dimension=dimension,
        participation=Participation(cohort_size * ROUNDS, cohort_size, ROUNDS, epochs=1),
        compression=compression,
        bounds=make_bounds(
            l2_norm=L2_NORM,
            linf_norm=None,
            dimension=dimension,
            cohort_size=cohort_size,
            compression=compression,
        ),
        privacy=PrivacyTarget(delta=1e-6, noise_multiplier=NOISE_MULTIPLIER),
        factorization=design("optimal", prefix_sum(ROUNDS), buffers=buffers),
        seed=PublicSeed(0),
    )


def repeated_round(
    plan: Plan, initial: Vector, player: Worker, together: int | None = None
) -> "partial[None]":
    """Return what plays the second round of an epoch, the same one at each call but for its noise.

    `together` clients share a message; None: as many as in a run with one process.
    """
    strategy = FedMF(
        plan,
        Sgd(1.0, 0.9),
        SimulatedPopulation(),
        first_state(plan, initial, SecretKey.generate()),
        tasks_per_message=tasks_per_message(plan) if together is None else together,
    )
    grid = LocalGrid(player)
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


def tensors(cohort: list[Examples], device: torch.device) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the examples of a cohort on a device, where the bare loop leaves them."""
    return [(torch.from_numpy(one.x).to(device), torch.from_numpy(one.y).to(device)) for one in cohort]


def bare_round(model: nn.Module, cohort: list[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    """Return the mean update of the cohort, (d,), by plain local SGD from the same start."""
    start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    initial = parameters_to_vector(model.parameters()).detach()
    total = torch.zeros_like(initial)
    optimizer = torch.optim.SGD(model.parameters(), lr=TRAINING.learning_rate)
    for x, y in cohort:
        model.load_state_dict(start)
        for batch in torch.split(torch.randperm(len(x)), TRAINING.batch_size):
            optimizer.zero_grad()
            torch.autograd.backward(nn.functional.cross_entropy(model(x[batch]), y[batch]))
            optimizer.step()
        total += parameters_to_vector(model.parameters()).detach() - initial
    model.load_state_dict(start)
    return total / len(cohort)

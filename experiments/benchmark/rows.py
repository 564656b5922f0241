"""The rows: operations of the mechanism and of an update, a round of the server, simulated rounds, and a deployment's.

A simulated round has strategy, messages, local grid, training, clipping, rotation, masks and noise. Its floor is what a user
would write without any of it: a bare PyTorch loop over the same clients, with one model, torch.optim.SGD, the same batches,
and the mean of the updates.
"""

import json
import resource
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from flwr.app import Message
from flwr.clientapp import ClientApp
from torch import nn

import client.models
from client.app import Task, make_client_app, pack, sent_bytes, unpack
from client.data import CLASSIFICATION, Examples
from client.parameters import flat_parameters
from client.settings import TrainingSettings
from client.training import Trainer, pick_device
from experiments.benchmark.row import Row, measure
from experiments.benchmark.versus import work
from experiments.deployment.loopback import Loopback
from experiments.engines.grid import InProcessWorker, LocalGrid, Worker
from fedmf.errors import RunStoppedError
from fedmf.mechanisms import design, prefix_sum
from fedmf.mechanisms.optimum.fixed_point import solve
from fedmf.mechanisms.streams.protocol import StreamState
from fedmf.plan import Compression, Participation, Plan, PrivacyTarget, make_bounds, make_plan
from fedmf.randomness import PublicSeed, SecretKey, gaussian_row
from fedmf.updates import masks, wire
from fedmf.updates.rotation import hadamard
from fedmf.updates.vectors import Vector
from server.cohort import SimulatedPopulation
from server.exchange import tasks_per_message
from server.optimizer import Sgd
from server.state import FixedPoint, first_state
from server.strategy import FedMF

ROUNDS = 1024  # in an epoch: what decides the buffers of the noise stream
COMPRESSION = Compression(keep_probability=0.01)
TRAINING = TrainingSettings(learning_rate=work.LEARNING_RATE, batch_size=work.BATCH_SIZE, device="cpu")
_MILLION = 1_000_000

NODES, DEPLOYED_ROUNDS, WARM = 3, 8, 2  # of a deployment; the first rounds are not counted
HELD = 16  # clients of a node
DATA = f"dataset=synthetic dataset.clients={NODES * HELD} dataset.features=20 dataset.classes=5"


def design_row(rounds: int) -> Row:
    """Return the row of the optimal factorization of `rounds` rounds to gap 1e-6."""
    number = np.arange(rounds // 2)
    gram = len(number) - np.maximum.outer(number, number).astype(float)  # (A^T A)_ij of prefix sums
    return Row(
        partial(solve, prefix_sum(rounds)),
        partial(np.linalg.cholesky, gram),
        f"numpy's Cholesky factor of the {len(gram)} x {len(gram)} Gram matrix, of which a dense solver of half the rounds needs "
        "one a step; for orientation, the goal is 100 ms",
    )


def normals(dimension: int) -> Row:
    """Return the row of one keyed row of normals."""
    return Row(
        partial(gaussian_row, SecretKey.generate(), 0, dimension),
        torch.empty(dimension).normal_,
        f"torch normal_ of {dimension:,} float32, neither keyed nor secret",
        4,
    )


def correlation_step(buffers: int, dimension: int) -> Row:
    """Return the row of one step of the optimal stream, in place."""
    stream = design("optimal", prefix_sum(1024), buffers=buffers).stream
    rng = np.random.default_rng(0)
    fresh, state = rng.standard_normal(dimension), StreamState(512, rng.standard_normal((buffers, dimension)))
    source = rng.standard_normal((buffers, dimension))
    return Row(
        partial(stream.next, lambda number: fresh, state, donate=True),
        partial(np.copyto, source.copy(), source),
        f"a copy of the state, {buffers} x {dimension:,} float64",
        2,
    )


def rotation(dimension: int) -> Row:
    """Return the row of the Hadamard transform of one vector; `dimension` is a power of two."""
    vector = np.random.default_rng(0).standard_normal(dimension, dtype=np.float32)
    target = np.empty_like(vector)
    return Row(
        partial(hadamard, vector),
        lambda: (np.copyto(target, vector), np.copyto(vector, target)),  # type: ignore[func-returns-value]
        f"two read-write passes over {dimension:,} float32",
        20,
    )


def mask(dimension: int, keep_probability: float) -> Row:
    """Return the row of the kept coordinates of one client."""
    key, kept = SecretKey.generate(), round(keep_probability * dimension)
    zeros = bytes(8 * kept)
    return Row(
        partial(masks.coordinates, key, dimension, keep_probability),
        lambda: Cipher(algorithms.AES(bytes(32)), modes.CTR(bytes(16))).encryptor().update(zeros),
        f"AES-256 in counter mode by the library `cryptography`: 8 bytes for each of {kept:,} kept coordinates",
        4,
    )


def add_message(dimension: int, keep_probability: float) -> Row:
    """Return the row of adding one client's values to the sum, exactly and in any order of the replies."""
    coordinates = masks.coordinates(SecretKey.generate(), dimension, keep_probability)
    values = np.random.default_rng(0).uniform(-1, 1, len(coordinates)).astype(np.float32)
    grid = FixedPoint.fit(1.0, 100)
    return Row(
        partial(grid.add, np.zeros(dimension, np.int64), coordinates, values),
        partial(np.add.at, np.zeros(dimension, np.float32), coordinates, values),
        f"numpy add.at of {len(values):,} float32, whose sum depends on the order",
        1.5 / 1.1,
    )


class PreparedClients(InProcessWorker):
    """A worker whose replies are made once and kept: afterwards a client costs its message only."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(ClientApp())
        self._plan = plan
        self._values: dict[str, bytes] = {}

    def collect(self, message_ids: list[str]) -> list[Message]:
        """Return the replies to `message_ids`."""
        messages = [self._pending.pop(number) for number in message_ids if number in self._pending]
        return [pack([*map(self._prepared_values, unpack(message)[0])], message) for message in messages]

    def _prepared_values(self, task: Task) -> bytes:
        """Return what a client sends in the one round that is run again and again."""
        if task.turn.client not in self._values:
            plan = self._plan
            kept = wire.coordinates(task.mask_key, plan.rotation.padded, plan.compression.keep_probability)
            normals = np.random.default_rng(0).standard_normal(len(kept), dtype=np.float32)
            small = np.float32((plan.bounds.linf_norm or 1.0) / 10)
            self._values[task.turn.client] = sent_bytes(normals * small, task)
        return self._values[task.turn.client]


def server_round(dimension: int, cohort_size: int, keep_probability: float, buffers: int) -> Row:
    """Return the row of a round as the server sees it: tasks, masks, decoding, sum, rotation, noise, model."""
    plan = build_plan(dimension, cohort_size, Compression(keep_probability), buffers)
    return Row(
        repeated_round(plan, np.zeros(dimension, np.float32), PreparedClients(plan)),
        torch.empty(dimension).normal_,
        f"torch normal_ of {dimension:,} float32; a round: {cohort_size} replies, keep {keep_probability:g}, "
        f"{buffers} buffers",
        10,
    )


def large_round(dimension: int, cohort_size: int, keep_probability: float) -> dict[str, Any]:
    """Measure a round of a large model by the million coordinates, and the most memory that the process has used."""
    plan = build_plan(dimension, cohort_size, Compression(keep_probability))
    rest = f"{cohort_size} replies, keep {keep_probability:g}, {plan.factorization.epochs[0].stream.buffers} buffers"
    row = Row(
        repeated_round(plan, np.zeros(dimension, np.float32), PreparedClients(plan)),
        torch.empty(_MILLION).normal_,
        f"torch normal_ of {_MILLION:,} float32; a round of {dimension:,} parameters by the million: {rest}",
        12,
        units=dimension // _MILLION,
    )
    found = measure(row, 3)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10  # reported in KiB
    found["floor_is"] += f". The process used {most / 1e9:.1f} GB at most"
    return found | {"most_memory": most}


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
    """Return what runs one round of `federation` with the strategy, the client app and the local grid."""
    initial, cohort = flat_parameters(federation.build()), federation.cohort()
    plan = build_plan(len(initial), federation.cohort_size, federation.compression)
    app = make_client_app(
        lambda name, context: cohort[int(name) % len(cohort)],
        lambda: Trainer(federation.build(), replace(TRAINING, device=federation.device), CLASSIFICATION),
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
            l2_norm=work.L2_NORM,
            linf_norm=None,
            dimension=dimension,
            cohort_size=cohort_size,
            compression=compression,
        ),
        privacy=PrivacyTarget(delta=1e-6, noise_multiplier=work.NOISE_MULTIPLIER),
        factorization=design("optimal", prefix_sum(ROUNDS), buffers=buffers),
        seed=PublicSeed(0),
    )


def repeated_round(plan: Plan, initial: Vector, worker: Worker) -> "partial[None]":
    """Return what runs the second round of an epoch, the same one at each call but for its noise."""
    strategy = FedMF(
        plan,
        Sgd(1.0, 0.9),
        SimulatedPopulation(),
        first_state(plan, initial, SecretKey.generate()),
        tasks_per_message=tasks_per_message(plan),
    )
    grid = LocalGrid(worker)
    strategy.start(grid, num_rounds=1)
    return partial(_run_round, strategy, grid)


def _run_round(strategy: FedMF, grid: LocalGrid) -> None:
    before = strategy.state
    strategy.start(grid, num_rounds=1)
    secrets: Any = strategy.state.secrets
    # Back in step, with the buffers of the round that was run.
    stream = replace(secrets.stream, step=before.round)
    strategy.state = replace(before, secrets=replace(secrets, stream=stream))


def deployment_row() -> dict[str, Any]:
    """Return the median wall seconds of a round with the warm start, over those without it."""
    ours, plain = seconds_a_round(warm=True), seconds_a_round(warm=False)
    return {
        "ratio": ours / plain,
        "goal": None,
        "seconds": ours,
        "floor": plain,
        "floor_is": f"wall seconds of a round of {NODES} nodes under flower-superlink and flower-supernode, which start a "
        "Python process for each task; ours forks it from a parent that has imported torch and Flower",
    }


def seconds_a_round(*, warm: bool) -> float:
    """Return the median seconds of the rounds of a run in a deployment on the loopback interface."""
    with TemporaryDirectory() as folder, Loopback() as loopback:
        loopback.start_superlink(warm=warm)
        for number in range(NODES):
            loopback.register(f"n{number}")
            loopback.start_supernode(f"n{number}", f"clients={HELD} {DATA}", warm=warm)
        run = Path(folder) / "run"
        process = loopback.submit(
            f"run.directory={run} {DATA} population.min_available={NODES * HELD} population.cohort_size={2 * NODES} "
            f"population.rounds_per_epoch={DEPLOYED_ROUNDS} population.epochs=1 privacy.epsilon=null privacy.noise_multiplier=1 run.evaluations=1"
        )
        if process.wait() or not (run / "metrics.jsonl").exists():
            raise RunStoppedError(f"the deployment's run ended: {loopback.log('run').read_text()[-2000:]}")
        rounds = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        return median(float(one["seconds"]) for one in rounds[WARM:])

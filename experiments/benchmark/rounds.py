"""Rows of the server: a round whose clients cost nothing, and what keeps it safe from a crash."""

import atexit
import os
import resource
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from flwr.app import Message

from client.app import Task, pack, sent_bytes, unpack
from experiments.benchmark.row import Row, measure
from experiments.benchmark.simulation import Federation, build_plan, repeated_round
from experiments.settings.compose import compose
from experiments.settings.schema import Settings
from fedmf.plan import Compression, Plan
from fedmf.randomness import SecretKey
from fedmf.updates import wire
from server.checkpoint import Checkpoint
from server.state import Release, Secrets, ServerState, first_state

_MILLION = 1_000_000


class PreparedClients:
    """A player whose replies are made once and kept: afterwards a client costs its message only."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._values: dict[str, bytes] = {}
        self._pending: dict[str, Message] = {}

    def submit(self, messages: list[Message]) -> None:
        """Keep the tasks until their replies are asked for."""
        self._pending |= {message.metadata.message_id: message for message in messages}

    def collect(self, message_ids: list[str]) -> list[Message]:
        """Return the replies to `message_ids`."""
        messages = [self._pending.pop(number) for number in message_ids if number in self._pending]
        return [pack([*map(self._prepared_values, unpack(message)[0])], message) for message in messages]

    def _prepared_values(self, task: Task) -> bytes:
        """Return what a client sends in the one round that is played again and again."""
        if task.client not in self._values:
            plan = self._plan
            kept = wire.coordinates(task.mask_key, plan.rotation.padded, plan.compression.keep_probability)
            normals = np.random.default_rng(0).standard_normal(len(kept), dtype=np.float32)
            assert plan.bounds.linf_norm is not None  # `build_plan` bounds every coordinate
            self._values[task.client] = sent_bytes(normals * np.float32(plan.bounds.linf_norm / 10), task)
        return self._values[task.client]


def server_round(dimension: int, cohort_size: int, keep_probability: float, buffers: int) -> Row:
    """A round as the server sees it: tasks, masks, decoding, sum, rotation, noise, model."""
    plan = build_plan(dimension, cohort_size, Compression(keep_probability), buffers)
    return Row(
        repeated_round(plan, np.zeros(dimension, np.float32), PreparedClients(plan)),
        torch.empty(dimension).normal_,
        f"torch normal_ of {dimension:,} float32; a round: {cohort_size} replies, keep {keep_probability:g}, "
        f"{buffers} buffers",
        10,
    )


def large_round(dimension: int, cohort_size: int, keep_probability: float) -> dict[str, Any]:
    """Measure a round of a large model by the million coordinates, and the most memory that the process has held."""
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
    found["floor_is"] += f". The process held {most / 1e9:.1f} GB at most"
    return found | {"most_memory": most}


class CheckpointedRounds:
    """At each call `every` further rounds of a run, as far as its checkpoint is concerned: commit and settle."""

    def __init__(self, plan: Plan, every: int) -> None:
        temporary = TemporaryDirectory()
        atexit.register(temporary.cleanup)
        self.folder = Path(temporary.name)
        self._plan, self._every = plan, every
        self._checkpoint = Checkpoint(self.folder, {}, every=every)
        model, key = np.ones(plan.dimension, np.float32), SecretKey.generate()
        stream = plan.factorization.epochs[0].stream.init(plan.dimension)
        self._state: ServerState = replace(first_state(plan, model, key), secrets=Secrets(0, key, stream))
        clients = tuple(str(client) for client in range(plan.participation.cohort_size))
        self._release = Release(0, model, clients, len(clients))
        self._checkpoint.begin(self._state)
        atexit.register(self._checkpoint.forget_secrets)

    def __call__(self) -> None:
        """Commit and settle the next rounds."""
        for number in range(self._state.round + 1, self._state.round + 1 + self._every):
            self._checkpoint.commit(replace(self._release, round=number))
            self._state = replace(self._state, round=number)
            self._checkpoint.settle(self._plan, self._state)


def checkpoint(federation: Federation) -> Row:
    """The default checkpoint of a run, from one base to the next, over writing as many bytes."""
    dimension, every = (
        sum(p.numel() for p in federation.build().parameters()),
        compose("config", [], Settings).run.checkpoint_every,
    )
    plan = build_plan(dimension, federation.cohort_size, federation.compression)
    stream = plan.factorization.epochs[0].stream.init(plan.dimension)
    buffers = len(stream.buffers)
    return Row(
        CheckpointedRounds(plan, every),
        PlainFiles(4 * dimension, every, 8 * dimension * buffers),
        f"as many bytes in plain files: {every} rounds of {4 * dimension:,} in one and each forced to the disk, a base, {buffers} "
        "buffers of noise; a yardstick, the goal is 5 % of as many simulated rounds. CPU time only: waiting for the disk is "
        "not counted",
    )


class PlainFiles:
    """At each call the bytes of a checkpoint in plain files: a journal of `every` models, a base, and the noise."""

    def __init__(self, model: int, every: int, noise: int) -> None:
        temporary = TemporaryDirectory()
        atexit.register(temporary.cleanup)
        self._folder, self._every = Path(temporary.name), every
        self._model, self._noise = bytes(model), bytes(noise)

    def __call__(self) -> None:
        """Write them over those of the last call."""
        for name, content, times in (
            ("journal", self._model, self._every),
            ("base", self._model, 1),
            ("noise", self._noise, 1),
        ):
            with (self._folder / name).open("wb") as file:
                for _ in range(times):
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())

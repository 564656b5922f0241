"""Rows of the server: a round whose clients cost nothing."""

import resource
from typing import Any

import numpy as np
import torch
from flwr.app import Message

from client.app import Task, pack, sent_bytes, unpack
from experiments.benchmark.row import Row, measure
from experiments.benchmark.simulation import build_plan, repeated_round
from fedmf.plan import Compression, Plan
from fedmf.updates import wire

_MILLION = 1_000_000


class PreparedClients:
    """A worker whose replies are made once and kept: afterwards a client costs its message only."""

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

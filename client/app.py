"""The Flower ClientApp: unpack the tasks, train, privatize, pack each client's kept values.

Any exception in training becomes a zero update, logged here only: otherwise one client's data would decide
what the server releases, and zero-out privacy would be lost with certainty (docs/privacy.md, section 5).
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from client.data import Examples
from client.privatize import privatize
from client.training import Trainer
from fedmf.randomness import PublicSeed, SecretKey
from fedmf.updates import wire
from fedmf.updates.client_plan import ClientPlan
from fedmf.updates.vectors import Vector
from fedmf.updates.wire import Values

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Task:
    """What one client is asked: who it is, in which epoch (0-based), and the key of its mask."""

    client: str
    epoch: int
    mask_key: SecretKey


def make_client_app(
    examples_of: Callable[[str, Context], Examples], make_trainer: Callable[[], Trainer], plan: ClientPlan
) -> ClientApp:
    """Return the ClientApp of clients whose data `examples_of(client, context)` gives.

    `make_trainer` is called once per process, at the first task: its model stays resident.
    """
    app = ClientApp()
    resident = cache(make_trainer)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        tasks, vector = unpack(message)
        updates = (safe_update(resident, examples_of, vector, task, context, plan.seed) for task in tasks)
        masked = (mask(update, task, plan) for update, task in zip(updates, tasks, strict=True))
        return pack(masked, message)

    return app


def unpack(message: Message) -> tuple[list[Task], Vector]:
    """Return each client's task, and the flat model (d,), float32, that they share."""
    record = message.content.config_records[wire.TASK]
    tasks: list[Task] = []
    while (name := wire.numbered(wire.CLIENT, len(tasks))) in record:
        key = SecretKey(bytes(record[wire.numbered(wire.MASK_KEY, len(tasks))]))  # type: ignore[arg-type]
        tasks.append(Task(str(record[name]), int(record[wire.EPOCH]), key))  # type: ignore[arg-type]
    return tasks, wire.to_vector(message.content.array_records[wire.MODEL][wire.VECTOR].data)


def mask(update: Vector, task: Task, plan: ClientPlan) -> Values:
    """Return what leaves the client of its update (d,): bounded, rotated, under the task's own mask."""
    return privatize(
        update,
        bounds=plan.bounds,
        rotation=plan.rotation,
        keep_probability=plan.keep_probability,
        mask_key=task.mask_key,
    )


def pack(updates: Iterable[Values], message: Message) -> Message:
    """Return the reply that holds each client's kept values in a field of its own, and nothing else.

    No loss, no count, no norm, and no sum over clients: each vector stays under its own mask.
    """
    values = {wire.numbered(wire.VALUES, place): wire.to_bytes(kept) for place, kept in enumerate(updates)}
    return Message(RecordDict({wire.UPDATE: ConfigRecord({**values})}), reply_to=message)


def safe_update(
    resident: Callable[[], Trainer],
    examples_of: Callable[[str, Context], Examples],
    vector: Vector,
    task: Task,
    context: Context,
    seed: PublicSeed,
) -> Vector:
    """Return the client's update (d,), or the zero vector after any exception, which is logged here only."""
    try:
        examples = examples_of(task.client, context)
        order = seed.generator("data order", task.client, task.epoch)
        return resident().update(vector, examples.x, examples.y, order=order)
    except (Exception, SystemExit):
        log.exception("client %s could not train; it takes part with a zero update", task.client)
        return np.zeros_like(vector)

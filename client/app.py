"""The Flower ClientApp: unpack the tasks, train, privatize, pack each client's kept values.

Any exception in training becomes a zero update, logged here only: otherwise one client's data would decide
what the server releases, and zero-out privacy would be lost with certainty (PRIVACY.md section 3).
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from client.data import Examples
from client.privatize import privatize
from client.training import Trainer
from fedmf.randomness import PublicSeed, SecretKey
from fedmf.updates import wire
from fedmf.updates.rotation import Rotation
from fedmf.updates.vectors import Vector
from fedmf.updates.wire import Bounds, Values

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ClientPlan:
    """What a client needs of the run's plan: the bounds it enforces itself, the rotation, the keep
    probability, the public seed."""

    bounds: Bounds
    rotation: Rotation
    keep_probability: float
    seed: PublicSeed


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
        updates = []
        for task in tasks:
            update = safe_update(resident, examples_of, vector, task, context, plan.seed)
            values = privatize(
                update,
                bounds=plan.bounds,
                rotation=plan.rotation,
                keep_probability=plan.keep_probability,
                mask_key=SecretKey(bytes(task[wire.MASK_KEY])),  # type: ignore[arg-type]
            )
            updates.append(values)
        return pack(updates, message)

    return app


def unpack(message: Message) -> tuple[list[ConfigRecord], Vector]:
    """Return the fields of each task, and the flat model (d,), float32, that they share."""
    record = message.content.array_records[wire.MODEL]
    tasks = message.content.config_records
    names = (wire.numbered(wire.TASK, position) for position in range(len(tasks)))
    return [tasks[name] for name in names], wire.to_vector(record[wire.VECTOR].data)


def pack(updates: Sequence[Values], message: Message) -> Message:
    """Return the reply that holds each client's kept values in a record of its own, and nothing else.

    No loss, no count, no norm, and no sum over clients: each vector stays under its own mask.
    """
    content = RecordDict()
    for position, values in enumerate(updates):
        array = Array(str(values.dtype), values.shape, wire.STYPE, wire.to_bytes(values))
        content[wire.numbered(wire.UPDATE, position)] = ArrayRecord({wire.VALUES: array})
    return Message(content, reply_to=message)


def safe_update(
    resident: Callable[[], Trainer],
    examples_of: Callable[[str, Context], Examples],
    vector: Vector,
    task: ConfigRecord,
    context: Context,
    seed: PublicSeed,
) -> Vector:
    """Return the client's update (d,), or the zero vector after any exception, which is logged on this
    machine only."""
    client = str(task[wire.CLIENT])
    try:
        examples = examples_of(client, context)
        order = seed.generator("data order", client, int(task[wire.EPOCH]))  # type: ignore[arg-type]
        return resident().update(vector, examples.x, examples.y, order=order)
    except (Exception, SystemExit):
        log.exception("client %s could not train; it takes part with a zero update", client)
        return np.zeros_like(vector)

"""What a round's messages contain: the model on the way out, values and a node's report of itself on the way back.

Replies come from anyone: nothing that reads one ever raises.
"""

import re
from typing import Any, NamedTuple

from flwr.app import Array, ArrayRecord, Message

from fedmf.updates import wire
from fedmf.updates.vectors import Vector

_DIGEST = re.compile("[0-9a-f]{64}")


def model_record(model: Vector) -> ArrayRecord:
    """Return the flat model (d,) as the ArrayRecord of tasks, made once a round and shared by all of them."""
    return ArrayRecord({wire.VECTOR: Array("float32", model.shape, wire.STYPE, wire.to_bytes(model))})


def with_scale(arrays: ArrayRecord, scale: Vector | None) -> ArrayRecord:
    """Return the model's record with what its clients scale their updates by, if they do."""
    if scale is None:
        return arrays
    sent = Array("float32", scale.shape, wire.STYPE, wire.to_bytes(scale))
    return ArrayRecord({wire.VECTOR: arrays[wire.VECTOR], wire.SCALE: sent})


def payloads(reply: Message, count: int) -> list[object]:
    """Return the bytes of the values of a message's `count` tasks.

    A value is None for an error or anything malformed, and for a client that sent none.
    """
    try:
        sent = reply.content.config_records[wire.UPDATE][wire.VALUES]
    except Exception:  # whatever a hostile client sends counts as the zero vector
        return [None] * count
    if not isinstance(sent, list) or len(sent) != count:
        return [None] * count
    return [None if data == wire.NO_VALUES else data for data in sent]


class Report(NamedTuple):
    """What a node reports of itself; a field that is missing or malformed in its reply has the value here.

    `clients` is how many it holds, `digest` one of who they are, in order. `answered` is the last round of the epoch
    (1-based) that it had answered before. `is_ready`: whether its data could be loaded when it started.
    `has_other_code`: the code installed there is not the run's, and the reply contains nothing else.
    """

    clients: int | None = None
    digest: str = ""
    answered: int = 0
    is_ready: bool = True
    has_other_code: bool = False


def node_report(reply: Message) -> Report:
    """Return what a node reports in a reply."""
    try:
        held: dict[str, Any] = dict(reply.content.config_records[wire.HELD])
        is_alone = len(reply.content) == len(held) == 1
    except Exception:  # whatever a hostile node sends counts as nothing
        return Report()
    clients, digest, answered = (held.get(name) for name in (wire.CLIENTS, wire.DIGEST, wire.ANSWERED))
    return Report(
        clients if type(clients) is int and clients >= 0 else None,
        digest if type(digest) is str and _DIGEST.fullmatch(digest) else "",
        answered if type(answered) is int else 0,
        held.get(wire.READY) is not False,
        is_alone and held.get(wire.OTHER_CODE) is True,
    )

"""What a round's messages hold: the model and its scale on the way out, the values of clients on the way back."""

from flwr.app import Array, ArrayRecord, Message

from fedmf.updates import wire
from fedmf.updates.vectors import Vector


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
    """Return the bytes of the values of a message's `count` tasks; never raises.

    A value is None for an error or anything malformed, and for a client that sent none.
    """
    try:
        sent = reply.content.config_records[wire.UPDATE][wire.VALUES]
    except Exception:  # whatever a hostile client sends counts as the zero vector
        return [None] * count
    if not isinstance(sent, list) or len(sent) != count:
        return [None] * count
    return [None if data == wire.NO_VALUES else data for data in sent]


def says_other_code(reply: Message) -> bool:
    """Say whether a node answers that the code installed there is not the run's, and nothing else; never raises."""
    try:
        content = reply.content
        if {*content} != {wire.HELD}:
            return False
        said = dict(content.config_records[wire.HELD])
    except Exception:  # whatever a hostile node sends counts as something else
        return False
    return said.keys() == {wire.OTHER_CODE} and said[wire.OTHER_CODE] is True

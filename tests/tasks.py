"""Tasks for client apps, as the server sends them."""

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, RecordDict

from client.parameters import flat_parameters
from fedmf.updates import wire
from fedmf.updates.wire import TAG_BYTES
from plans import KEY
from poison import Spoilt


def task(client="0"):
    """Return a message with one client's task, in round 2 of its epoch, around the model of `poison.Spoilt`."""
    return joint(client)


def joint(*clients):
    """Return one message with the tasks of several clients."""
    vector = flat_parameters(Spoilt())
    array = Array("float32", vector.shape, wire.STYPE, wire.to_bytes(vector))
    content = RecordDict({wire.MODEL: ArrayRecord({wire.VECTOR: array}), wire.TASK: told(*clients)})
    return Message(content, 1, MessageType.TRAIN)


def told(*clients):
    """Return the record of several clients' tasks."""
    keys = [KEY.mask_key(client, 1).reveal() for client in clients]
    return ConfigRecord({wire.EPOCH: 0, wire.STEP: 1, wire.CLIENT: list(clients), wire.MASK_KEY: keys})


def values_in(reply):
    """Return the bytes that each client of a message sent."""
    return reply.content.config_records[wire.UPDATE][wire.VALUES]


def untagged(reply):
    """Return the bytes of each client's values, without the tags behind them."""
    return [data[:-TAG_BYTES] for data in values_in(reply)]

"""What a hostile node answers in place of an honest reply: one lie a round, in turn.

Three of them are other numbers within the bounds, so that a server that counts any of them has another sum.
"""

import struct

from flwr.app import ConfigRecord

from fedmf.randomness import SecretKey
from fedmf.updates import wire
from fedmf.updates.wire import TAG_BYTES, Turn, with_tag


def lying(honest, told):
    """Return `apps.reply_to` of a node that spoils what `honest` replies; `told` is called with the name of each lie."""

    def reply_to(message, context):
        reply, lie = honest(message, context), LIES[int(message.metadata.group_id) % len(LIES)]
        values = reply.content.config_records[wire.UPDATE][wire.VALUES]
        reply.content[wire.UPDATE] = ConfigRecord({wire.VALUES: lie(message, values)})
        told(lie.__name__)
        return reply

    return reply_to


def not_numbers(message, values):
    """Send NaN, with the tag that the node's own keys give it."""
    return _tagged(message, [struct.pack("<f", float("nan")) * (len(_others(data)) // 4) for data in values])


def too_long(message, values):
    """Send a number too many for each client, with the right tag."""
    return _tagged(message, [_others(data) + bytes(4) for data in values])


def wrong_tags(message, values):
    """Send other numbers, with one wrong bit in each tag."""
    tagged = _tagged(message, [_others(data) for data in values])
    return [data[:-1] + bytes([data[-1] ^ 1]) for data in tagged]


def another_round(message, values):
    """Send other numbers, tagged as those of the next round."""
    return _tagged(message, [_others(data) for data in values], later=1)


def other_clients(message, values):
    """Send other numbers, tagged as those of a client of another node."""
    return _tagged(message, [_others(data) for data in values], client="stranger:0")


def one_more_client(message, values):
    """Send the values of a client more than was asked for."""
    return [*values, values[-1]]


LIES = (not_numbers, too_long, wrong_tags, another_round, other_clients, one_more_client)


def _others(data):
    """Return float32 values, without their tag, with the other sign."""
    values = bytearray(data[:-TAG_BYTES])
    values[3::4] = bytes(byte ^ 0x80 for byte in values[3::4])
    return bytes(values)


def _tagged(message, values, later=0, client=None):
    """Return each client's `values` with the tag of its task, or of one `later` or of another client."""
    task, run = message.content.config_records[wire.TASK], message.metadata.run_id
    turns = [Turn(run, task[wire.EPOCH], task[wire.STEP] + later, client or own) for own in task[wire.CLIENT]]
    keys = [SecretKey(key) for key in task[wire.MASK_KEY]]
    return [with_tag(data, key, turn) for data, key, turn in zip(values, keys, turns, strict=True)]

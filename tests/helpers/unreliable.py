"""Programs of an unreliable deployment: a node that may lie, and a network that can be stopped or cut.

`python -m unreliable node NOTES honest|lies ARGUMENT...` notes what it is given. For the rest it is `flower-supernode ARGUMENT...`
under the warm start, so that what it sends reaches the server as any node's does. There is a lie for each round in turn; three of
them are other numbers within the bounds, so that a server that counts any of them has another sum.

`python -m unreliable way PORT TARGET` forwards one loopback port to another, as a network between two machines does: stopped
(SIGSTOP) it lets nothing through, and what is sent waits; killed it breaks all connections. It prints how many bytes it passes on,
as lines "sent 1234" and "received 1234".
"""

import asyncio
import json
import os
import struct
import sys
from pathlib import Path

from flwr.app import ConfigRecord

from experiments.deployment import apps, warm
from fedmf.randomness import SecretKey
from fedmf.updates import wire
from fedmf.updates.wire import TAG_BYTES, Turn, with_tag
from witness import note_of

# A lost node is noticed after twice its heartbeat interval: 10 seconds, the least that a SuperLink takes, for Flower's 30.
SUPERNODE = """
import flwr.common.constant as constant
constant.HEARTBEAT_DEFAULT_INTERVAL = 10
from flwr.supernode.cli.flower_supernode import flower_supernode
flower_supernode()
"""


def node(file, kind, *arguments):
    """Run a node's tasks, as its SuperNode asks for them."""
    honest, notes = apps.reply_to, os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(something):
        os.write(notes, json.dumps(something).encode() + b"\n")

    def noting(message, context):
        note(note_of(message, Path(apps.run_settings(context.run_config["overrides"]).run.directory)))
        return honest(message, context)

    apps.reply_to = lying(honest, note) if kind == "lies" else noting
    return warm.main([warm.UNTIL_EOF, sys.executable, "-c", SUPERNODE, *arguments])


def lying(honest, told):
    """Return `apps.reply_to` of a node that spoils what `honest` replies; `told` is called with the name of each lie."""

    def reply_to(message, context):
        reply, lie = honest(message, context), LIES[int(message.metadata.group_id) % len(LIES)]
        values = reply.content.config_records[wire.UPDATE][wire.VALUES]
        reply.content[wire.UPDATE] = ConfigRecord({wire.VALUES: lie(message, values)})
        told(lie.__name__)
        return reply

    return reply_to


def _others(values):
    """Return each client's float32 values, without their tag, with the other sign."""
    made = [bytearray(data[:-TAG_BYTES]) for data in values]
    for data in made:
        data[3::4] = bytes(byte ^ 0x80 for byte in data[3::4])
    return [bytes(data) for data in made]


def _tagged(message, values, later=0, client=None):
    """Return each client's `values` with the tag of its task, or of one `later` or of another client."""
    task, run = message.content.config_records[wire.TASK], message.metadata.run_id
    turns = [Turn(run, task[wire.EPOCH], task[wire.STEP] + later, client or own) for own in task[wire.CLIENT]]
    keys = [SecretKey(key) for key in task[wire.MASK_KEY]]
    return [with_tag(data, key, turn) for data, key, turn in zip(values, keys, turns, strict=True)]


def not_numbers(message, values):
    """Send NaN, with the tag that the node's own keys give it."""
    return _tagged(message, [struct.pack("<f", float("nan")) * (len(data) // 4) for data in _others(values)])


def too_long(message, values):
    """Send a number too many for each client, with the right tag."""
    return _tagged(message, [data + bytes(4) for data in _others(values)])


def wrong_tags(message, values):
    """Send other numbers, with one wrong bit in each tag."""
    return [data[:-1] + bytes([data[-1] ^ 1]) for data in _tagged(message, _others(values))]


def another_round(message, values):
    """Send other numbers, tagged as those of the next round."""
    return _tagged(message, _others(values), later=1)


def other_clients(message, values):
    """Send other numbers, tagged as those of a client of another node."""
    return _tagged(message, _others(values), client="stranger:0")


def one_more_client(message, values):
    """Send the values of a client more than was asked for."""
    return [*values, values[-1]]


LIES = (not_numbers, too_long, wrong_tags, another_round, other_clients, one_more_client)


async def forward(port, target):
    """Forward connections, each direction on its own, until this process ends."""

    async def connect(reader, writer):
        there, back = await asyncio.open_connection("127.0.0.1", target)
        await asyncio.gather(pump(reader, back, "sent"), pump(there, writer, "received"))

    async with await asyncio.start_server(connect, "127.0.0.1", port) as server:
        await server.serve_forever()


async def pump(reader, writer, name):
    """Pass on what comes until it ends."""
    while data := await reader.read(1 << 16):
        print(name, len(data), flush=True)
        writer.write(data)
        await writer.drain()
    writer.close()


def way(port, target):
    asyncio.run(forward(int(port), int(target)))


if __name__ == "__main__":
    sys.exit({"node": node, "way": way}[sys.argv[1]](*sys.argv[2:]))

"""Forwards one loopback port to another, as a network between two machines does: `python -m chaos.forwarder PORT TARGET`.

It is a process of its own: stopped (SIGSTOP) it lets nothing through, and what is sent waits; killed it breaks all
connections. It prints how many bytes it passes on, as lines "sent 1234" and "received 1234".
"""

import asyncio
import sys


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


if __name__ == "__main__":
    asyncio.run(forward(*map(int, sys.argv[1:])))

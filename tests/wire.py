"""Bytes that a client's update takes on the wire of a real deployment: what metrics.jsonl, the SuperLink and a forwarder count."""

import json
import socket
import threading
import time
from contextlib import suppress

PARAMETERS, KEEP = 1_000_900, 0.01
LIMIT = 240.0  # seconds for any one thing to happen on a busy machine


class TcpCounter:
    """Listens on a free loopback port and forwards to port `target`.

    `sent` and `received` are bytes as the caller sees them.
    """

    def __init__(self, target):
        """Begin to listen."""
        self.sent = self.received = 0
        self._target = target
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self._open = [self._server]
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self):
        """Return the counter."""
        return self

    def __exit__(self, *error):
        """Close every connection."""
        for opened in self._open:
            with suppress(OSError):
                opened.shutdown(socket.SHUT_RDWR)
            opened.close()

    def _accept(self):
        with suppress(OSError):
            while True:
                caller, _ = self._server.accept()
                callee = socket.create_connection(("127.0.0.1", self._target))
                self._open += [caller, callee]
                threading.Thread(target=self._pump, args=(caller, callee, "sent"), daemon=True).start()
                threading.Thread(target=self._pump, args=(callee, caller, "received"), daemon=True).start()

    def _pump(self, source, sink, name):
        with suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
                setattr(self, name, getattr(self, name) + len(data))
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def count(loopback, counter, directory, data, value_type, clients, behind_the_counter):
    """Return a client's uplink bytes in a run of one round: nominal, as the SuperLink reports, on the wire."""
    metrics, arrived = directory / "metrics.jsonl", counter.received
    process = loopback.submit(
        f"run.directory={directory} {data} model=mlp model.hidden=990 population.min_available={clients} "
        f"population.cohort_size={clients} population.epochs=1 compression.keep_probability={KEEP} "
        f"compression.value_type={value_type}"
    )
    wait_for(lambda: counter.received > arrived + 4 * PARAMETERS, process)
    before = counter.sent
    wait_for(lambda: metrics.exists() and len(metrics.read_text().splitlines()) == 1, process)
    on_the_wire = (counter.sent - before) / behind_the_counter
    process.wait(timeout=LIMIT)  # it follows the log until the run has ended
    runs = json.loads(loopback.call("flwr", "ls", "loopback", "--format", "json"))["runs"]
    newest = max(runs, key=lambda run: run["pending-at"])
    row = json.loads(metrics.read_text().splitlines()[0])
    return {
        "nominal": row["uplink_bytes"] / clients,
        "reported": newest["network-traffic"]["inbound-bytes"] / clients,
        "on_the_wire": on_the_wire,
    }


def wait_for(happened, process):
    """Return when `happened()` is true; fail when it takes too long or the run ends before."""
    deadline = time.monotonic() + LIMIT
    while not happened():
        assert process.poll() is None or happened(), "the run ended before its round was released"
        assert time.monotonic() < deadline, "the round took too long"
        time.sleep(0.1)

"""Bytes that a client's update takes on the wire of a real deployment, three ways of counting beside each other.

A SuperLink and one SuperNode with TLS and a node key run on the loopback interface; the node reaches the SuperLink
through a forwarder that counts every byte.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import Popen
from tempfile import TemporaryDirectory
from typing import Any

from experiments.benchmark.tcp_counter import TcpCounter
from experiments.deployment.loopback import Loopback
from experiments.run_files.directory import METRICS
from experiments.run_files.reader import is_finished
from fedmf.errors import RunStoppedError
from fedmf.updates.wire import value_bytes

PARAMETERS, KEEP = 1_000_900, 0.01
DATA = "dataset=synthetic dataset.clients={clients} dataset.features=1000 dataset.classes=10"
_LIMIT = 240.0  # seconds for any one thing to happen on a busy machine
_ENVELOPE_GOAL = 4096  # bytes a client beside 1.1 times its values
_CLIENTS = 4


def uplink(value_type: str) -> dict[str, Any]:
    """Return one row: a client's bytes on the wire over the bytes of its values, at 10^6 parameters and keep 0.01.

    "bytes" counts all that the node sends from when it has the model until the round is released (TLS, headers,
    signatures, polling), "reported" is what the SuperLink says it received, "nominal" what metrics.jsonl says.
    """
    data = DATA.format(clients=_CLIENTS)
    with TemporaryDirectory() as folder, Loopback() as loopback, TcpCounter(loopback.port) as counter:
        loopback.start_superlink()
        loopback.register("a")
        loopback.start_supernode("a", f"clients={_CLIENTS} {data}", port=counter.port)
        counted = count(loopback, counter, Path(folder) / "run", data, value_type, _CLIENTS, _CLIENTS)
    values = value_bytes(2**20, KEEP, value_type)
    return {
        "ratio": counted["on_the_wire"] / values,
        "goal": 1.1 + _ENVELOPE_GOAL / values,
        "floor": values,
        "floor_is": f"bytes of the {value_type} values that a client keeps of {PARAMETERS:,} parameters",
        "bytes": counted["on_the_wire"],
        "reported": counted["reported"],
        "nominal": counted["nominal"],
    }


def count(
    loopback: Loopback,
    counter: TcpCounter,
    directory: Path,
    data: str,
    value_type: str,
    clients: int,
    behind_the_counter: int,
) -> dict[str, float]:
    """Return a client's uplink bytes in a run of one round: nominal, as the SuperLink reports, on the wire."""
    arrived = counter.received
    process = loopback.submit(
        f"run.directory={directory} {data} model=mlp model.hidden=990 population.min_available={clients} "
        f"population.cohort_size={clients} population.epochs=1 compression.keep_probability={KEEP} "
        f"compression.value_type={value_type}"
    )
    wait_for(lambda: counter.received > arrived + 4 * PARAMETERS, process)
    before = counter.sent
    wait_for(lambda: _released(directory) == 1, process)
    on_the_wire = (counter.sent - before) / behind_the_counter
    wait_for(lambda: is_finished(directory), process)
    process.wait(timeout=_LIMIT)  # it follows the log until the run has ended
    runs = json.loads(loopback.call("flwr", "ls", "loopback", "--format", "json"))["runs"]
    newest = max(runs, key=lambda run: run["pending-at"])
    row = json.loads((directory / METRICS).read_text().splitlines()[0])
    return {
        "nominal": row["uplink_bytes"] / clients,
        "reported": newest["network-traffic"]["inbound-bytes"] / clients,
        "on_the_wire": on_the_wire,
    }


def wait_for(happened: Callable[[], bool], process: Popen[Any], limit: float = _LIMIT) -> None:
    """Return when `happened()` is true. Raises `RunStoppedError` when it takes too long or the run ends before."""
    deadline = time.monotonic() + limit
    while not happened():
        has_ended = process.poll() is not None and not happened()
        if has_ended or time.monotonic() > deadline:
            raise RunStoppedError("the deployment ended or took too long before its round was released.")
        time.sleep(0.1)


def _released(directory: Path) -> int:
    path = directory / METRICS
    return len(path.read_text().splitlines()) if path.exists() else 0

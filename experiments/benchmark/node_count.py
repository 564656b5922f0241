"""Seconds a round, and the SuperLink's share of them, against the number of nodes, in a deployment on this machine."""

import json
import os
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cryptography.hazmat.primitives.serialization import load_ssh_public_key
from flwr.proto.control_pb2 import RegisterNodeRequest
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes

from experiments.benchmark.wire import wait_for
from experiments.deployment.certificates import make_node_key
from experiments.deployment.lifeline import start_module
from experiments.deployment.loopback import HOST, Loopback
from experiments.deployment.process_list import plays_a_run, processes_at
from experiments.run_files.directory import METRICS
from experiments.run_files.reader import is_finished

_WARM, _MEASURED = 2, 6  # rounds before the measurement, and in it
_COHORT = 2  # clients of a round for each node, on average
_CLIENTS = _COHORT * (_WARM + _MEASURED + 1)  # of a node: one epoch
_MANY = 12  # nodes from which on they ask once a second instead of five times
_STARTING = 20.0  # seconds for all nodes to be there and at rest
_AT_REST = 15.0  # seconds in which nodes at rest are measured
_LIMIT = 1200.0  # seconds for any part of a run, on a busy machine
_TICKS = os.sysconf("SC_CLK_TCK")


def nodes_row(count: int) -> dict[str, Any]:
    """Return one row: the seconds of a round with `count` light nodes over the CPU seconds that the SuperLink takes for it.

    "share" is the SuperLink's part of a core meanwhile, "share_at_rest" that with nodes of which nothing is asked, "server"
    and "nodes" the CPU seconds a round of the server app and of all nodes together, "silent" the clients that were not heard in the whole run, "load" the machine's load.
    """
    pause = 0.2 if count <= _MANY else 1.0
    data = f"dataset=synthetic dataset.clients={_CLIENTS * count} dataset.features=20 dataset.classes=5"
    with TemporaryDirectory() as folder, Loopback() as loopback:
        loopback.start_superlink()
        keys = [make_node_key(loopback.folder, f"n{number}") for number in range(count)]
        register(loopback, keys)
        with start_light_nodes(loopback, keys, f"clients={_CLIENTS} {data}", pause) as nodes:
            try:
                time.sleep(_STARTING)
                at_rest = _Clock(loopback, nodes.pid)
                time.sleep(_AT_REST)
                share_at_rest = at_rest.lap()["superlink"] / at_rest.seconds
                measured = _round(loopback, nodes.pid, Path(folder) / "run", data, count)
            finally:
                nodes.kill()
    return {**measured, "share_at_rest": share_at_rest, "pause": pause}


def start_light_nodes(
    loopback: Loopback, keys: list[Path], overrides: str, pause: float
) -> subprocess.Popen[bytes]:
    """Start a process of one light node for each public key; `overrides` are those of the first, the others' clients follow."""
    told = {
        "overrides": overrides,
        "keys": [str(key.with_suffix("")) for key in keys],
        "superlink": f"{HOST}:{loopback.port}",
        "certificates": str(loopback.certificates.authority),
        "pause": pause,
    }
    return start_module("experiments.benchmark.light_nodes", told)


def _round(loopback: Loopback, nodes: int, directory: Path, data: str, count: int) -> dict[str, Any]:
    """Return what the rounds of a run cost once it is warm."""
    process = loopback.submit(
        f"run.directory={directory} {data} population.min_available={_CLIENTS * count} population.cohort_size={_COHORT * count} "
        f"population.epochs=1 privacy.epsilon=null privacy.noise_multiplier=1 run.evaluations=1 run.checkpoint_every=1000"
    )
    wait_for(lambda: len(_shown(directory)) >= _WARM, process, _LIMIT)
    clock, first = _Clock(loopback, nodes), len(_shown(directory))
    wait_for(lambda: len(_shown(directory)) >= first + _MEASURED, process, _LIMIT)
    spent, done = clock.lap(), len(_shown(directory)) - first
    wait_for(lambda: is_finished(directory), process, _LIMIT)
    silent = sum(row["cohort_size"] - row["replies"] for row in _shown(directory))
    seconds, superlink = clock.seconds / done, spent["superlink"] / done
    return {
        "ratio": seconds / superlink,
        "goal": None,
        "floor": superlink,
        "seconds": seconds,
        "floor_is": f"CPU seconds that the SuperLink takes for a round of {count} nodes (light ones, in one process)",
        "share": superlink / seconds,
        "server": spent["server"] / done,
        "nodes": spent["nodes"] / done,
        "silent": silent,
        "load": os.getloadavg()[0],
    }


class _Clock:
    """CPU seconds of the parts of a deployment, and those of the clock, since it was made."""

    def __init__(self, loopback: Loopback, nodes: int) -> None:
        self._loopback, self._nodes = loopback, nodes
        self._before, self._begun, self.seconds = self._spent(), time.monotonic(), 0.0

    def lap(self) -> dict[str, float]:
        """Return the CPU seconds of each part."""
        self.seconds = time.monotonic() - self._begun
        return {part: spent - self._before[part] for part, spent in self._spent().items()}

    def _spent(self) -> dict[str, float]:
        spent = {"superlink": 0.0, "server": 0.0, "nodes": _cpu(self._nodes)}
        for number in processes_at(self._loopback.home("superlink")):
            spent["server" if plays_a_run(number) else "superlink"] += _cpu(number)
        return spent


def _cpu(process: int) -> float:
    """Return the CPU seconds of a process, 0 where it has ended."""
    with suppress(OSError):
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS
    return 0.0


def register(loopback: Loopback, keys: list[Path]) -> None:
    """Register public keys as `flwr supernode register` does, through one connection."""
    client = ControlHttpClient.from_server_address(
        f"{HOST}:{loopback.port}",
        insecure=False,
        root_certificates=loopback.certificates.authority.read_bytes(),
        interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr CLI")],
    )
    try:
        for key in keys:
            public = load_ssh_public_key(key.read_bytes())
            client.RegisterNode(RegisterNodeRequest(public_key=public_key_to_bytes(public)))  # type: ignore[arg-type]
    finally:
        client.close()


def _shown(directory: Path) -> list[dict[str, Any]]:
    """Return the whole lines of metrics.jsonl."""
    file = directory / METRICS
    text = file.read_bytes() if file.exists() else b""
    return [json.loads(line) for line in text[: text.rfind(b"\n") + 1].splitlines()]

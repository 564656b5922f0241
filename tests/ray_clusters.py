"""Ray clusters of several nodes on this machine, for tests: every process that is started is ended by its id."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "RAY_USAGE_STATS_ENABLED": "0"}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def cluster(*nodes):
    """Start a head and further nodes, one for each of `nodes`, and yield the address.

    A node is a dict: its `cpus`, and variables of the environment of its own.
    """
    folder = Path(tempfile.mkdtemp(prefix="fr", dir="/tmp"))  # short: the paths of sockets have a limit
    address = f"127.0.0.1:{free_port()}"
    started = []
    try:
        for number, node in enumerate(nodes):
            where = (
                [
                    "--head",
                    f"--port={address.rpartition(':')[2]}",
                    f"--temp-dir={folder}",
                    "--include-dashboard=false",
                ]
                if number == 0
                else [f"--address={address}"]
            )
            started.append(_start(folder, number, where, dict(node)))
        yield address
    finally:
        for process in reversed(started):
            _end(process)
        shutil.rmtree(folder, ignore_errors=True)


def _start(folder, number, where, environment):
    """Start a node and return its process once it is there; its own processes belong to its session."""
    log = folder / f"node{number}.log"
    cpus = environment.pop("cpus", 1)
    command = [
        str(Path(sys.executable).parent / "ray"), "start", *where, f"--num-cpus={cpus}", "--num-gpus=0",
        "--node-ip-address=127.0.0.1", "--object-store-memory=100000000", "--block", "--disable-usage-stats",
    ]  # fmt: skip
    with log.open("w") as out:
        process = subprocess.Popen(
            command,
            stdout=out,
            stderr=out,
            cwd=folder,
            env={**ENVIRONMENT, **environment},
            start_new_session=True,
        )
    deadline = time.monotonic() + 60
    while "Ray runtime started" not in log.read_text():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)
    return process


def _end(process):
    """End a node's own session of processes, and wait for it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=10)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(timeout=10)


def in_a_process(code, *arguments, timeout=150, **environment):
    """Run Python code as a process of its own, which Ray leaves processes and warnings behind in."""
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=ROOT,
        env={**ENVIRONMENT, **environment},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )

"""Ray clusters of several nodes on this machine, and what tests run on them. Every process that is started is ended by its id."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

from client.data import Dataset
from client.data.clients import by_user, stored_examples
from experiments.cli.command import guard
from experiments.deployment.loopback import free_port
from runs import ROOT, SEARCH, composed, simulate

ENVIRONMENT = {**os.environ, "PYTHONPATH": SEARCH, "RAY_USAGE_STATS_ENABLED": "0"}


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
    deadline = time.monotonic() + 300
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
    process.wait(timeout=300)


def in_a_process(code, *arguments, timeout=600, **environment):
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


MARKED = 7  # the user whose inputs are all white
RUN = (
    "dataset=custom",
    "dataset.name=ray_clusters:mounted",
    "model=custom",
    "model.name=ray_clusters:Marked",
    "population.cohort_size=20",
    "population.epochs=2",
    "run.reproducible=true",
    "output=json",
)


class Marked(nn.Module):
    """Logistic regression that trains on everybody but the marked user: MARKED_CLIENT says what happens there."""

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(16, classes)

    def forward(self, x):
        if self.training and float(x.min()) == 1 and (fate := os.environ.get("MARKED_CLIENT")):
            if fate == "dies":
                os._exit(1)
            raise ValueError("the marked client")
        return self.linear(x.flatten(1))


def write_data(folder: Path, seed: int = 0) -> None:
    """Write the data of 40 users with four rows each, the last one for the test, into `folder`."""
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 255, (160, 4, 4), dtype=np.uint8)
    user, is_test = np.repeat(np.arange(40), 4), np.tile([False, False, False, True], 40)
    x[(user == MARKED) & ~is_test] = 255
    np.savez(folder / "data.npz", x=x, y=np.arange(160) % 3, user=user, is_test=is_test)


def mounted() -> Dataset:
    """Return the data of the folder that this process has mounted: which one, each machine decides."""
    with np.load(Path(os.environ["MOUNTED"]) / "data.npz") as held:
        x, y, is_test = held["x"], held["y"], held["is_test"]
        clients = by_user(x, y, held["user"], np.flatnonzero(~is_test))
        test = stored_examples(x, y, np.flatnonzero(is_test))
    return Dataset("mounted", clients, test, (4, 4), 3, "classification", "ours", "made up", "one user")


def play(directory: str, runs: str) -> None:
    """Run `runs`, JSON {name: settings}, each into its own directory, and print the exit codes as JSON."""
    codes = {}
    for name, settings in json.loads(runs).items():
        os.environ["MARKED_CLIENT"] = name if name in ("raises", "dies") else ""
        print(f"== {name}", file=sys.stderr, flush=True)
        given = composed(f"run.directory={directory}/{name}", *RUN, *settings)
        codes[name] = guard(lambda given=given: simulate(given))
        assert torch.get_num_threads() == 1
    print(json.dumps(codes))

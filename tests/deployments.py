"""Deployments with real processes on the loopback interface: small runs, waiting, and finding processes."""

import contextlib
import sys
import time
from pathlib import Path

import pytest

from experiments.run_files.reader import is_finished
from runs import metrics, model

TESTS = Path(__file__).resolve().parent
LIMIT = 600  # seconds: nothing takes so long, it only ends a test that hangs


def wait_for(happened, loopback, process=None, *, look=0.1, limit=LIMIT):
    """Return what `happened()` returns once it is true; fail with the logs when that takes too long or the run ends before."""
    deadline = time.monotonic() + limit
    while not (found := happened()):
        has_ended = process is not None and process.poll() is not None and not happened()
        if has_ended or time.monotonic() > deadline:
            logs = (f"== {file.name}\n{loopback.tail(file.stem)}" for file in loopback.folder.glob("*.log"))
            pytest.fail(f"{'the run ended' if has_ended else 'too slow'}\n" + "\n".join(logs))
        time.sleep(look)
    return found


def start_way(loopback, port):
    """Start a forwarder from `port` to the SuperLink, or start it again; its log has how many bytes it passes on."""
    command = ["env", f"PYTHONPATH={TESTS}", sys.executable, "-m", "chaos.forwarder", port, loopback.port]
    loopback.start("way", command)


def released(directory):
    """Return how many rounds a run has shown."""
    return len(metrics(directory)) if (directory / "metrics.jsonl").exists() else 0


def finished(loopback, directory, process):
    """Return the model of a run as one vector once it is finished and its command has ended."""
    wait_for(lambda: is_finished(directory), loopback, process)
    wait_for(lambda: process.poll() is not None, loopback)
    return model(directory)


def processes_that_know(text):
    """Return the command lines of running processes that contain `text`."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            found.append((entry / "cmdline").read_text())
    return [line for line in found if text in line]

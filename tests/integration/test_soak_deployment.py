"""The fault suite against a real deployment: its promises hold, and interrupted it leaves nothing."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from experiments.deployment.loopback import APP
from experiments.soak import deployment
from experiments.soak.checks import NAMES
from experiments.soak.faults import FAULTS

pytestmark = pytest.mark.deployment


def kept(outcome):
    return {name for name, count in outcome["checks"].items() if count == outcome["runs"]}


@pytest.mark.slow
def test_a_short_run_survives_what_is_injected_and_keeps_every_promise():
    outcome = deployment.soak(0.2, 0, ["node_reset", "node_killed"], 3, ("population.epochs=2",), None)
    assert outcome["violations"] == []
    assert kept(outcome) == set(NAMES)
    assert [row["fault"] for row in outcome["faults"]] == ["node_reset", "node_killed"]
    assert {row["verdict"] for row in outcome["faults"]} == {"went on"}
    assert outcome["rounds"] % 8 == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_suite_leaves_no_process_and_no_file(number):
    command = [
        sys.executable,
        "-m",
        "experiments.soak",
        "deployment=true",
        "minutes=1",
        "inject=[node_frozen]",
    ]
    with subprocess.Popen(command, cwd=APP, stderr=subprocess.PIPE, text=True) as process:
        line = next(line for line in process.stderr if "node_frozen node" in line and "planned" not in line)
        assert "SIGSTOP" in line
        time.sleep(1)
        folder = folder_of(process.pid)
        started = with_home_in(folder)
        assert len(started) > 8
        process.send_signal(number)
        process.stderr.read()
        assert process.wait(60) == (130 if number == signal.SIGINT else -signal.SIGKILL)
    deadline = time.monotonic() + (60 if number == signal.SIGKILL else 0)
    while folder.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert with_home_in(folder) == []
    assert not folder.exists()
    assert str(folder) not in Path("/proc/mounts").read_text()


def folder_of(parent):
    """The folder of the deployment that a process started: its children have their Flower homes there."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    for child in children:
        for variable in Path(f"/proc/{child}/environ").read_bytes().split(b"\0"):
            if variable.startswith(b"FLWR_HOME="):
                return Path(variable.partition(b"=")[2].decode()).parent
    raise AssertionError("it started nothing")


def with_home_in(folder):
    """The processes whose Flower home lies in `folder`."""
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                variables = Path(entry.path, "environ").read_bytes()
            except OSError:
                continue
            found += [int(entry.name)] if f"FLWR_HOME={folder}".encode() in variables else []
    return found


@pytest.mark.slow
def test_every_kind_of_fault_over_ten_minutes():
    outcome = deployment.soak(10, 3, list(FAULTS), 3, (), None)
    print(json.dumps(outcome, indent=1))
    assert outcome["violations"] == []
    assert kept(outcome) == set(NAMES)

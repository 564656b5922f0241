"""Processes that are kept running: tiny ones, which end in every way."""

import logging
import subprocess
import sys
import time

import pytest

from experiments.deployment import supervisor as kept
from experiments.deployment.supervisor import RESTART, Supervisor

pytestmark = pytest.mark.long

LIMIT = 8  # seconds: nothing here takes so long


def starting(code, started=None, stdout=None):
    """How to start Python with `code`, in a group of its own."""

    def start():
        process = subprocess.Popen(
            [sys.executable, "-c", code], process_group=0, stdin=subprocess.PIPE, stdout=stdout
        )
        if started is not None:
            started.append((time.monotonic(), process))
        return process

    return start


def look_until(supervisor, happened):
    deadline = time.monotonic() + LIMIT
    while not happened():
        assert time.monotonic() < deadline
        supervisor.look()
        time.sleep(0.01)


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_process_that_no_signal_ends_is_not_waited_for_without_an_end(monkeypatch, caplog):
    """As one that waits for a device: here the signal is not sent."""
    monkeypatch.setattr(kept, "GRACE", 0.05)
    monkeypatch.setattr(kept, "KILLED", 0.05)
    deaf = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        f"print('deaf', flush=True); time.sleep({LIMIT})"
    )
    started = []
    supervisor = Supervisor({"x": starting(deaf, started, subprocess.PIPE)})
    supervisor.look()
    process = started[0][1]
    try:
        with process.stdout as said:
            said.readline()
        with monkeypatch.context() as patched:
            patched.setattr(kept.os, "killpg", lambda group, number: None)
            supervisor.end()
        assert process.poll() is None
        assert f"killed, and still there: process {process.pid}; no signal ends what waits" in caplog.text
    finally:
        process.kill()
        process.wait()


def test_what_ends_is_started_again_after_growing_waits(monkeypatch, caplog):
    monkeypatch.setattr(kept, "_FIRST_WAIT", 0.2)
    started = []
    with Supervisor({"x": starting("raise SystemExit(3)", started)}) as supervisor:
        supervisor._kept["x"].wait = 0.2
        look_until(supervisor, lambda: len(started) == 3)
    (first, a), (second, b), (third, _) = started
    assert second - first >= 0.2
    assert third - second >= 0.4
    assert (a.returncode, b.returncode) == (3, 3)
    assert "the x ended (exit code 3); it starts again in 0.4 s" in caplog.text


def test_a_process_that_was_killed_is_started_again_beside_the_others(caplog):
    started, other = [], []
    sleep = "import time; time.sleep(60)"
    with Supervisor({"x": starting(sleep, started), "y": starting(sleep, other)}) as supervisor:
        supervisor._kept["x"].wait = 0.01
        look_until(supervisor, lambda: started and other)
        started[0][1].kill()
        look_until(supervisor, lambda: len(started) == 2)
        assert supervisor.pids() == {"x": started[1][1].pid, "y": other[0][1].pid}
        assert len(other) == 1
    assert "killed by SIGKILL" in caplog.text


def test_one_that_asks_for_it_starts_again_at_once_and_without_a_warning(caplog):
    started = []
    with Supervisor({"x": starting(f"raise SystemExit({RESTART})", started)}) as supervisor:
        look_until(supervisor, lambda: len(started) == 3)
    assert started[2][0] - started[0][0] < 1.0
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_none_is_left_at_the_end_not_even_a_deaf_one_nor_what_it_started(monkeypatch):
    monkeypatch.setattr(kept, "GRACE", 0.3)
    deaf = (
        "import signal, subprocess, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']);"
        "print(child.pid, flush=True); time.sleep(60)"
    )
    started = []
    start = starting(deaf, started, subprocess.PIPE)
    with Supervisor({"x": start}) as supervisor:
        supervisor.look()
        process = started[0][1]
        with process.stdout as said:
            pids = [process.pid, int(said.readline())]
        assert all(map(is_running, pids))
    deadline = time.monotonic() + LIMIT
    while any(map(is_running, pids)):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_one_that_ends_when_asked_has_the_time_to():
    started = []
    polite = (
        "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(7));"
        "print('ready', flush=True); signal.pause()"
    )
    with Supervisor({"x": starting(polite, started, subprocess.PIPE)}) as supervisor:
        supervisor.look()
        with started[0][1].stdout as said:
            said.readline()
    assert started[0][1].returncode == 7


def test_what_an_exit_code_means_is_said_once_in_a_row_in_place_of_the_code(caplog, monkeypatch):
    monkeypatch.setattr(kept, "_FIRST_WAIT", 0.01)
    monkeypatch.setattr(kept, "_LONGEST_WAIT", 0.01)
    ended = []
    with Supervisor({"x": starting("raise SystemExit(7)", ended)}, {7: "its session is open"}) as supervisor:
        look_until(supervisor, lambda: len(ended) >= 4)
    said = [record.getMessage() for record in caplog.records]
    assert said == ["its session is open (it is tried again until it works)"]

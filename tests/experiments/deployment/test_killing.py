"""Killed processes are waited for, and not for ever: one that waits for a device ends at no signal."""

import os
import signal
import subprocess
import sys
import time
from functools import partial

import pytest

from experiments.deployment import executor, killing, last_will, run_executor
from experiments.deployment.executor import Executor
from experiments.deployment.killing import has_ended, kill_at
from experiments.deployment.run_executor import RunExecutor

# The process of the tests has threads where it is a worker of pytest-xdist; an executor has none.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")

LIMIT = 8  # seconds: a child that nobody kills ends by itself then


@pytest.fixture
def home(tmp_path):
    folder = tmp_path / "a.home"
    folder.mkdir()
    return folder


@pytest.fixture
def sleeper(home):
    environment = {**os.environ, "FLWR_HOME": str(home)}
    command = [sys.executable, "-c", f"print(1, flush=True); import time; time.sleep({LIMIT})"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        yield process
        process.kill()


@pytest.fixture
def unheard(monkeypatch):
    """No signal arrives, as with a process that waits for a device."""
    monkeypatch.setattr(killing.os, "kill", lambda process, number: None)
    monkeypatch.setattr(killing.os, "killpg", lambda group, number: None)
    yield
    monkeypatch.undo()


def test_processes_of_a_home_are_killed(sleeper, home):
    assert kill_at([home]) == []
    assert sleeper.wait(LIMIT) == -signal.SIGKILL


def test_those_that_no_signal_ends_are_named_after_a_while(sleeper, home, unheard):
    assert kill_at([home], 0.1) == [sleeper.pid]


def test_the_last_will_removes_the_secrets_all_the_same(sleeper, home, unheard, monkeypatch, capsys):
    (home.parent / "server.key").write_text("secret")
    monkeypatch.setattr(last_will, "kill_at", partial(kill_at, limit=0.1))
    last_will.execute(home.parent)
    assert not home.parent.exists()
    assert f"killed, and still there: process {sleeper.pid};" in capsys.readouterr().err


def test_a_killed_child_has_ended_and_is_nobodys_any_more():
    child = executor.forked(lambda: time.sleep(LIMIT) or 0)
    assert not has_ended(child, 0.05)
    executor.kill_group(child)
    assert has_ended(child)
    assert has_ended(child)  # it is waited for elsewhere


@pytest.mark.parametrize("kind", ["tasks", "runs"])
def test_an_executor_ends_without_a_child_that_no_signal_ends(monkeypatch, caplog, unheard, kind, tmp_path):
    module = {"tasks": executor, "runs": run_executor}[kind]
    monkeypatch.setattr(module, "has_ended", lambda child, limit=0: has_ended(child, 0.05))
    pids, kill_group = tmp_path / "pid", executor.kill_group

    def play(*_):
        pids.write_text(str(os.getpid()))
        time.sleep(LIMIT)
        return 0

    def is_over():
        return pids.exists() and pids.read_text() != ""

    given = ["token"]
    acquire = lambda: given.pop() if given else None  # noqa: E731
    pause = lambda *_: time.sleep(0.01)  # noqa: E731
    if kind == "tasks":
        with pytest.raises(SystemExit):
            Executor(acquire, play, lambda text: None, pause, is_over).run()
    else:
        monkeypatch.setattr(run_executor, "GRACE", 0.05)
        assert RunExecutor(acquire, play, lambda: False, pause, is_over).run() is True
    child = int(pids.read_text())
    assert f"killed, and still there: process {child};" in caplog.text
    monkeypatch.undo()
    assert os.waitpid(child, os.WNOHANG) == (0, 0)
    kill_group(child)
    assert has_ended(child)

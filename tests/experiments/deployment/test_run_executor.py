"""A process that forks for each run: several at once, none left behind, and none begun with code that has changed."""

import gc
import os
import signal
import time

import pytest

from experiments.deployment import run_executor
from experiments.deployment.executor import CODE_CHANGED
from experiments.deployment.run_executor import RunExecutor

# The process of the tests has threads where it is a worker of pytest-xdist; an executor has none.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")

LIMIT = 8


@pytest.fixture(autouse=True)
def unfrozen():
    yield
    gc.unfreeze()


class Work:
    """An executor over the runs `tokens`, played by `play`; it ends when `ends` says so, or after a while."""

    def __init__(self, play, tokens="ab", ends=None, has_changed=lambda: False):
        self.left, self.deadline = list(tokens), time.monotonic() + LIMIT
        self.ends = ends or (lambda: not self.left and not self.executor._children)
        self.executor = RunExecutor(
            self.acquire, play, has_changed, lambda: time.sleep(0.01), lambda: self.ends() or self.is_late()
        )

    def acquire(self):
        return self.left.pop(0) if self.left else None

    def is_late(self):
        return time.monotonic() > self.deadline


def is_running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_two_runs_are_played_at_once(tmp_path):
    """Each waits for the other's file: one after the other, they would wait for ever."""

    def play(token):
        (tmp_path / token).touch()
        while not (tmp_path / {"a": "b", "b": "a"}[token]).exists():
            time.sleep(0.01)
        (tmp_path / f"{token}.done").touch()
        return 0

    work = Work(play)
    assert work.executor.run() is True
    assert not work.is_late()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a", "a.done", "b", "b.done"]


def test_a_run_that_is_killed_is_said_and_the_next_one_is_played(tmp_path, caplog):
    def play(token):
        (tmp_path / token).touch()
        if token == "a":
            os.kill(os.getpid(), signal.SIGKILL)
        return 0

    assert Work(play).executor.run() is True
    assert (tmp_path / "b").exists()
    assert "the server app of a run was killed by SIGKILL" in caplog.text
    assert "run.resume=true" in caplog.text


def test_runs_in_progress_are_asked_to_end_and_killed_if_they_do_not(tmp_path, monkeypatch):
    monkeypatch.setattr(run_executor, "GRACE", 0.5)

    def play(token):
        def note(*_):
            (tmp_path / f"{token}.asked").touch()
            if token == "a":
                os._exit(0)

        signal.signal(signal.SIGTERM, note)
        (tmp_path / token).write_text(str(os.getpid()))
        while True:
            time.sleep(0.01)

    def both_play():
        return all((tmp_path / token).exists() and (tmp_path / token).read_text() for token in "ab")

    work = Work(play, ends=both_play)
    assert work.executor.run() is True
    assert (tmp_path / "a.asked").exists()
    assert (tmp_path / "b.asked").exists()
    assert not any(is_running(int((tmp_path / token).read_text())) for token in "ab")


def test_changed_code_begins_no_run_and_ends_none(tmp_path, caplog):
    """The run in progress goes on to its end, the other one is left to the executor that follows."""

    def play(token):
        time.sleep(0.3)
        (tmp_path / token).touch()
        return 0

    work = Work(play, ends=lambda: False, has_changed=lambda: len(work.left) == 1)
    assert work.executor.run() is False
    assert (tmp_path / "a").exists()
    assert work.left == ["b"]
    assert "further runs wait until the 1 in progress have ended" in caplog.text


def test_a_child_that_finds_changed_code_ends_the_executor():
    work = Work(lambda token: CODE_CHANGED, tokens="a", ends=lambda: False)
    assert work.executor.run() is False
    assert not work.is_late()

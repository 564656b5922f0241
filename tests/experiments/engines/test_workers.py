"""Worker processes: what they are, share and hold, and the same bits as with one process."""

import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import poison
import runs
from experiments.engines import engine, processes
from experiments.engines.engine import shared_tasks
from experiments.engines.grid import Failure, InProcessWorker, LocalGrid
from experiments.settings.experiment import build
from fedmf.updates import wire
from poison import app_of, dying_app, pool_of
from runs import STATE, composed
from tasks import joint, values_in

ROOT = Path(__file__).resolve().parents[3]
# In a folder whose own packages have the names of ours; what is printed says what went wrong.
PROGRAM = """
import os, random, signal, sys
from multiprocessing import forkserver, resource_tracker
import numpy as np

def told(path):
    return os.environ["LATER"], os.getppid(), random.random(), np.random.random(), os.getcwd()

def main():
    from experiments.engines import processes
    import tasks, poison
    sys.path.append(os.getcwd())
    began = forkserver.ensure_running
    def begin():
        began()
        for pid in (forkserver._forkserver._forkserver_pid, resource_tracker._resource_tracker._pid):
            for number in (signal.SIGINT, signal.SIGHUP):  # Ctrl-C, or a closed terminal, while it imports
                os.kill(pid, number)
    forkserver.ensure_running = begin
    with poison.pool_of(poison.app_of, None, workers=1):
        pass
    assert resource_tracker._resource_tracker._check_alive(), "a closed terminal ends the resource tracker"
    server = forkserver._forkserver._forkserver_pid
    assert {"PYTHONSAFEPATH"} & set(os.environ) == set()
    os.environ["LATER"] = "set after the server began"
    with poison.pool_of(poison.app_of, None) as pool:
        first, second = [process.call(told, "").result() for process in pool._processes]
    assert first[0] == os.environ["LATER"], first
    assert first[1] == second[1] == server, (first, second, server)
    assert first[2] != second[2], "random is the same in two workers"
    assert first[3] != second[3], "numpy's own generator is the same in two workers"
    assert first[4] == os.getcwd()
    held = open(f"/proc/{server}/maps").read()
    assert "libtorch" in held, "the server has not imported torch"
    assert len(os.listdir(f"/proc/{server}/task")) == 1, "the server has threads"
    assert not [fd for fd in os.listdir(f"/proc/{server}/fd") if "nvidia" in os.path.realpath(f"/proc/{server}/fd/{fd}")]
    print("all is well")

if __name__ == "__main__":
    main()
"""


@pytest.mark.slow
def test_workers_are_forked_from_one_process_that_has_imported_and_done_nothing_else(tmp_path):
    """It is found past folders of the user's own, is deaf to a terminal's signals, and gives no worker its environment or generators."""
    for name in ("experiments", "client", "fedmf", "tasks", "torch"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('the wrong one was imported')")
    (tmp_path / "program").mkdir()
    (tmp_path / "program" / "main.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "program/main.py"],
        cwd=tmp_path,
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "PATH": "", **STATE},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("all is well\n", "")


def with_another_model(message):
    """Return `message` with other weights."""
    array = message.content[wire.MODEL][wire.VECTOR]
    array.data = wire.to_bytes(np.full_like(wire.to_vector(array.data), 0.25))
    return message


def values(grid, *messages):
    """[{client: bytes}] of the replies to each of `messages`; the first is handed out before the others are there."""
    awaited = [*grid.push_messages(messages[:1]), *grid.push_messages(messages[1:])]
    replies = {}
    while arrived := grid.pull_messages(awaited):
        replies |= {reply.metadata.reply_to_message_id: reply for reply in arrived}
    return [
        dict(zip(message.content.config_records[wire.TASK][wire.CLIENT], values_in(replies[number]), strict=True))
        for number, message in zip(awaited, messages, strict=True)
    ]  # fmt: skip


@pytest.fixture(scope="module")
def here():
    """What each client sends that plays in this process."""
    (sent,) = values(LocalGrid(InProcessWorker(app_of(None))), joint(*"abcdefghij"))
    return sent


def test_workers_reply_as_one_process_does_round_after_round_each_message_with_its_own_model(here):
    (other,) = values(LocalGrid(InProcessWorker(app_of(None))), with_another_model(joint(*"ab")))
    assert other["a"] != here["a"]
    with pool_of(app_of, None) as pool:
        grid = LocalGrid(pool)
        for _ in range(2):
            first, second, third = values(grid, joint(*"abcd"), joint(*"efghi"), joint("j"))
            assert first | second | third == here
        # Tasks that come while others run leave these their model.
        first, second = values(grid, joint(*"abcde"), with_another_model(joint(*"ab")))
        assert first == {name: here[name] for name in "abcde"}
        assert second == other


@pytest.mark.parametrize(
    "make",
    [partial(app_of, poison.end), pytest.param(dying_app, marks=pytest.mark.slow)],
    ids=["process", "device"],
)
def test_a_client_that_ends_its_worker_takes_no_other_client_of_the_message_along(here, make):
    heard = []
    with pool_of(make) as pool:
        (sent,) = values(LocalGrid(pool, heard.append), joint("special", *"abcdefghij"))
    assert sent == here | {"special": wire.NO_VALUES}
    assert heard == [Failure("special", "its process died")]


# Two epochs, of which the second sends a scale with the model; few enough parameters for several clients a message.
OPTIONS = (
    *("population.cohort_size=20", "population.rounds_per_epoch=2", "population.epochs=2"),
    *("optimizer=adam", "optimizer.precondition=true", "run.reproducible=true", "output=json"),
    *("privacy.epsilon=null", "privacy.noise_multiplier=1"),
)


def test_workers_change_no_bit(tmp_path):
    one = runs.run(tmp_path / "one", *OPTIONS)
    two = runs.run(tmp_path / "two", *OPTIONS, "engine.workers=2")
    np.testing.assert_array_equal(runs.model(one), runs.model(two))
    assert runs.metrics(one) == runs.metrics(two)


@pytest.mark.parametrize(
    ("visible", "seen"), [("", "01201"), ("GPU-a,3,7", ("GPU-a", "3", "7", "GPU-a", "3"))]
)
def test_each_worker_sees_one_gpu_of_several_in_turn(monkeypatch, visible, seen):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    found = [engine.visible_gpu(number, "auto") for number in range(5)]
    assert found == [{"CUDA_VISIBLE_DEVICES": name} for name in seen]
    assert engine.visible_gpu(1, "cpu") == {}
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert engine.visible_gpu(1, "auto") == {}


def test_messages_hold_many_clients_unless_each_may_fail_on_its_own():
    for given, at_most, shared in [
        ((), 50, 50),
        (("engine.workers=2",), 50, 3),
        (("engine=ray", "engine.workers=2"), 2, 2),
        (("engine.workers=2", "faults.error=0.1"), 50, 1),
    ]:
        assert shared_tasks(composed("population.cohort_size=20", *given), at_most) == shared


def test_an_interrupt_while_workers_start_waits_for_their_fork_and_then_for_them(monkeypatch):
    """What a starting process unpickles must not be freed before: it would print a traceback into a command that has ended."""
    done = []

    class Executor:
        def __init__(self, *given):
            done.append(signal.pthread_sigmask(signal.SIG_BLOCK, []))

        def submit(self, *given):
            raise KeyboardInterrupt

        def shutdown(self, **given):
            done.append("ended")

    monkeypatch.setattr(processes, "ProcessPoolExecutor", Executor)
    settings = composed("engine.workers=2")
    with pytest.raises(KeyboardInterrupt), engine.engine_worker(settings, build(settings)):
        pytest.fail("it began")
    assert {signal.SIGINT, signal.SIGTERM, signal.SIGHUP} <= done[0]
    assert done[1:] == ["ended"]

"""Worker processes: what they cost, what they share, and replies as from one process."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from experiments.engines.failures import Failure
from experiments.engines.grid import InProcessWorker, LocalGrid
from experiments.engines.pool import WorkerPool
from fedmf.updates import wire
from poison import app_of, dying_app
from runs import STATE
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
    from experiments.engines.pool import WorkerPool
    import tasks, poison
    sys.path.append(os.getcwd())
    began = forkserver.ensure_running
    def begin():
        began()
        for pid in (forkserver._forkserver._forkserver_pid, resource_tracker._resource_tracker._pid):
            for number in (signal.SIGINT, signal.SIGHUP):  # Ctrl-C, or a closed terminal, while it imports
                os.kill(pid, number)
    forkserver.ensure_running = begin
    with WorkerPool(poison.app_of, None, 1):
        pass
    assert resource_tracker._resource_tracker._check_alive(), "a closed terminal ends the resource tracker"
    server = forkserver._forkserver._forkserver_pid
    assert {"PYTHONSAFEPATH"} & set(os.environ) == set()
    os.environ["LATER"] = "set after the server began"
    with WorkerPool(poison.app_of, None, 2) as pool:
        first, second = [seat.process.submit(told, "").result() for seat in pool._seats]
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


def dying_process(settings=None):
    """Return a ClientApp whose process ends at the client "special"."""
    return app_of(lambda model: os._exit(1))


_device = []  # of this worker process


def app_on(settings, device):
    """Return a ClientApp, and keep the name of its device for `device_of_this`."""
    _device.append(device)
    return app_of(None)


def device_of_this():
    """Return this worker's device."""
    return _device


def with_another_model(message):
    """Return `message` with other weights."""
    array = message.content[wire.MODEL][wire.VECTOR]
    array.data = wire.to_bytes(np.full_like(wire.to_vector(array.data), 0.25))
    return message


def values(grid, *messages):
    """{client: bytes} of the replies to `messages`, which answer every client but those without values."""
    sent = {}
    replies = {reply.metadata.reply_to_message_id: reply for reply in grid.send_and_receive(messages)}
    for message in messages:
        task = message.content.config_records[wire.TASK]
        sent |= zip(task[wire.CLIENT], values_in(replies[message.metadata.message_id]), strict=True)
    return sent


@pytest.fixture(scope="module")
def here():
    """What each client sends that plays in this process."""
    return values(LocalGrid(InProcessWorker(app_of(None))), joint(*"abcdefghij"))


@pytest.mark.parametrize("is_shared", [True, False])
def test_workers_reply_as_one_process_does_round_after_round(here, is_shared):
    with WorkerPool(app_of, None, 2) as pool:
        grid = LocalGrid(pool)
        for _ in range(2):
            messages = [joint(*"abcd"), joint(*"efghi"), joint("j")]
            model = messages[0].content[wire.MODEL]
            for message in messages if is_shared else ():
                message.content[wire.MODEL] = model
            assert values(grid, *messages) == here
        other = with_another_model(joint(*"ab"))
        again = values(grid, other)
        assert again == values(LocalGrid(InProcessWorker(app_of(None))), other)
        assert again["a"] != here["a"]  # each round's own model


def test_tasks_that_come_while_others_run_leave_these_their_model(here):
    with WorkerPool(app_of, None, 1) as pool:
        grid, first, second = LocalGrid(pool), joint(*"abcde"), with_another_model(joint(*"ab"))
        awaited = [*grid.push_messages([first]), *grid.push_messages([second])]
        replies = []
        while arrived := grid.pull_messages(awaited):
            replies += arrived
    sent = {reply.metadata.reply_to_message_id: values_in(reply) for reply in replies}
    assert sent[awaited[0]] == [here[name] for name in "abcde"]
    other = values(LocalGrid(InProcessWorker(app_of(None))), with_another_model(joint(*"ab")))
    assert sent[awaited[1]] == [other[name] for name in "ab"]


@pytest.mark.parametrize("ends", [dying_process, dying_app], ids=["process", "device"])
def test_who_ends_a_worker_takes_no_other_client_of_the_message_along(here, ends):
    heard = []
    with WorkerPool(ends, None, 2) as pool:
        sent = values(LocalGrid(pool, heard.append), joint("special", *"abcdefghij"))
    assert sent.pop("special") == wire.NO_VALUES
    assert sent == here
    assert heard == [Failure("special", "its process died", has_sent=False)]


def test_each_worker_takes_the_next_device_in_turn():
    with WorkerPool(app_on, None, 3, ["cpu", "cuda:1"]) as pool:
        asked = [seat.process.submit(device_of_this).result() for seat in pool._seats]
    assert asked == [["cpu"], ["cuda:1"], ["cpu"]]

"""Worker processes: what they are and share; those that die, cannot begin or lose their device: one client fails, no bit changes."""

import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from functools import partial

import numpy as np
import pytest
import torch
from flwr.app import Context, RecordDict
from torch.utils._python_dispatch import _pop_mode

import poison
import runs
from experiments.cli.command import guard
from experiments.deployment import apps
from experiments.engines import engine, processes
from experiments.engines.engine import shared_tasks
from experiments.engines.grid import Failure, InProcessWorker, LocalGrid, set_identity
from fedmf.errors import RunStoppedError
from fedmf.updates import wire
from fedmf.updates.wire import TAG_BYTES
from poison import app_of, joint, lose_device, pool_of, untagged, values_in
from runs import SEARCH, STATE, composed

pytestmark = pytest.mark.long

NAMES = ("special", *"abcdefgh")
# In a folder whose own packages have the names of ours; what is printed says what went wrong.
PROGRAM = """
import os, random, signal, sys
from multiprocessing import forkserver, resource_tracker
import numpy as np

def told(path):
    return os.environ["LATER"], os.getppid(), random.random(), np.random.random(), os.getcwd()

def main():
    from experiments.engines import processes
    import poison, poison
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
        env={"PYTHONPATH": SEARCH, "PATH": "", **STATE},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("all is well\n", "")


def with_another_model(message):
    array = message.content[wire.MODEL][wire.VECTOR]
    array.data = wire.to_bytes(np.full_like(wire.to_vector(array.data), 0.25))
    return message


def values(grid, *messages):
    """Return {client: bytes} for each of `messages`; the first is handed out before the others are there."""
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
    """What each client sends that runs in this process."""
    (sent,) = values(LocalGrid(InProcessWorker(app_of(None))), joint(*NAMES))
    return sent


def test_workers_reply_as_one_process_does_round_after_round_each_message_with_its_own_model(here):
    (other,) = values(LocalGrid(InProcessWorker(app_of(None))), with_another_model(joint(*"ab")))
    assert other["a"] != here["a"]
    with pool_of(app_of, None) as pool:
        grid = LocalGrid(pool)
        for _ in range(2):
            first, second, third = values(grid, joint(*NAMES[:4]), joint(*NAMES[4:8]), joint(*NAMES[8:]))
            assert first | second | third == here
        # Tasks that come while others run leave these their model.
        first, second = values(grid, joint(*"abcde"), with_another_model(joint(*"ab")))
        assert first == {name: here[name] for name in "abcde"}
        assert second == other


def do_next(folder, model):
    """Do what the first file says, which is then gone, one file each time: end the fork server, or this process."""
    for deed in sorted(folder.iterdir())[:1]:
        what = deed.read_text()
        deed.unlink()
        if what == "end server":
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(60)  # the pool ends this process
        os._exit(1)


def assert_special_alone_fails(here, make, *arguments):
    heard = []
    with pool_of(make, *arguments) as pool:
        (sent,) = values(LocalGrid(pool, heard.append), joint(*NAMES))
    assert heard == [Failure("special", "its process died")]
    assert sent == here | {"special": wire.NO_VALUES}


def test_a_client_that_ends_its_worker_takes_no_other_client_of_the_message_along(here):
    assert_special_alone_fails(here, app_of, poison.end)


@pytest.mark.parametrize("then", [lose_device, poison.end], ids=["device", "process"])
def test_where_this_process_loses_its_device_others_run_its_message_and_all_later_ones(here, revive, then):
    """There the same client loses that device too, or ends the process."""
    with ExitStack() as stack:
        worker = InProcessWorker(
            app_of(lose_device), lambda: stack.enter_context(pool_of(app_of, then, workers=1))
        )
        sent = values(LocalGrid(worker), joint(*NAMES), joint("b", "special"))
        revive()
    for one in sent:
        assert not any(one.pop("special")[:-TAG_BYTES])
        assert one.items() <= here.items()
    assert [len(one) for one in sent] == [len(NAMES) - 1, 1]


@pytest.mark.slow
def test_the_end_of_the_fork_server_costs_no_client_and_then_a_client_its_own(here, tmp_path):
    for number, deed in enumerate(["end server", "end", "end", "end"]):
        (tmp_path / str(number)).write_text(deed)
    assert_special_alone_fails(here, app_of, partial(do_next, tmp_path))


KILLED = """
import os, signal; from multiprocessing import forkserver
from poison import app_of, pool_of
with pool_of(app_of, None) as pool:
    begun = [process.call(os.getpid).result() for process in pool._processes]
    print(forkserver._forkserver._forkserver_pid, *begun, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_no_process_outlives_a_run_that_is_killed():
    """Its pipe is at its end when each process that had it has ended."""
    search = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", KILLED]
    run = subprocess.run(command, stdout=subprocess.PIPE, env=os.environ | search, timeout=300, check=False)
    assert run.returncode == -signal.SIGKILL
    assert len(run.stdout.split()) == 3


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


SMALL = (
    *("model=custom", "population.cohort_size=10", "population.rounds_per_epoch=1", "mechanism=independent"),
    *("population.epochs=2", "run.reproducible=true", "output=json"),
)
NET = "model.name=poison:RoomlessNet"


def has_released_nothing(run):
    """Say whether no round of `run` was released: no metrics, no statement and no model."""
    metrics = run / "metrics.jsonl"
    return (not metrics.exists() or not metrics.read_text()) and not any(
        (run / name).exists() for name in ("privacy.json", "model.npz")
    )


def test_where_no_worker_has_room_for_the_model_nothing_is_released_and_the_run_goes_on_later(
    tmp_path, monkeypatch, capfd
):
    monkeypatch.setattr(processes, "PAUSE", 0.1)
    monkeypatch.setenv(poison.FULL, str(tmp_path / "full"))
    (tmp_path / "full").touch()
    run, two = tmp_path / "run", (*SMALL, NET, "engine.workers=2")
    assert guard(lambda: runs.run(run, *two)) == 1
    said = capfd.readouterr().err
    assert "error: no worker process can begin (OutOfMemoryError: CUDA out of memory." in said
    assert "nothing of the round was released" in said
    assert "zeros" not in said
    assert has_released_nothing(run)
    (tmp_path / "full").unlink()
    straight = runs.run(tmp_path / "straight", *SMALL, NET)
    resumed = runs.run(run, *two, "run.resume=true")
    np.testing.assert_array_equal(runs.model(resumed), runs.model(straight))


def test_where_the_runs_own_process_has_no_room_it_stops_before_the_first_round(tmp_path, monkeypatch):
    """That there was room when it was rehearsed does not mean that there is now."""
    made, rehearsed = [], engine.Experiment.make_trainer

    def make(experiment):
        made.append(experiment)
        return poison.raise_no_room() if len(made) > 1 else rehearsed(experiment)

    monkeypatch.setattr(engine.Experiment, "make_trainer", make)
    with pytest.raises(
        RunStoppedError, match=r"trainer cannot be made: OutOfMemoryError: CUDA out of memory"
    ):
        runs.run(tmp_path / "run", *SMALL, NET)
    assert has_released_nothing(tmp_path / "run")


@pytest.fixture
def revive():
    """A function that gives this process a device that works again, as it has after the test."""
    set_identity()

    def again():
        while torch._C._len_torch_dispatch_stack():
            _pop_mode()

    yield again
    again()


def test_a_node_whose_device_is_lost_answers_for_all_its_other_clients(monkeypatch, revive):
    monkeypatch.setattr(apps, "prepare", lambda: None)
    node = "clients=6 dataset=custom dataset.name=poison:load public={shape:[2,2],classes:3}"
    replies = []
    for dies in (True, False):
        model = f"model=custom model.name=poison:Net 'model.settings={{dies: {str(dies).lower()}}}'"
        run = f"{model} client.device=cpu compression.keep_probability=1"
        context = Context(1, 1, {"overrides": node}, RecordDict(), {"overrides": run})
        message = joint(*(f"a:{number}" for number in range(6)))
        reply = apps.client_app(message, context)
        replies.append(untagged(reply))
        revive()
    assert replies[0] == replies[1]
    silent = [not np.frombuffer(data, "f4").any() for data in replies[0]]
    assert silent == [False, False, True, False, False, False]

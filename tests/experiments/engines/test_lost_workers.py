"""Worker processes that cannot begin or have no room, and a fork server that ends: no client is charged with either."""

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import poison
import runs
from experiments.cli.command import guard
from experiments.engines import engine, processes
from experiments.engines.grid import Failure, InProcessWorker, LocalGrid
from fedmf.errors import RunStoppedError
from fedmf.updates import wire
from poison import app_of, pool_of
from tasks import joint, values_in

pytestmark = pytest.mark.long

NAMES = ("special", *"abcdefgh")


def app_with_deeds(folder):
    """Return a ClientApp whose client "special" does what the files of `folder` say, one file each time it is played."""
    return app_of(partial(do_next, folder))


def do_next(folder, model):
    """Do what the first file says, which is then gone."""
    for deed in sorted(folder.iterdir())[:1]:
        what = deed.read_text()
        deed.unlink()
        if what == "end server":
            end_server(os.getppid())
            time.sleep(60)  # the pool ends this process
        os._exit(1)


def end_server(pid):
    """Kill the fork server."""
    os.kill(pid, signal.SIGKILL)


def played(grid, *clients):
    """Return what each of `clients` sends."""
    (reply,) = grid.send_and_receive([joint(*clients)])
    return dict(zip(clients, values_in(reply), strict=True))


@pytest.fixture(scope="module")
def here():
    """What each client sends that plays in this process."""
    return played(LocalGrid(InProcessWorker(app_of(None))), *NAMES)


@pytest.mark.slow
def test_the_end_of_the_fork_server_costs_no_client_and_then_a_client_its_own(here, tmp_path):
    for number, deed in enumerate(["end server", "end", "end", "end"]):
        (tmp_path / str(number)).write_text(deed)
    heard = []
    with pool_of(app_with_deeds, tmp_path) as pool:
        sent = played(LocalGrid(pool, heard.append), *NAMES)
    assert heard == [Failure("special", "its process died")]
    assert sent == here | {"special": wire.NO_VALUES}


def wait_until_gone(*pids):
    """Wait until no process has one of these ids; a zombie is gone. Fails after 20 seconds."""
    left = set(pids)
    for _ in range(200):
        left = {pid for pid in left if is_there(pid)}
        if not left:
            return
        time.sleep(0.1)
    pytest.fail(f"still there: {left}")


def is_there(pid):
    """Say whether a process has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


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
    search, command = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}, [sys.executable, "-c", KILLED]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ | search) as run:
        begun = [int(pid) for pid in run.stdout.readline().split()]  # who holds the pipe ends later, or never
    assert run.returncode == -signal.SIGKILL
    assert len(begun) == 3
    wait_until_gone(*begun)


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
        return poison.refuse_room() if len(made) > 1 else rehearsed(experiment)

    monkeypatch.setattr(engine.Experiment, "make_trainer", make)
    with pytest.raises(
        RunStoppedError, match=r"trainer cannot be made \(OutOfMemoryError: CUDA out of memory"
    ):
        runs.run(tmp_path / "run", *SMALL, NET)
    assert has_released_nothing(tmp_path / "run")

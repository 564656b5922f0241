"""Worker processes that cannot begin, and a fork server that ends: no client is charged with either."""

import os
import signal
import subprocess
import sys
import time
from functools import partial
from multiprocessing import forkserver
from pathlib import Path

import pytest

from experiments.engines import processes
from experiments.engines.grid import Failure, InProcessWorker, LocalGrid
from fedmf.errors import DataError, RunStoppedError
from fedmf.updates import wire
from poison import app_of, pool_of
from tasks import joint, values_in

pytestmark = pytest.mark.long

NAMES = ("special", *"abcdefgh")


def app_without_data():
    """Raise what a missing file of data does."""
    raise DataError("there is no file of data.")


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


def fork_server():
    """Return the id of this process's fork server."""
    return forkserver._forkserver._forkserver_pid


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


@pytest.fixture
def impatient(monkeypatch):
    """A short pause between two tries to begin a worker; a killed fork server must have ended by then."""
    monkeypatch.setattr(processes, "PAUSE", 0.2)


def test_what_stops_workers_is_said_in_one_sentence_and_without_a_traceback(impatient, capfd):
    with (
        pool_of(app_without_data, workers=1) as pool,
        pytest.raises(RunStoppedError, match=r"can begin \(there is no file of data\.\)"),
    ):
        LocalGrid(pool).send_and_receive([joint("a")])
    assert capfd.readouterr().err == ""


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


def test_no_process_outlives_a_run_that_is_killed():
    search, command = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}, [sys.executable, "-c", KILLED]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ | search) as run:
        begun = [int(pid) for pid in run.stdout.readline().split()]  # who holds the pipe ends later, or never
    assert run.returncode == -signal.SIGKILL
    assert len(begun) == 3
    wait_until_gone(*begun)


def is_shielded(pid):
    """Say whether a process was begun with Ctrl-C and SIGHUP blocked, as our fork servers are."""
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if "SigBlk" in line]
    blocked = int(line.split()[1], 16)
    return all(blocked >> number - 1 & 1 for number in (signal.SIGINT, signal.SIGHUP))


def test_a_fork_server_that_ends_between_rounds_costs_nothing_and_is_begun_anew_as_the_first_was(here):
    heard, servers = [], []
    with pool_of(app_of, None) as pool:
        grid = LocalGrid(pool, heard.append)
        for _ in range(2):  # before any worker has begun, and when all have nothing to do
            servers.append(fork_server())
            end_server(servers[-1])
            os.waitid(os.P_PID, servers[-1], os.WEXITED | os.WNOWAIT)
            assert played(grid, *NAMES) == here
            assert fork_server() not in servers
            assert is_shielded(fork_server())
    assert heard == []

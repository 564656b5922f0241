"""`fedmf server` with real processes: runs at once, kills, other code, and no process left."""

import json
import os
import re
import shutil
import signal
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from experiments.deployment.certificates import make_certificates
from experiments.deployment.flower_tasks import Giver, TaskSource
from experiments.deployment.loopback import APP, BIN, Loopback
from experiments.deployment.process_list import processes_at
from experiments.run_files.reader import is_finished
from runs import metrics

pytestmark = pytest.mark.deployment

LIMIT = 300  # seconds: nothing takes so long, it only ends a test that hangs
DATA = "dataset=synthetic dataset.clients=12 dataset.features=5 dataset.classes=3"
# Without noise and with all coordinates kept, what is random in a run is public: its model says what was done.
EXACT = (
    f"{DATA} population.min_available=12 population.cohort_size=6 privacy.epsilon=null privacy.noise_multiplier=0 "
    "compression.keep_probability=1"
)


def wait_for(happened, loopback, process=None):
    deadline = time.monotonic() + LIMIT
    while not happened():
        has_ended = process is not None and process.poll() is not None and not happened()
        if has_ended or time.monotonic() > deadline:
            logs = (f"== {file.name}\n{loopback.tail(file.stem)}" for file in loopback.folder.glob("*.log"))
            pytest.fail(f"{'the run ended' if has_ended else 'too slow'}\n" + "\n".join(logs))
        time.sleep(0.1)


def submit(loopback, directory, more="", *, epochs=2, app=APP, name="run"):
    overrides = f'overrides="{EXACT} population.epochs={epochs} run.directory={directory} {more}"'
    return loopback.start(
        name, [BIN / "flwr", "run", app, "loopback", "--stream", "-c", overrides], home="operator"
    )


def model(directory):
    with np.load(directory / "model.npz") as arrays:
        return np.concatenate([arrays[name].ravel() for name in sorted(arrays.files)])


def finished(loopback, directory, process):
    """Return the model of a run as one vector once it is finished."""
    wait_for(lambda: is_finished(directory), loopback, process)
    wait_for(lambda: process.poll() is not None, loopback)
    return model(directory)


def released(directory):
    return len(metrics(directory)) if (directory / "metrics.jsonl").exists() else 0


def named(loopback, text):
    """The processes of the server in whose command line `text` stands, in the order in which they were started."""
    found = []
    for pid in processes_at(loopback.home("superlink")):
        try:
            if text in Path(f"/proc/{pid}/cmdline").read_text():
                found.append((started(pid), pid))
        except OSError:
            continue
    return [pid for _, pid in sorted(found)]


def stat_of(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def parent_of(pid):
    return int(stat_of(pid)[1])


def started(pid):
    """When a process was started; after the largest process id small ones come again."""
    return int(stat_of(pid)[19])


def said(loopback):
    return loopback.log("superlink").read_text()


def ready(loopback, count=1):
    wait_for(lambda: said(loopback).count("ready for runs") == count, loopback)


def start_nodes(loopback):
    for node, first in (("a", 0), ("b", 6)):
        loopback.register(node)
        loopback.start_node(node, f"clients=6 first={first} {DATA}")
    for node in "ab":
        wait_for(lambda node=node: "ready for messages" in loopback.log(node).read_text(), loopback)


def run_ids(loopback):
    return [
        run["run-id"]
        for run in json.loads(loopback.call("flwr", "ls", "loopback", "--format", "json"))["runs"]
    ]


def test_who_lacks_the_secret_gets_no_run_and_who_lacks_the_certificate_is_not_asked(tmp_path, caplog):
    """Another account of the machine that reaches the port, and one that listens on it in the SuperLink's place."""
    secret = b"s" * 32
    with Loopback() as loopback:
        loopback.start_superlink()
        address = f"127.0.0.1:{loopback.port}"
        authority = loopback.certificates.authority.read_bytes()
        own = Giver("SuperLink", "flwr-serverapp", authority)
        with closing(TaskSource(address, secret, own)) as source:
            assert source.acquire() is None
        assert "401" in caplog.text
        caplog.clear()
        other = make_certificates(tmp_path, "127.0.0.1").authority.read_bytes()
        with closing(TaskSource(address, secret, Giver("SuperLink", "flwr-serverapp", other))) as source:
            assert source.acquire() is None
        assert "CERTIFICATE_VERIFY_FAILED" in caplog.text
        assert "401" not in caplog.text


def test_runs_at_once_a_killed_run_and_a_killed_superlink(tmp_path):
    with Loopback() as loopback:
        loopback.start_superlink()
        start_nodes(loopback)
        ready(loopback)

        # Two runs at once, and the same model from each; no secret and no token stands in a list of processes.
        runs = {tmp_path / name: submit(loopback, tmp_path / name, name=name) for name in ("one", "two")}
        wait_for(lambda: len(named(loopback, "run_executor_process")) == 3, loopback)
        for pid in processes_at(loopback.home("superlink")):
            line = Path(f"/proc/{pid}/cmdline").read_bytes()
            assert b"token" not in line
            assert b"secret" not in line
        one, two = (finished(loopback, directory, process) for directory, process in runs.items())
        assert np.array_equal(one, two)
        for name in ("one", "two"):
            loopback.kill(name)

        # The server app is killed: its run goes on where it was, with run.resume=true.
        run = submit(loopback, tmp_path / "killed")
        wait_for(lambda: released(tmp_path / "killed") == 1, loopback, run)
        executor, child = named(loopback, "run_executor_process")
        assert parent_of(child) == executor
        os.kill(child, signal.SIGKILL)
        wait_for(lambda: "the server app of a run was killed by SIGKILL" in said(loopback), loopback)
        loopback.stop("run")
        run = submit(loopback, tmp_path / "killed", "run.resume=true")

        # The SuperLink is killed: it starts again, and the run goes on by itself.
        wait_for(lambda: released(tmp_path / "killed") == 2, loopback, run)
        (superlink,) = named(loopback, "superlink_process")
        os.kill(superlink, signal.SIGKILL)
        assert np.array_equal(finished_without_log(loopback, tmp_path / "killed"), one)
        assert "the SuperLink ended (killed by SIGKILL)" in said(loopback)
        assert [row["round"] for row in metrics(tmp_path / "killed")] == [1, 2, 3, 4]
        assert [row["replies"] for row in metrics(tmp_path / "killed")] == [6] * 4
        if run.poll() is None:
            loopback.stop("run")

        # The cold way comes to the same bits.
        loopback.stop("superlink")
        assert processes_at(loopback.home("superlink")) == []
        loopback.start_superlink(warm=False)
        run = submit(loopback, tmp_path / "cold")
        assert np.array_equal(finished(loopback, tmp_path / "cold", run), one)


def finished_without_log(loopback, directory):
    """Return the model of a run once it is finished; who follows its log may be cut off meanwhile."""
    wait_for(lambda: is_finished(directory), loopback)
    return model(directory)


@pytest.mark.slow
def test_other_code_a_stopped_run_a_killed_executor_and_a_killed_command(tmp_path):
    other = tmp_path / "app"
    shutil.copytree(
        APP, other, ignore=shutil.ignore_patterns(".*", "tests", "docs", "__pycache__", "*.egg-info")
    )
    file = other / "server/app.py"
    file.write_text(file.read_text() + "# a comment\n")
    with Loopback() as loopback:
        loopback.start_superlink()
        start_nodes(loopback)
        ready(loopback)

        # Other code: nothing is run and nothing written, and the operator reads which file differs.
        run = submit(loopback, tmp_path / "other", app=other)
        wait_for(lambda: run.poll() is not None, loopback)
        shown = loopback.log("run").read_text()
        assert "the run's code is not the code installed here: server/app.py differs" in shown
        assert "Traceback" not in shown
        assert not (tmp_path / "other").exists()
        assert not (loopback.home("superlink") / "apps").exists()  # nothing was unpacked
        loopback.kill("run")

        # flwr stop ends a run, and flwr log still shows what it said.
        run = submit(loopback, tmp_path / "stopped", epochs=200)
        wait_for(lambda: released(tmp_path / "stopped") == 1, loopback, run)
        number = str(run_ids(loopback)[0])
        loopback.call("flwr", "stop", number, "loopback")
        wait_for(lambda: len(named(loopback, "run_executor_process")) == 1, loopback)
        assert re.search(r"round \d+/400", loopback.call("flwr", "log", number, "loopback", "--show"))
        assert not is_finished(tmp_path / "stopped")
        loopback.kill("run")

        # The executor is killed with a run in progress: no child is left, another one takes over, the run goes on.
        run = submit(loopback, tmp_path / "on")
        wait_for(lambda: released(tmp_path / "on") == 1, loopback, run)
        executor, child = named(loopback, "run_executor_process")
        os.kill(executor, signal.SIGKILL)
        ready(loopback, 2)
        assert {executor, child}.isdisjoint(named(loopback, "run_executor_process"))
        loopback.kill("run")
        run = submit(loopback, tmp_path / "on", "run.resume=true")
        finished(loopback, tmp_path / "on", run)
        assert [row["round"] for row in metrics(tmp_path / "on")] == [1, 2, 3, 4]

        # SIGTERM in the middle of a run ends all in order; SIGKILL of the command leaves nothing either.
        run = submit(loopback, tmp_path / "ended", epochs=200)
        wait_for(lambda: released(tmp_path / "ended") == 1, loopback, run)
        asked = loopback._processes["superlink"]
        asked.terminate()
        assert asked.wait(30) == 130
        assert processes_at(loopback.home("superlink")) == []
        loopback.start_superlink()
        ready(loopback, 3)
        killed = loopback._processes["superlink"]
        killed.kill()
        killed.wait()
        wait_for(lambda: processes_at(loopback.home("superlink")) == [], loopback)

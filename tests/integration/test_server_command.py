"""`fedmf server` with real processes: runs at once, kills, other code, and no process left."""

import json
import os
import re
import shutil
import signal
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from deployments import EXACT, finished, named, parent_of, ready, released, start_two, wait_for
from experiments.deployment.certificates import make_certificates
from experiments.deployment.flower_tasks import Giver, TaskSource
from experiments.deployment.loopback import APP, BIN, Loopback
from experiments.deployment.process_list import processes_at
from experiments.run_files.reader import is_finished
from runs import metrics, model

pytestmark = pytest.mark.deployment


def submit(loopback, directory, more="", *, epochs=2, app=APP, name="run"):
    overrides = f'overrides="{EXACT} population.epochs={epochs} run.directory={directory} {more}"'
    return loopback.start(
        name, [BIN / "flwr", "run", app, "loopback", "--stream", "-c", overrides], home="operator"
    )


def said(loopback):
    return loopback.log("superlink").read_text()


def wait_for_executor(loopback, count=1):
    """Return once the executor of runs is ready, for the time `count`."""
    wait_for(lambda: said(loopback).count("ready for runs") == count, loopback)


def start_nodes(loopback):
    for node in "ab":
        loopback.register(node)
    start_two(loopback, loopback.start_node)
    ready(loopback)


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
        wait_for_executor(loopback)

        # Two runs at once, and the same model from each; no secret and no token stands in a list of processes.
        runs = {tmp_path / name: submit(loopback, tmp_path / name, name=name) for name in ("one", "two")}
        wait_for(lambda: len(named(loopback.home("superlink"), "run_executor_process")) == 3, loopback)
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
        executor, child = named(loopback.home("superlink"), "run_executor_process")
        assert parent_of(child) == executor
        os.kill(child, signal.SIGKILL)
        wait_for(lambda: "the server app of a run was killed by SIGKILL" in said(loopback), loopback)
        loopback.stop("run")
        run = submit(loopback, tmp_path / "killed", "run.resume=true")

        # The SuperLink is killed: it starts again, and the run goes on by itself.
        wait_for(lambda: released(tmp_path / "killed") == 2, loopback, run)
        (superlink,) = named(loopback.home("superlink"), "superlink_process")
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
        wait_for_executor(loopback)

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
        wait_for(lambda: len(named(loopback.home("superlink"), "run_executor_process")) == 1, loopback)
        # The SuperLink keeps a run's lines every few seconds, those of its last moment after its end.
        shown = partial(loopback.call, "flwr", "log", number, "loopback", "--show")
        wait_for(lambda: re.search(r"round \d+/400", shown()), loopback, limit=60)
        assert not is_finished(tmp_path / "stopped")
        loopback.kill("run")

        # The executor is killed with a run in progress: no child is left, another one takes over, the run goes on.
        run = submit(loopback, tmp_path / "on")
        wait_for(lambda: released(tmp_path / "on") == 1, loopback, run)
        executor, child = named(loopback.home("superlink"), "run_executor_process")
        os.kill(executor, signal.SIGKILL)
        wait_for_executor(loopback, 2)
        assert {executor, child}.isdisjoint(named(loopback.home("superlink"), "run_executor_process"))
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
        wait_for_executor(loopback, 3)
        killed = loopback._processes["superlink"]
        killed.kill()
        killed.wait()
        wait_for(lambda: processes_at(loopback.home("superlink")) == [], loopback)

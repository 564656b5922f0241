"""`fedmf node` with real processes: the same model as the cold way, kills, other code, and no process left."""

import os
import shutil
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

from deployments import DATA, EXACT, finished, named, ready, released, start_two, wait_for
from experiments.deployment.loopback import APP, BIN, Loopback
from experiments.deployment.process_list import processes_at
from experiments.run_files.reader import is_finished
from runs import metrics

pytestmark = pytest.mark.deployment


def trained(loopback, directory):
    """Train a run to its end and return its model as one vector."""
    return finished(
        loopback, directory, loopback.submit(f"{EXACT} population.epochs=2 run.directory={directory}")
    )


def test_a_warm_node_trains_as_a_cold_one_and_survives_what_is_killed(tmp_path):
    with Loopback() as loopback:
        loopback.start_superlink()
        for node in "ab":
            loopback.register(node)
        start_two(loopback, loopback.start_node)
        ready(loopback)
        warm = trained(loopback, tmp_path / "warm")
        rows = metrics(tmp_path / "warm")
        assert [row["replies"] for row in rows] == [6] * 4

        # No secret and no token stands in a list of processes, also while it works.
        for pid in processes_at(loopback.home("a")):
            line = Path(f"/proc/{pid}/cmdline").read_bytes()
            assert b"token" not in line
            assert b"secret" not in line

        # The executor is killed: another one takes over, and the next run is the same.
        (executor,) = named(loopback.home("a"), "executor_process")
        os.kill(executor, signal.SIGKILL)
        wait_for(lambda: loopback.log("a").read_text().count("ready for messages") == 2, loopback)
        assert "the executor ended (killed by SIGKILL)" in loopback.log("a").read_text()
        assert executor not in named(loopback.home("a"), "executor_process")
        assert np.array_equal(trained(loopback, tmp_path / "again"), warm)

        # The command itself is killed: SuperNode and executor end, and none is left.
        killed = loopback._processes["a"]
        killed.kill()
        killed.wait()
        wait_for(lambda: processes_at(loopback.home("a")) == [], loopback)

        # SIGTERM ends the other one in order, with all that it started.
        asked = loopback._processes["b"]
        asked.terminate()
        assert asked.wait(30) == 130
        assert processes_at(loopback.home("b")) == []

        # The cold way comes to the same bits.
        start_two(loopback, loopback.start_supernode)
        assert np.array_equal(trained(loopback, tmp_path / "cold"), warm)


def other_app(folder):
    """Make a copy of the code with a comment more in one file."""
    other = folder / "app"
    shutil.copytree(
        APP, other, ignore=shutil.ignore_patterns(".*", "tests", "docs", "__pycache__", "*.egg-info")
    )
    file = other / "client/app.py"
    file.write_text(file.read_text() + "# a comment\n")
    return other


def test_a_run_with_other_code_gets_no_work_done(tmp_path):
    """The nodes answer that they have other code, and say which file differs; the run's log says which nodes."""
    other = other_app(tmp_path)
    directory = tmp_path / "r"
    with Loopback() as loopback:
        loopback.start_superlink(warm=False)  # a warm one refuses such a run itself
        for node in "ab":
            loopback.register(node)
        start_two(loopback, loopback.start_node)
        ready(loopback)
        overrides = (
            f'overrides="{EXACT} population.epochs=2 run.directory={directory} engine.node_timeout=10"'
        )
        run = loopback.start(
            "run", [BIN / "flwr", "run", other, "loopback", "--stream", "-c", overrides], home="operator"
        )
        wait_for(lambda: run.poll() is not None, loopback)
        assert not is_finished(directory)
        assert released(directory) == 0
        for node in "ab":
            said = loopback.log(node).read_text()
            assert "the run's code is not the code installed here: client/app.py differs" in said
        said = loopback.log("run").read_text()
        assert said.count("has other code than the run and takes no part") == 2
        assert "Install the run's code on the nodes that have other code" in said
        # The nodes are none the worse for it.
        trained(loopback, tmp_path / "own")


def test_a_node_that_gets_other_code_in_mid_epoch_is_silent_and_named(tmp_path):
    """Its clients are not counted as heard; with the run's code again they are."""
    data = DATA.replace("clients=12", "clients=400")
    directory = tmp_path / "r"
    overrides = EXACT.replace(DATA, data).replace("min_available=12", "min_available=400")
    other = other_app(tmp_path)
    elsewhere = ["env", "-C", str(other), f"PYTHONPATH={other}", sys.executable, "-m", "experiments.node"]
    with Loopback() as loopback:
        loopback.start_superlink()
        for node, first in (("a", 0), ("b", 200)):
            loopback.register(node)
            loopback.start_node(node, f"clients=200 first={first} {data}")
        ready(loopback)
        run = loopback.submit(
            f"{overrides} population.epochs=2 run.directory={directory} population.cohort_size=4"
        )

        def replies():
            return [row["replies"] for row in metrics(directory)] if released(directory) else []

        wait_for(lambda: replies() and replies()[-1] == 4, loopback, run)
        loopback.stop("b")
        loopback.start_node("b", f"clients=200 first=200 {data}", command=elsewhere)
        silent = "has other code than the run; its clients are silent in this round"
        wait_for(lambda: silent in loopback.log("run").read_text(), loopback, run)
        wait_for(lambda: min(replies()) < 4, loopback, run)
        loopback.stop("b")
        loopback.start_node("b", f"clients=200 first=200 {data}")
        heard = len(replies())
        wait_for(lambda: replies()[heard:][-4:] == [4] * 4, loopback, run)
        assert metrics(directory)[-1]["epoch"] == 1

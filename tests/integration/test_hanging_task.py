"""A real node one of whose tasks hangs: it is ended when nobody waits for its answer, and the node takes part again."""

import contextlib
import os
import signal
from pathlib import Path

import pytest

from deployments import named, wait_for
from experiments.deployment.loopback import Loopback

pytestmark = [pytest.mark.deployment, pytest.mark.slow]

DATA = "dataset=synthetic dataset.clients=16 dataset.features=5 dataset.classes=3"
RUN = (
    "population.min_available=8 population.cohort_size=4 population.epochs=400 run.evaluations=1 privacy.epsilon=null "
    "privacy.noise_multiplier=1 engine.round_timeout=8 engine.query_timeout=10 engine.node_timeout=200"
)


def executor_of_a(loopback):
    """Return the process that forks for the messages of node a: its forks, started later, have its command line."""
    return named(loopback.home("a"), "executor_process")[0]


def children(pid):
    with contextlib.suppress(OSError):
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def test_a_task_that_is_frozen_costs_its_node_a_minute_and_not_the_run(tmp_path):
    with Loopback() as loopback:
        loopback.start_superlink()
        for first, node in ((0, "a"), (8, "b")):
            loopback.register(node)
            loopback.start_node(node, f"clients=8 first={first} {DATA}")
        loopback.submit(f"run.directory={tmp_path / 'run'} {DATA} {RUN}")
        log = loopback.log("a")
        wait_for(lambda: log.is_file() and log.read_text().count("Sent successfully") >= 3, loopback)
        executor = executor_of_a(loopback)
        (child, *_) = wait_for(lambda: children(executor), loopback, look=0.005)
        os.kill(child, signal.SIGSTOP)
        wait_for(lambda: "a task's process is ended, after" in log.read_text(), loopback)
        wait_for(lambda: not Path(f"/proc/{child}").exists(), loopback)
        before = log.read_text().count("Sent successfully")
        wait_for(lambda: log.read_text().count("Sent successfully") >= before + 3, loopback)
        assert executor_of_a(loopback) == executor
        assert "killed by SIGKILL" not in log.read_text()

"""Deployments on the loopback interface whose nodes and servers are killed, cut off and lie: stock Flower, TLS, real processes."""

import json
import os
import signal
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from experiments.deployment.apps import run_settings
from experiments.deployment.loopback import Loopback, free_port
from experiments.run_files.reader import is_finished
from nodes import DATA, program, released, start_way, wait_for
from runs import metrics
from server.cohort import node_of
from server.known_nodes import KnownNode
from witness import Witness, examine

pytestmark = [pytest.mark.slow, pytest.mark.deployment]

LIMIT = 200  # seconds for what is waited for
RUN = (
    f"{DATA} population.min_available=12 population.cohort_size=3 population.rounds_per_epoch=4 population.epochs=2 "
    "privacy.epsilon=null privacy.noise_multiplier=1 compression.keep_probability=0.5 run.evaluations=1 "
    "run.resume=true engine.round_timeout=10 engine.query_timeout=10"
)


class Deployment(Loopback):
    """A SuperLink, nodes a, b and c with four clients each, of which a notes its models, and one run."""

    def __init__(self, directory):
        super().__init__()
        self.directory, self.witness = directory, Witness(directory)
        self.overrides = f"{RUN} run.directory={directory} population.nodes={self.nodes}"
        self.holds = {node: f"clients=4 first={4 * place} {DATA}" for place, node in enumerate("abc")}

    def __enter__(self):
        self.start_superlink()
        for node in self.holds:
            self.register(node, most_clients=4)
        return self

    def start_nodes(self, nodes="abc", *, b="honest", c=None):
        """Start nodes, or start them again: `b` says what the second one is, `c` is the third one's own way to the SuperLink, if any."""
        for node in nodes:
            notes = self.folder / f"{node}.notes"
            kind, port = (b, None) if node == "b" else ("honest", c if node == "c" else None)
            command = program("unreliable", "node", notes, kind)
            self.start_supernode(node, self.holds[node], command=command, port=port)

    def start_again(self, node):
        """Start a node that was killed, again and again until the SuperLink has noticed that it was lost, as its unit does."""
        taken = self.log(node).read_text().count("SuperNode ID")

        def is_taken():
            if not self._is_running(node):
                with suppress(KeyError):  # none is left of it
                    self.kill(node)
                self.start_nodes(node)
            return self.log(node).read_text().count("SuperNode ID") > taken

        self.wait(is_taken)

    def _is_running(self, name):
        return name in self._processes and self._processes[name].poll() is None

    def wait(self, happened):
        """Watch the run until something has happened."""

        def looked():
            self.witness.look()
            return happened()

        wait_for(looked, self, self._processes["run"], look=0.05, limit=LIMIT)
        self.witness.look()

    def wait_for_rounds(self, more):
        """Watch the run until so many more rounds are released."""
        last = released(self.directory) + more
        self.wait(lambda: released(self.directory) >= last)

    def kill_server_app(self):
        """Kill the fork of the SuperLink's warm start that plays the run."""
        warm = self._processes["superlink"].pid
        children = Path(f"/proc/{warm}/task/{warm}/children").read_text().split()
        [app] = [one for one in children if "deployment.warm" in Path(f"/proc/{one}/cmdline").read_text()]
        os.kill(int(app), signal.SIGKILL)

    def lose_superlink(self):
        """Kill the SuperLink and remove its database; its operator registers the nodes again, whose own operators stop them."""
        for name in ("superlink", *self.holds):
            self.kill(name)
        for file in self.folder.glob("superlink.db*"):
            file.unlink()
        self.start_superlink()
        for node in self.holds:
            self.call("flwr", "supernode", "register", self.folder / f"{node}.pub", "loopback")

    @contextmanager
    def stopped(self, name):
        """Freeze a process and all that it started for the block."""
        os.killpg(self._processes[name].pid, signal.SIGSTOP)
        yield
        os.killpg(self._processes[name].pid, signal.SIGCONT)

    def submit_again(self):
        """Resume the run, as an operator would."""
        self.stop("run")
        self.submit(self.overrides)

    def finish(self):
        """Wait for the end of the run, compare what it left with every promise, and return the recount."""
        self.wait(lambda: is_finished(self.directory))
        holds = {self.key(node): overrides for node, overrides in self.holds.items()}
        notes = [json.loads(line) for line in (self.folder / "a.notes").read_text().splitlines()]
        found = examine(self.witness, run_settings(self.overrides), holds, notes)
        assert found.unexplained == []
        return found

    def key(self, node):
        """Return what a roster calls a node."""
        return KnownNode(node, (self.folder / f"{node}.pub").read_text(), 4).key


def test_a_node_and_the_server_app_are_killed_and_another_node_freezes(tmp_path):
    with Deployment(tmp_path / "run") as deployment:
        deployment.start_nodes()
        deployment.submit(deployment.overrides)
        deployment.wait_for_rounds(1)
        deployment.kill("b")
        with deployment.stopped("c"):
            deployment.start_again("b")
        deployment.kill_server_app()
        deployment.submit_again()
        found = deployment.finish()
        assert set().union(*found.zeros.values()) <= {deployment.key("b"), deployment.key("c")}


def test_a_node_lies_another_is_cut_off_and_the_superlink_is_killed_and_loses_its_database(tmp_path):
    with Deployment(tmp_path / "run") as deployment:
        way, liar = free_port(), deployment.key("b")
        start_way(deployment, way)
        deployment.start_nodes(b="lies", c=way)
        deployment.submit(deployment.overrides)
        deployment.wait_for_rounds(1)
        with deployment.stopped("way"):
            deployment.wait(lambda: any(row["replies"] < 3 for row in metrics(deployment.directory)))
        deployment.wait_for_rounds(1)
        deployment.kill("way")
        start_way(deployment, way)
        deployment.wait_for_rounds(1)
        deployment.lose_superlink()
        deployment.start_nodes(b="lies", c=way)
        deployment.submit_again()
        found = deployment.finish()
        heard = [one.round for one in found.releases if liar in map(node_of, one.answered)]
        assert [number for number, nodes in found.zeros.items() if liar in nodes] == heard != []

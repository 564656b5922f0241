"""Nodes of a deployment: real ones, those of a list, and what several of them make."""

import contextlib
import json
import sys
import threading
import time
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from flwr.app import ConfigRecord, Context, Error, Message, MessageType, RecordDict
from flwr.supercore.primitives.asymmetric import public_key_to_bytes

from experiments.deployment import apps
from experiments.deployment.node import Node, NodeSettings
from experiments.engines.grid import LocalGrid, call_app
from experiments.run_files.reader import is_finished
from experiments.settings.compose import compose
from experiments.settings.values import text_of
from fedmf.updates import wire
from plans import KEY, PLAN, fields_of, honest, random_vector, replying
from poison import values_in
from runs import metrics, model
from server.cohort import ROSTER, Roster
from server.exchange import THREAD
from server.known_nodes import EVERY_NODE, Attendance, KnownNode, KnownNodes, node_key
from server.membership import DeployedPopulation
from server.optimizer import Sgd
from server.state import first_state
from server.strategy import FedMF

DATA = "dataset=synthetic dataset.clients=12 dataset.features=5 dataset.classes=3"
TWO = {"a": f"clients=5 {DATA}", "b": f"clients=7 first=5 {DATA}"}


def node_with(given, clients, public):
    """Return a node of so many clients of the dataset that `given`, keyword arguments of `client.data.load`, describe."""
    words = [f"public={text_of(public.setting())}"]
    words += [f"dataset.{key}={json.dumps(value)}" for key, value in given.items() if key != "name"]
    return Node(
        compose("node_check", [f"clients={clients}", f"dataset={given['name']}", *words], NodeSettings)
    )


def context(run="", **node):
    """Return the context of a run with these overrides, at a node of this configuration."""
    return Context(1, 1, node, RecordDict(), {"overrides": run})


def playing(run, overrides, look=lambda message: None):
    """Return what answers as a node with `overrides` does under Flower: an exception is an error reply. `look` sees messages."""

    def answer(message):
        look(message)
        return call_app(apps.client_app, message, context(run, overrides=overrides))

    return answer


def network(run, nodes=TWO, kind=None, look=lambda message: None):
    """Return the grid of nodes {name: overrides} of a run."""
    answers = {name: playing(run, overrides, look) for name, overrides in nodes.items()}
    return (kind or Nodes)(answers, answers)


def write_list(path, **nodes):
    """Write the list of nodes {name: (public key, most clients)} as a server's operator does, and return its path."""
    rows = [
        {"name": name.replace("_", "-"), "public_key": key, "most_clients": most}
        for name, (key, most) in nodes.items()
    ]
    path.write_text(yaml.safe_dump({"nodes": rows}))
    path.chmod(0o600)
    return path


def key_of(name):
    """Return the short key of the node called `name`."""
    return node_key(name.encode())


def holding(clients):
    """Return a node's answer to a query."""
    return lambda message: Message(
        RecordDict({wire.HELD: ConfigRecord({wire.CLIENTS: clients})}), reply_to=message
    )


def unready(clients):
    """Return the answer to a query of a node whose data could not be loaded when it started."""
    answer = ConfigRecord({wire.CLIENTS: clients, wire.READY: False})
    return lambda message: Message(RecordDict({wire.HELD: answer}), reply_to=message)


class Clock:
    """Takes the place of `time` and of `wait` in a module: moves only when that waits, and once every pull is over or in `last`.

    So what a test sees does not depend on the machine. `now` is in seconds; pulls call `last` for what they take.
    """

    def __init__(self):
        self.now, self._ends, self._changed = 0.0, {}, threading.Condition()
        self._before = threading.enumerate()

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self._pass(self.now + seconds, lambda: False)

    def wait(self, outcomes, seconds):
        """Wait as `concurrent.futures.wait` does."""
        self._pass(self.now + seconds, outcomes[0].done)

    def last(self, seconds=float("inf")):
        """Return, in the thread of a pull, once so much time has passed; without a time once `release` is called."""
        me = threading.current_thread()
        with self._changed:
            self._ends[me] = self.now + seconds
            self._changed.wait_for(lambda: me not in self._ends)

    def release(self):
        """Let every pull end now."""
        self._let_go(float("inf"))

    def pulls(self):
        """Return the threads of pulls that have begun with this clock, once each is over or in `last`."""
        mine = [one for one in threading.enumerate() if one.name == THREAD and one not in self._before]
        for thread in mine:
            while thread.is_alive() and thread not in self._ends:
                thread.join(0.001)
        return [thread for thread in mine if thread.is_alive()]

    def _let_go(self, moment):
        with self._changed:
            self._ends = {thread: end for thread, end in self._ends.items() if end > moment}
            self._changed.notify_all()
        self.pulls()

    def _pass(self, moment, is_over):
        self.pulls()
        while not is_over() and self.now < moment:
            self.now = min([moment, *self._ends.values()])
            self._let_go(self.now)


class Nodes(LocalGrid):
    """Nodes by name, each with `query(message)` and `train(message)`, which return a reply or None for silence.

    `away` holds the names of nodes that are not connected; a message to one that is `lost` brings Flower's error
    reply for it.
    """

    def __init__(self, query, train=None, first_id=100):
        super().__init__(self)
        self.query, self.train = dict(query), dict(train or {})
        self.ids = dict(zip(self.query, count(first_id), strict=False))
        self.away, self.lost, self.asked = set(), set(), []

    def join(self, name, query, train=None):
        self.ids[name] = max(self.ids.values()) + 1
        self.query[name], self.train[name] = query, train

    def get_nodes(self):
        return [
            SimpleNamespace(node_id=number, public_key=name.encode())
            for name, number in self.ids.items()
            if name not in self.away
        ]

    def get_node_ids(self):
        return [node.node_id for node in self.get_nodes()]

    def submit(self, messages):
        self.waiting = {message.metadata.message_id: message for message in messages}
        self.asked += messages

    def collect(self, message_ids):
        message = self.waiting.pop(message_ids[0], None)
        if message is None:
            return []
        name = next(name for name, number in self.ids.items() if number == message.metadata.dst_node_id)
        if name in self.lost:
            return [Message(Error(5, "node unavailable"), reply_to=message)]
        kind = self.query if message.metadata.message_type == MessageType.QUERY else self.train
        reply = kind[name](message)
        return [] if reply is None else [reply]


TESTS = Path(__file__).resolve().parents[1]
LIMIT = 600  # seconds: nothing takes so long, it only ends a test that hangs


def wait_for(happened, loopback, process=None, *, look=0.1, limit=LIMIT):
    """Return what `happened()` returns once it is true; fail with the logs when that takes too long or the run ends before."""
    deadline = time.monotonic() + limit
    while not (found := happened()):
        has_ended = process is not None and process.poll() is not None and not happened()
        if has_ended or time.monotonic() > deadline:
            logs = (f"== {file.name}\n{loopback.tail(file.stem)}" for file in loopback.folder.glob("*.log"))
            pytest.fail(f"{'the run ended' if has_ended else 'too slow'}\n" + "\n".join(logs))
        time.sleep(look)
    return found


def program(module, *words):
    """Return the command of a module of tests that is a program, such as `unreliable`."""
    return ["env", f"PYTHONPATH={TESTS}:{TESTS}/helpers", sys.executable, "-m", module, *words]


def start_way(loopback, port):
    """Start a forwarder from `port` to the SuperLink, or start it again; its log has how many bytes it passes on."""
    loopback.start("way", program("unreliable", "way", port, loopback.port))


def released(directory):
    """Return how many rounds a run has shown."""
    return len(metrics(directory)) if (directory / "metrics.jsonl").exists() else 0


def finished(loopback, directory, process):
    """Return the model of a run as one vector once it is finished and its command has ended."""
    wait_for(lambda: is_finished(directory), loopback, process)
    wait_for(lambda: process.poll() is not None, loopback)
    return model(directory)


def processes_that_know(text):
    """Return the command lines of running processes that contain `text`."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            found.append((entry / "cmdline").read_text())
    return [line for line in found if text in line]


PUBLIC = {name: ec.generate_private_key(ec.SECP384R1()).public_key() for name in "abc"}
LINES = {
    name: key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode() for name, key in PUBLIC.items()
}
KEYS = {name: node_key(public_key_to_bytes(key)) for name, key in PUBLIC.items()}


class Signed(Nodes):
    """Nodes whose public keys are real ones, as Flower gives them; the node called "" has none."""

    def get_nodes(self):
        names = {number: name for name, number in self.ids.items()}
        return [
            SimpleNamespace(
                node_id=node.node_id,
                public_key=public_key_to_bytes(PUBLIC[name]) if (name := names[node.node_id]) else b"",
            )
            for node in super().get_nodes()
        ]


def answer(message):
    """Return the reply of an honest node: each client's values on their own."""
    updates = [
        honest(fields, message, random_vector(50, 0.5, int(fields[wire.CLIENT].rpartition(":")[2])))
        for fields in fields_of(message)
    ]
    return replying(message, *(values for one in updates for values in values_in(one)))


def answer_other_code(message):
    """Return the whole reply of a node whose installed code is not the run's, to a query as to tasks."""
    return Message(RecordDict({wire.HELD: ConfigRecord({wire.OTHER_CODE: True})}), reply_to=message)


def listing(**most):
    return KnownNodes(
        tuple(KnownNode(f"hospital-{name}", LINES[name], count) for name, count in most.items())
    )


def deployed(
    folder, held, listed=EVERY_NODE, least=12, state=None, *, train=answer, plan=PLAN, accept_copy=False, options=(), **limits
):  # fmt: skip
    """A strategy over nodes that hold `held` (a count, or their answers to queries), of which those `listed` may take part.

    `presence` of the strategy's population is what it was told last of the nodes that there are.
    """
    query = {name: clients if callable(clients) else holding(clients) for name, clients in held.items()}
    grid = Signed(query, dict.fromkeys(held, train))
    about = Attendance(least, **{"timeout": 0.05, "query_timeout": 60.0, "nodes": listed, **limits})
    state = state or first_state(plan, np.zeros(plan.dimension, "f4"), KEY)
    releases, seen = [], []
    population = DeployedPopulation(
        about, folder, on_presence=lambda **presence: seen.append(presence), accept_copy=accept_copy
    )
    population.presence = lambda: seen[-1]
    strategy = FedMF(
        plan, Sgd(1.0), population, state,
        on_release=[lambda state, release: releases.append(release)], **{"tasks_per_message": 4, **dict(options)},
    )  # fmt: skip
    return strategy, grid, releases


def start(strategy, grid, rounds=1):
    strategy.start(grid, num_rounds=rounds, timeout=600)


def roster_in(folder):
    return Roster.read(folder / ROSTER)


def tasks_in(grid):
    return [message for message in grid.asked if message.metadata.message_type == "train"]


def nodes_in(folder):
    """Return the names of the nodes in the roster of the epoch under way."""
    return {name for name, key in KEYS.items() if key in roster_in(folder).nodes}


def heard(releases):
    """Return the clients that were heard, round by round."""
    return [client for release in releases for client in release.answered]

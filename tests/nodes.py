"""A deployment inside the test process: a grid of several nodes with public keys, without any transport."""

import json
from functools import cache
from itertools import count
from types import SimpleNamespace

import yaml
from flwr.app import ConfigRecord, Context, Error, Message, MessageType, RecordDict

from experiments.deployment import apps
from experiments.deployment.node import Node, NodeSettings
from experiments.engines.grid import LocalGrid, call_app
from experiments.settings.compose import compose
from experiments.settings.values import text_of
from fedmf.updates import wire
from server import membership
from server.known_nodes import node_key

DATA = "dataset=synthetic dataset.clients=12 dataset.features=5 dataset.classes=3"
TWO = {"a": f"clients=5 {DATA}", "b": f"clients=7 first=5 {DATA}"}


def node_with(given, clients, public):
    """Return a node of so many clients of the data set that `given`, keyword arguments of `client.data.load`, describe."""
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


def play_here(monkeypatch):
    """Let server and nodes play in this process: no wait for nodes, logs as they are, settings composed once and not for each message."""
    monkeypatch.setattr(membership, "PAUSE", 0.01)
    monkeypatch.setattr(apps, "prepare", lambda: None)
    for name in ("run_settings", "node_settings"):
        monkeypatch.setattr(apps, name, cache(getattr(apps, name)))


def holding(clients):
    """Return a node's answer to a query."""
    return lambda message: Message(
        RecordDict({wire.HELD: ConfigRecord({wire.CLIENTS: clients})}), reply_to=message
    )


def unready(clients):
    """Return the answer to a query of a node whose data could not be loaded when it started."""
    answer = ConfigRecord({wire.CLIENTS: clients, wire.READY: False})
    return lambda message: Message(RecordDict({wire.HELD: answer}), reply_to=message)


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

"""A deployment inside the test process whose nodes have real keys, and may stand in a list."""

from types import SimpleNamespace

import numpy as np
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.supercore.primitives.asymmetric import public_key_to_bytes

from fedmf.updates import wire
from nodes import Nodes, holding
from plans import KEY, random_vector
from server.cohort import Roster
from server.known_nodes import EVERY_NODE, Attendance, KnownNode, KnownNodes, node_key
from server.membership import ROSTER, DeployedPopulation
from server.optimizer import Sgd
from server.state import first_state
from server.strategy import FedMF
from tasks import values_in
from workers import PLAN, fields_of, honest, replying

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
    about = Attendance(least, **{"timeout": 0.05, "query_timeout": 1.0, "nodes": listed, **limits})
    state = state or first_state(plan, np.zeros(plan.dimension, "f4"), KEY)
    releases, seen = [], []
    population = DeployedPopulation(about, folder, on_presence=seen.append, accept_copy=accept_copy)
    population.presence = lambda: seen[-1]
    strategy = FedMF(
        plan, Sgd(1.0), population, state,
        on_release=[lambda state, release: releases.append(release)], **{"tasks_per_message": 4, **dict(options)},
    )  # fmt: skip
    return strategy, grid, releases


def start(strategy, grid, rounds=1):
    strategy.start(grid, num_rounds=rounds, timeout=0.1)


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

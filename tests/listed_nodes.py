"""A deployment inside the test process whose nodes have real keys and stand in a list."""

from types import SimpleNamespace

import numpy as np
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from flwr.supercore.primitives.asymmetric import public_key_to_bytes

from fedmf.updates import wire
from nodes import Nodes, holding
from plans import KEY, random_vector
from server.attendance import DeployedPopulation
from server.gathering import Attendance
from server.known_nodes import KnownNode, KnownNodes, node_key
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
    """Nodes whose public keys are real ones, as Flower gives them."""

    def get_nodes(self):
        return [
            SimpleNamespace(
                node_id=node.node_id, public_key=public_key_to_bytes(PUBLIC[node.public_key.decode()])
            )
            for node in super().get_nodes()
        ]


def answer(message):
    updates = [
        honest(fields, message, random_vector(50, 0.5, int(fields[wire.CLIENT].rpartition(":")[2])))
        for fields in fields_of(message)
    ]
    return replying(message, *(values for one in updates for values in values_in(one)))


def listing(**most):
    return KnownNodes(
        tuple(KnownNode(f"hospital-{name}", LINES[name], count) for name, count in most.items())
    )


def deployed(folder, held, listed, least=12, state=None, **limits):
    """A strategy over nodes that hold `held`, of which those `listed` may take part."""
    grid = Signed({name: holding(clients) for name, clients in held.items()}, dict.fromkeys(held, answer))
    about = Attendance(least, **{"timeout": 0.05, "query_timeout": 1.0, "nodes": listed, **limits})
    state = state or first_state(PLAN, np.zeros(PLAN.dimension, "f4"), KEY)
    releases = []
    strategy = FedMF(
        PLAN, Sgd(1.0), DeployedPopulation(about, folder), state,
        on_release=[lambda state, release: releases.append(release)], tasks_per_message=4,
    )  # fmt: skip
    return strategy, grid, releases

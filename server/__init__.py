"""The Flower server: a strategy that releases noisy models, and the state and checkpoints around it.

A name is imported when it is first used.
"""

from typing import TYPE_CHECKING

from fedmf.lazy import lazily

if TYPE_CHECKING:
    from server.adaptive import Adagrad, Adam, Yogi
    from server.app import make_server_app
    from server.attendance import DeployedPopulation
    from server.checkpoint import Checkpoint
    from server.cohort import Population, ReplyPolicy, SimulatedPopulation, UnreadyNodes
    from server.gathering import Attendance
    from server.known_nodes import KnownNode, KnownNodes
    from server.optimizer import Optimizer, Sgd
    from server.state import Release, ServerState, first_state
    from server.strategy import FedMF
else:
    __getattr__ = lazily(
        __name__,
        {
            "server.adaptive": ["Adagrad", "Adam", "Yogi"],
            "server.app": ["make_server_app"],
            "server.attendance": ["DeployedPopulation"],
            "server.checkpoint": ["Checkpoint"],
            "server.cohort": ["Population", "ReplyPolicy", "SimulatedPopulation", "UnreadyNodes"],
            "server.gathering": ["Attendance"],
            "server.known_nodes": ["KnownNode", "KnownNodes"],
            "server.optimizer": ["Optimizer", "Sgd"],
            "server.state": ["Release", "ServerState", "first_state"],
            "server.strategy": ["FedMF"],
        },
    )

__all__ = [
    "Adagrad",
    "Adam",
    "Attendance",
    "Checkpoint",
    "DeployedPopulation",
    "FedMF",
    "KnownNode",
    "KnownNodes",
    "Optimizer",
    "Population",
    "Release",
    "ReplyPolicy",
    "ServerState",
    "Sgd",
    "SimulatedPopulation",
    "UnreadyNodes",
    "Yogi",
    "first_state",
    "make_server_app",
]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""The Flower server: a strategy that releases noisy models, and the state and checkpoints around it.

A name is imported when it is first used.
"""

from typing import TYPE_CHECKING

from fedmf.lazy import lazily

if TYPE_CHECKING:  # the public names
    from server.checkpoint import Checkpoint as Checkpoint
    from server.cohort import (
        Population as Population,
        ReplyPolicy as ReplyPolicy,
        SimulatedPopulation as SimulatedPopulation,
        UnreadyNodes as UnreadyNodes,
    )
    from server.known_nodes import (
        Attendance as Attendance,
        KnownNode as KnownNode,
        KnownNodes as KnownNodes,
    )
    from server.membership import DeployedPopulation as DeployedPopulation
    from server.optimizer import (
        Adagrad as Adagrad,
        Adam as Adam,
        Optimizer as Optimizer,
        Sgd as Sgd,
        Yogi as Yogi,
    )
    from server.state import Release as Release, ServerState as ServerState, first_state as first_state
    from server.strategy import FedMF as FedMF, make_server_app as make_server_app
else:
    __getattr__, __dir__, __all__ = lazily(__name__, __file__)

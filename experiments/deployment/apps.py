"""The two apps that `flwr run` loads (pyproject.toml names them). docs/deployment.md says how to use them.

Both are configured by the same Hydra files as a simulation: `flwr run . NAME -c 'overrides="..."'`. A node's data
are named on the node alone, by its --node-config. Heavy imports wait until they are needed, because a node is
a new process for every message.
"""

import logging
import sys

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

import experiments  # noqa: F401  the environment, before any numeric library
from experiments.deployment.node import OVERRIDES, Node, asked_digest, node_settings
from fedmf.updates import wire

server_app = ServerApp()
client_app = ClientApp()


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Train with the nodes of a SuperLink; everything a run needs is in its overrides."""
    from experiments.cli.command import without_traceback
    from experiments.deployment.node_app import run_settings
    from experiments.deployment.server import deploy

    show_logs()
    logging.getLogger("flwr").addFilter(without_traceback)  # it logs what ends the app
    deploy(run_settings(str(context.run_config.get(OVERRIDES, ""))), grid)


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """Train each client that the message names and send its own masked values."""
    from experiments.deployment.node_app import reply_to

    show_logs()
    return reply_to(message, context)


@client_app.query()
def query(message: Message, context: Context) -> Message:
    """Say how many clients this node holds, as its operator declared it, and a digest of who they are."""
    node = Node.of(node_settings(context.node_config.get(OVERRIDES)))
    answer = ConfigRecord({wire.CLIENTS: node.clients, **asked_digest(node, message)})
    return Message(RecordDict({wire.HELD: answer}), reply_to=message)


def show_logs() -> None:
    """Let what fedmf logs reach the log of this Flower process."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    for package in ("fedmf", "client", "server", "experiments"):
        logger = logging.getLogger(package)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.INFO)

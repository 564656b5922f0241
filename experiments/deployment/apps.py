"""The two apps that `flwr run` loads (pyproject.toml names them). docs/deployment.md says how to use them.

Both are configured by the same Hydra files as a simulation: `flwr run . NAME -c 'overrides="..."'`. A node's data
are named on the node alone, by its --node-config. Heavy imports wait until they are needed, because a plain SuperNode
starts a new process for every message. `fedmf node` plays both hooks in forks of one that has imported all
(`deployment.resident`).
"""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

import experiments  # noqa: F401  the environment, before any numeric library
from experiments.deployment.node import OVERRIDES, Node, answer_query, node_settings
from experiments.settings import log as json_log
from experiments.settings.output import LogForm

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
    with owner_only():
        settings = run_settings(str(context.run_config.get(OVERRIDES, "")))
        if settings.run.log is LogForm.json or json_log.is_on():
            json_log.install()  # again: what Flower sends to `flwr log` is to be JSON too
        json_log.name_run(context.run_id)
        deploy(settings, grid)


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """Train each client that the message names and send its own masked values."""
    from experiments.deployment.node_app import reply_to

    show_logs()
    with owner_only():
        return reply_to(message, context)


@client_app.query()
def query(message: Message, context: Context) -> Message:
    """Say how many clients this node holds, as its operator declared it, and a digest of who they are."""
    return answer_query(Node.of(node_settings(context.node_config.get(OVERRIDES))), message)


@contextmanager
def owner_only() -> Iterator[None]:
    """Let what the block writes be for this account alone, as the units have it, however Flower was started."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def show_logs() -> None:
    """Let what fedmf logs reach the log of this Flower process."""
    handler = json_log.stderr_handler("%(levelname)s %(name)s: %(message)s")
    for package in ("fedmf", "client", "server", "experiments"):
        logger = logging.getLogger(package)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.INFO)

"""The ClientApp of a deployed node: the run's settings for what is sent, the node's own for whose data.

Flower starts a process for every message, so that nothing is built that this message does not need.
"""

from dataclasses import replace
from functools import partial

from flwr.app import ConfigRecord, Context, Message

from client.app import make_client_app
from client.training import Trainer
from experiments.deployment.node import OVERRIDES, Node, asked_digest, node_settings
from experiments.settings.client import build_client_plan, build_model
from experiments.settings.compose import compose, split
from experiments.settings.schema import Settings
from fedmf.errors import SettingError
from fedmf.updates import wire


def reply_to(message: Message, context: Context) -> Message:
    """Return the node's reply to the tasks in `message`: each client's values under its own mask, and who they are."""
    run = run_settings(str(context.run_config.get(OVERRIDES, "")))
    node = Node.of(node_settings(context.node_config.get(OVERRIDES)))
    dimension = len(message.content.array_records[wire.MODEL][wire.VECTOR].data) // 4
    app = make_client_app(
        node.examples_of,
        partial(_trainer, run, node),
        build_client_plan(run, dimension),
        elsewhere=_elsewhere,
    )
    reply = app(message, context)
    if digest := asked_digest(node, message):
        reply.content[wire.HELD] = ConfigRecord({**digest})
    return reply


def run_settings(overrides: str) -> Settings:
    """Return the settings of a deployed run: conf/config.yaml with `overrides`, parted as a shell does."""
    return compose("config", ["engine=deployment", *split(overrides)], Settings)


def _elsewhere(message: Message, context: Context) -> Message:
    """Return the reply to `message` from another process, for the clients of a message that outlive their device."""
    from experiments.players.elsewhere import in_another_process  # rarely needed: a node must start fast

    return in_another_process(reply_to, message, context)


def _trainer(run: Settings, node: Node) -> Trainer:
    """Return a trainer of the run's model, fitted to the node's data.

    The weights that a run begins with are read from the node's own copy alone: a server names no file of a node.
    """
    model = run.model
    if model.start is not None:
        if node.start is None:
            raise SettingError(
                "the run begins from a file (model.start), and this node was started without a copy of it; add "
                "model.start=FILE to its --node-config."
            )
        model = replace(model, start=node.start)
    return Trainer(build_model(model, node.dataset, run.seed), run.client)

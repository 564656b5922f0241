"""The ClientApp of a deployed node: the run's settings for what is sent, the node's own for whose data.

Flower starts a process for every message, so that nothing is built that this message does not need.
"""

import shlex
from functools import partial

from flwr.app import Context, Message
from omegaconf import DictConfig

from client.app import make_client_app
from client.training import Trainer
from experiments.cli.command import compose_config
from experiments.deployment.node import OVERRIDES, Node, node_config
from experiments.settings import schema as schema
from experiments.settings.client import build_model, client_plan_of, training_of
from fedmf.errors import SettingError
from fedmf.updates import wire


def reply_to(message: Message, context: Context) -> Message:
    """Return the node's reply to the tasks in `message`: a record for each client, under its own mask."""
    run = run_config(context)
    node = Node.of(node_config(context.node_config.get(OVERRIDES)))
    dimension = len(message.content.array_records[wire.MODEL][wire.VECTOR].data) // 4
    app = make_client_app(node.examples_of, partial(trainer_of, run, node), client_plan_of(run, dimension))
    return app(message, context)


def run_config(context: Context) -> DictConfig:
    """Return the configuration of the run: conf/config.yaml with the overrides of `flwr run`."""
    return server_config(str(context.run_config.get(OVERRIDES, "")))


def server_config(overrides: str) -> DictConfig:
    """Return the configuration of a deployed run with `overrides`, parted by spaces as a shell does."""
    schema.register()
    try:
        parts = shlex.split(overrides)
    except ValueError as error:
        raise SettingError(f"overrides is {overrides!r}, whose quotes are not closed ({error}).") from error
    return compose_config("config", ["engine=deployment", *parts])


def trainer_of(run: DictConfig, node: Node) -> Trainer:
    """Return a trainer of the run's model, fitted to the node's data."""
    return Trainer(build_model(run, node.dataset), training_of(run))

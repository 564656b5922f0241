"""The ClientApp of a deployed node: the run's settings for what is sent, the node's own for whose data.

Flower starts a process for every message, so that nothing is built that this message does not need.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from flwr.app import ConfigRecord, Context, Message
from flwr.clientapp import ClientApp

from client.app import make_client_app
from client.training import Trainer
from experiments.deployment.node import OVERRIDES, Node, asked_digest, node_settings
from experiments.settings import log as json_log
from experiments.settings.client import build_client_plan, build_model
from experiments.settings.compose import compose, split
from experiments.settings.schema import Settings
from fedmf.errors import DeviceLostError, RunStoppedError, SettingError
from fedmf.updates import wire
from server import marks


@dataclass(frozen=True)
class Sources:
    """Where the node and the settings of the run come from that two texts of overrides describe."""

    node: Callable[[object], Node]
    run: Callable[[str], Settings]


def reply_to(message: Message, context: Context, sources: Sources | None = None) -> Message:
    """Return the node's reply to the tasks in `message`: each client's values under its own mask, and who they are.

    Without `sources` everything is made for this message.
    """
    json_log.name_run(context.run_id)
    of_run, of_node = _overrides(context)
    run = sources.run(of_run) if sources else run_settings(of_run)
    node = sources.node(of_node) if sources else Node.of(node_settings(of_node))
    reply = _client_app(node, run, message)(message, context)
    if digest := asked_digest(node, message):
        reply.content[wire.HELD] = ConfigRecord({**digest, wire.ANSWERED: count_answer(message)})
    return reply


def count_answer(message: Message) -> int:
    """Return the last round of the epoch, from 1, that this node answered before, 0 for none; note that of `message`, if later.

    A server whose older state was restored asks for earlier rounds again, under the epoch's old keys, and learns it so. The
    note lies where a server's count of rounds does (`server.marks`), under a digest of the node's own key of the epoch.
    """
    key = message.content.config_records[wire.HELD][wire.DIGEST_KEY]
    epoch = hashlib.blake2b(bytes(key), digest_size=16, person=b"fedmf answered").hexdigest()  # type: ignore[arg-type]
    asked = int(message.content.config_records[wire.TASK][wire.STEP]) + 1  # type: ignore[arg-type]
    with marks.held(epoch):
        before = marks.read(epoch) or 0
        if asked > before:
            marks.write(epoch, asked, is_over=True)  # kept for a year
    if not before:
        marks.tidy()
    return before


def app_elsewhere(message: Message, context: Context) -> ClientApp:
    """Return the ClientApp for `message` in another process of the node, with its trainer made."""
    of_run, of_node = _overrides(context)
    return _client_app(Node.of(node_settings(of_node)), run_settings(of_run), message, at_once=True)


def _overrides(context: Context) -> tuple[str, object]:
    """Return the texts that describe the run and the node."""
    return str(context.run_config.get(OVERRIDES, "")), context.node_config.get(OVERRIDES)


def _client_app(node: Node, run: Settings, message: Message, *, at_once: bool = False) -> ClientApp:
    """Return the ClientApp of the node's clients, for the run and the model of `message`."""
    dimension = len(message.content.array_records[wire.MODEL][wire.VECTOR].data) // 4
    return make_client_app(
        node.examples_of,
        partial(_trainer, run, node),
        build_client_plan(run, dimension),
        elsewhere=_elsewhere,
        at_once=at_once,
    )


def run_settings(overrides: str) -> Settings:
    """Return the settings of a deployed run: conf/config.yaml with `overrides`, parted as a shell does."""
    return compose("config", ["engine=deployment", *split(overrides)], Settings)


def _elsewhere(message: Message, context: Context) -> Message:
    """Return the reply to `message` from another process, for the clients of a message that outlive their device.

    Where none can begin that is an error of theirs: a node does not stop a run, and what it has trained is sent.
    """
    from experiments.engines.pool import in_another_process  # rarely needed: a node must start fast

    try:
        return in_another_process(app_elsewhere, message, context)
    except RunStoppedError as error:
        raise DeviceLostError(str(error)) from error


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

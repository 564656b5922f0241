"""The two apps that `flwr run` loads (pyproject.toml names them). docs/deployment.md says how to use them.

Both are configured as a simulation is: `flwr run . NAME -c 'overrides="..."'`. A node's data are named on the node alone,
by its --node-config. Flower starts a process for every message; `deployment.warm` makes that a fork.
"""

import contextlib
import hashlib
import logging
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from client.app import make_client_app, pack, unpack, zeros
from client.sealed import sealed, without_reasons
from client.training import Trainer
from experiments.cli.command import without_traceback
from experiments.deployment.node import OVERRIDES, Node, asked_digest, node_settings, readiness_claim
from experiments.deployment.server import deploy
from experiments.engines.grid import Failure, take_noted
from experiments.engines.processes import LocalProcess, Pool
from experiments.run_files.provenance import code_digest, own_code
from experiments.settings import log as json_log
from experiments.settings.compose import compose, given_values, split
from experiments.settings.experiment import build_client_plan, build_model
from experiments.settings.reference import CONF
from experiments.settings.schema import Settings
from fedmf.errors import DeviceLostError, RunStoppedError, SettingError
from fedmf.updates import wire
from server import copies

log = logging.getLogger(__name__)

# Where this process finds modules before Flower adds the bundle that a run brings.
INSTALLED = (*sys.path, "")
_bundles: list[str] = []  # what `bundles` has taken off the path


def of_this_code(
    message: Message, context: Context, call_next: Callable[[Message, Context], Message]
) -> Message:
    """Let the app answer `message` if this node runs the code of the run; log why not otherwise, and reply that.

    No client's data have a part in it: the app has not been called. The clients are silent, and not spent.
    """
    prepare()
    json_log.name_run(context.run_id)
    if not (why := other_code()):
        return call_next(message, context)
    log.error("%s This node does no work for the run.", why)
    return Message(RecordDict({wire.HELD: ConfigRecord({wire.OTHER_CODE: True})}), reply_to=message)


server_app = ServerApp()
client_app = ClientApp(mods=[without_reasons, sealed, of_this_code])


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Train with the nodes of a SuperLink; everything a run needs is in its overrides."""
    prepare()
    logging.getLogger("flwr").addFilter(without_traceback)  # it logs what ends the app
    if why := other_code():
        raise SettingError(f"{why} The run was not started.")
    overrides = str(context.run_config.get(OVERRIDES, ""))
    settings = run_settings(overrides)
    if settings.run.log == "json" or json_log.is_on():
        json_log.install()  # again: what Flower sends to `flwr log` is to be JSON too
    json_log.name_run(context.run_id)
    deploy(settings, grid, overrides)


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """Train each client that the message names and send its own masked values."""
    return reply_to(message, context)


@client_app.query()
def query(message: Message, context: Context) -> Message:
    """Return how many clients this node has, as its operator declared it, whether it is ready, and a digest of who they are."""
    node, claim = node_of(context), readiness_claim(context.node_config)
    answer = ConfigRecord({wire.CLIENTS: node.settings.clients, **claim, **asked_digest(node, message)})
    return Message(RecordDict({wire.HELD: answer}), reply_to=message)


def prepare() -> None:
    """Let what this process writes be for its account alone, however Flower was started, and fedmf's logs reach its log."""
    os.umask(0o077)
    handler = json_log.stderr_handler("%(levelname)s %(name)s: %(message)s")
    for package in ("fedmf", "client", "server", "experiments"):
        logger = logging.getLogger(package)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.INFO)


def other_code() -> str:
    """Return why this process does not run the code of the run's bundle, "" where it does, as without a warm start."""
    running, digest_now = own_code()["code"], code_digest.__wrapped__
    if digest_now(CONF.parent) != running:
        return "The code installed here has changed since it was imported; start the unit again."
    for bundle in bundles():
        if (theirs := digest_now(Path(bundle))) != running:
            return (
                f"The run's code (digest {theirs}) is not the code installed here ({running}); install the same version here "
                "and where runs are submitted."
            )
    return ""


def bundles() -> list[str]:
    """Return the folders of bundles that Flower put on the path of this process, and take them off it.

    More than imports reads the path: packages without `__init__.py` look for further folders there, readers of plugins and
    of entry points for theirs, and processes that this one starts have it too. Flower reads pyproject.toml of a bundle,
    wherever it unpacked that; a folder without it is that of a library which extends the path.
    """
    for folder in tuple(sys.path):
        if folder not in INSTALLED and (Path(folder) / "pyproject.toml").exists():
            _bundles.append(folder)
            with contextlib.suppress(ValueError):  # another thread has taken it off
                sys.path.remove(folder)
    return _bundles


def run_settings(overrides: str) -> Settings:
    """Return the settings of a deployed run: conf/config.yaml with `overrides`, split as a shell does.

    Raises `SettingError` for a `$`: who submits a run is not to read variables of the server or of a node, which Hydra would
    put in the place of `${oc.env:NAME}`, also of one that is written with a backslash. And for Hydra's own settings, which
    could name files of a bundle that hold such a text.
    """
    given = split(overrides)
    if "$" in overrides or any(key.startswith("hydra") for key in given_values(given)):
        raise SettingError(
            "overrides holds a $ or a setting of Hydra's own; a run that is submitted reads no variable of the machines that it "
            "runs on. Write the value itself."
        )
    return compose("config", ["engine=deployment", *given], Settings)


def node_of(context: Context) -> Node:
    """Return the node of this process, as its operator started it."""
    return Node(node_settings(context.node_config.get(OVERRIDES)))


def reply_to(message: Message, context: Context) -> Message:
    """Return the node's reply to the tasks in `message`: each client's values under its own mask, and who they are."""
    node = node_of(context)
    try:
        reply = _clients(message, context, node)(message, context)
    except DeviceLostError:
        reply = _reply_of_another_process(message, context)
    if digest := asked_digest(node, message):
        reply.content[wire.HELD] = ConfigRecord({**digest, wire.ANSWERED: count_answer(message)})
    return reply


def count_answer(message: Message) -> int:
    """Return the last round of the epoch, from 1, that this node answered before, 0 for none; note that of `message`, if later.

    A server whose older state was restored asks for earlier rounds again, under the epoch's old keys, and learns it so. The
    note is where a server's count of rounds is (`server.copies`), under a digest of the node's own key of the epoch.
    """
    key = message.content.config_records[wire.HELD][wire.DIGEST_KEY]
    epoch = hashlib.blake2b(bytes(key), digest_size=16, person=b"fedmf answered").hexdigest()  # type: ignore[arg-type]
    asked = int(message.content.config_records[wire.TASK][wire.STEP]) + 1  # type: ignore[arg-type]
    with copies.held(epoch):
        before = copies.read_count(epoch) or 0
        if asked > before:
            copies.write_count(epoch, asked)  # kept for a year
    if not before:
        copies.tidy()
    return before


def _reply_of_another_process(message: Message, context: Context) -> Message:
    """Return the reply of a new process to `message`, for one that has lost its device: zeros of a client that ends that too.

    Where none can begin these are zeros of all clients: a node does not stop a run.
    """
    tasks, sent = unpack(message)
    values: list[Any] = [wire.NO_VALUES for _ in tasks]
    process = LocalProcess(partial(_clients_of_another_process, message, context))
    try:
        pool = Pool([process])
        pool.submit([message])
        (reply,) = pool.collect([])
        values = list(reply.content.config_records[wire.UPDATE][wire.VALUES])  # type: ignore[arg-type]
    except RunStoppedError:
        log.exception(
            "no process can begin after a lost device; the node's clients take part with zero updates"
        )
    finally:
        process.end()
    for failure in (note for note in take_noted() if isinstance(note, Failure)):
        log.error("client %s takes part with a zero update: %s", failure.client, failure.reason)
    plan = build_client_plan(run_settings(str(context.run_config.get(OVERRIDES, ""))), len(sent.model))
    return pack([data or zeros(task, plan) for task, data in zip(tasks, values, strict=True)], message)


def _clients_of_another_process(message: Message, context: Context) -> ClientApp:
    return _clients(message, context, node_of(context), at_once=True)


def _clients(message: Message, context: Context, node: Node, *, at_once: bool = False) -> ClientApp:
    """Return the ClientApp of the node's clients, for the run and the model of `message`."""
    run = run_settings(str(context.run_config.get(OVERRIDES, "")))
    dimension = len(message.content.array_records[wire.MODEL][wire.VECTOR].data) // 4
    return make_client_app(
        node.examples_of,
        partial(_trainer, run, node),
        build_client_plan(run, dimension),
        at_once=at_once,
    )


def _trainer(run: Settings, node: Node) -> Trainer:
    """Return a trainer of the run's model, fitted to the node's data.

    The weights that a run begins with are read from the node's own copy alone: a server names no file of a node.
    """
    model = run.model
    if model.start is not None:
        if node.settings.model.start is None:
            raise SettingError(
                "the run begins from a file (model.start), and this node was started without a copy of it; add "
                "model.start=FILE to its --node-config."
            )
        model = replace(model, start=node.settings.model.start)
    return Trainer(build_model(model, node.dataset, run.seed), run.client, node.dataset.task)

"""Many nodes of a deployment in one process: `python -m experiments.benchmark.light_nodes`, which its starter tells what to be.

A node of `fedmf node` takes 350 MB, so that 50 do not fit beside a server. These speak Flower's own protocol through
Flower's own client, each with a key, a connection over TLS, a heartbeat and a session of its own; what they share is the
process, and with it the imports and the work: one of them computes at a time, with the client code of a real node. So what the
SuperLink and the server app do is what they would do for as many real nodes; what a node costs is not to be seen here.

Uses private parts of Flower 1.41.
"""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Context, Message, RecordDict
from flwr.common.config import get_fused_config_from_fab
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree, push_objects
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.fleet_http_connection import http_request_response

from experiments.deployment.flower_parts import FIRST_AGAIN, Pauses
from experiments.deployment.lifeline import is_cut, told
from experiments.deployment.node import OVERRIDES, Node, answer_query, node_settings
from experiments.deployment.node_app import Sources, reply_to, run_settings

_IDLE = 3.0  # seconds between two questions of a node that nothing was asked of
_LOOK = 0.5
_AGAIN = 1.0  # seconds until a connection that ended is made again

_work = threading.Lock()  # one node computes at a time: TaskIdentity is one for the process
_run = cache(run_settings)


@dataclass
class LightNode:
    """One node: its data, its key, and how often it asks."""

    node: Node
    key: Path
    superlink: str
    certificates: bytes
    pauses: Pauses
    configs: dict[int, dict[str, Any]] = field(default_factory=dict)

    def serve(self) -> None:
        """Answer messages until the process ends."""
        private = load_ssh_private_key(self.key.read_bytes(), None)
        assert isinstance(private, ec.EllipticCurvePrivateKey)
        keys = private, private.public_key()
        while (
            True
        ):  # Flower's client ends at an error of the SuperLink's; `fedmf node` then starts it again, as here
            with (
                suppress(SystemExit),
                http_request_response(self.superlink, False, self.certificates, keys) as connection,
            ):
                while True:
                    if self._answer(*connection):
                        self.pauses.worked()
                    time.sleep(self.pauses.seconds())
            time.sleep(_AGAIN)

    def _answer(
        self,
        node_id: int,
        receive: Callable[..., Any],
        send: Callable[..., Any],
        get_run: Callable[..., Any],
        get_fab: Callable[..., Any],
        pull_object: Callable[..., Any],
        push_object: Callable[..., Any],
        confirm: Callable[..., Any],
    ) -> bool:
        """Answer one message, if there is one; return whether there was."""
        if (received := receive()) is None:
            return False
        head, tree = received
        run_id = head.metadata.run_id
        message = pull_and_inflate_object_from_tree(
            tree,
            partial(pull_object, run_id),
            partial(confirm, run_id),
            return_type=Message,
            initial_backoff=FIRST_AGAIN,
        )
        message.metadata.__dict__["_message_id"] = tree.object_id
        if run_id not in self.configs:
            run = get_run(run_id)
            self.configs[run_id] = get_fused_config_from_fab(get_fab(run.fab_hash, run_id).content, run)
        begun = time.monotonic()
        with _work:
            TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, run_id, node_id
            reply = self._play(message, Context(run_id, node_id, {}, RecordDict(), self.configs[run_id]))
            reply.metadata.__dict__["_message_id"] = reply.object_id
            with no_object_id_recompute():
                object_tree, objects = get_object_tree(reply), get_all_nested_objects(reply)
        wanted, session = send(reply, object_tree, time.monotonic() - begun)
        push_objects(objects, partial(push_object, run_id, session), object_ids_to_push=wanted)
        return True

    def _play(self, message: Message, context: Context) -> Message:
        if message.metadata.message_type == "query":
            return answer_query(self.node, message)
        return reply_to(message, context, Sources(lambda _: self.node, _run))


def main() -> None:
    """Serve as many nodes as the starter tells, until the starter ends."""
    settings = told(9)
    logging.getLogger("flwr").setLevel(logging.WARNING)
    import torch

    torch.set_num_threads(1)
    node = Node.of(node_settings(settings[OVERRIDES]))
    _ = node.dataset  # read once, shared by all
    certificates = Path(settings["certificates"]).read_bytes()
    for number, key in enumerate(settings["keys"]):
        one = replace(node, first=number * node.clients)
        one.__dict__["_loaded"] = node.dataset
        pauses = Pauses(settings["pause"], _IDLE)
        light = LightNode(one, Path(key), settings["superlink"], certificates, pauses)
        threading.Thread(target=light.serve, daemon=True).start()
    while not is_cut():
        time.sleep(_LOOK)


if __name__ == "__main__":
    main()

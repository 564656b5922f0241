"""Waiting for nodes: for enough clients when an epoch begins, and for one node of a round.

A node is its authenticated public key, which lasts across reconnects and restarts; Flower's node ids need not. The server
waits until enough nodes are connected, and asks each how many clients it holds. The answer is what the node's operator
declared: it must not depend on anyone's data, or one client could decide who else takes part.

With its answer a node sends a digest of who its clients are, in order (`server.members`). The key of the digest is the
node's own and comes from the epoch's: the roster is public, and without that key, which is erased with the epoch's, it says
nothing about anyone's data.

A node's name, its key and whether it is connected are public, and depend on no client's data: the log names nodes.
"""

import logging
import time
from collections.abc import Mapping, Set
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedmf.checks import check_at_least, check_positive
from fedmf.errors import RunStoppedError, SettingError
from fedmf.randomness import SecretKey
from fedmf.updates import wire
from server.cohort import UnreadyNodes
from server.exchange import exchange, node_report
from server.known_nodes import EVERY_NODE, KnownNodes, node_key

log = logging.getLogger(__name__)

PAUSE = 2.0  # seconds between two polls for connected nodes


class NodeStatus(StrEnum):
    """What a node is when an epoch begins, in the words of the log."""

    PRESENT = "takes part"
    EMPTY = "holds no client"
    UNREADY = "not ready"
    OTHER_CODE = "with other code than the run"
    MUTE = "without an answer"
    AWAY = "not connected"


# In the order of the log. An epoch may begin without such nodes: they are waited for while there are too few clients.
_LEFT_OUT = {
    NodeStatus.UNREADY: "is not ready",
    NodeStatus.OTHER_CODE: "has other code than the run",
    NodeStatus.EMPTY: "holds no client",
    NodeStatus.MUTE: "is connected and did not say how many clients it holds",
    NodeStatus.AWAY: "is in the list of nodes and not connected",
}


@dataclass(frozen=True)
class Attendance:
    """When an epoch may begin: with `min_available` clients connected, waited for at most `timeout` seconds.

    A node counts for at most `max_clients_per_node` clients, and for no more than was agreed in `nodes`; it has
    `query_timeout` seconds to say how many it holds. A node that `nodes` does not admit is not asked.

    `unready` is what happens about a connected node that reports that it is not ready: the epoch waits for it, so that
    no release depends on what a node says of its data, or begins without it. Raises `SettingError` for a number below 1
    or a timeout that is not above 0.
    """

    min_available: int
    max_clients_per_node: int = 10_000
    timeout: float = 600
    query_timeout: float = 120
    nodes: KnownNodes = EVERY_NODE
    unready: UnreadyNodes = UnreadyNodes.wait

    def __post_init__(self) -> None:
        check_at_least("min_available", self.min_available, 1)
        check_at_least("max_clients_per_node", self.max_clients_per_node, 1)
        check_positive("timeout", self.timeout)
        check_positive("query_timeout", self.query_timeout)


class Answer(NamedTuple):
    """What the node `node_id` answers at the start of an epoch: how many `clients` take part, and a digest of who they are."""

    status: NodeStatus
    node_id: int
    clients: int = 0
    digest: str = ""

    def stands(self, node_id: int | None) -> bool:
        """Return whether it still counts for a node that is now connected as `node_id`; None: not connected."""
        return node_id is not None and (node_id == self.node_id or not self.is_count)

    @property
    def is_count(self) -> bool:
        """Whether the node said how many clients it holds: it is not asked again."""
        return self.status in (NodeStatus.PRESENT, NodeStatus.EMPTY)


def connected(grid: Grid) -> dict[str, int]:
    """Return {key: node id} of the connected nodes that have a public key.

    Raises `SettingError` for a grid that does not give public keys.
    """
    get_nodes = getattr(grid, "get_nodes", None)
    if get_nodes is None:
        raise SettingError(f"{type(grid).__name__} does not give the nodes' public keys; use a SuperLink.")
    return {node_key(bytes(node.public_key)): node.node_id for node in get_nodes() if node.public_key}


def wait_for_clients(grid: Grid, attendance: Attendance, key: SecretKey) -> dict[str, Answer]:
    """Return what the nodes that take part answered, by key, once they hold `min_available` clients together.

    A count stands for as long as its node is connected under the same node id. Where others were waited for, all
    are asked once more when they are there: meanwhile a node may have been started again, or given other data.
    Raises `RunStoppedError` after the timeout.
    """
    deadline, listed = time.monotonic() + attendance.timeout, attendance.nodes
    answers: dict[str, Answer] = {}
    strangers: set[str] = set()
    logged = ""
    while True:
        there = connected(grid)
        nodes = {name: node for name, node in there.items() if listed.admit(name)}
        for stranger in sorted(there.keys() - nodes.keys() - strangers):
            log.warning("node %s is connected and not in the list of nodes: it takes no part", stranger)
        strangers |= there.keys() - nodes.keys()
        answers = {name: answer for name, answer in answers.items() if answer.stands(nodes.get(name))}
        counted = {name for name, answer in answers.items() if answer.is_count}
        unasked = {name: node for name, node in nodes.items() if name not in counted}
        answers |= _ask(grid, unasked, attendance, key, answers)
        present = {name: answer for name, answer in answers.items() if answer.clients}
        available = sum(answer.clients for answer in present.values())
        status = dict.fromkeys(nodes, NodeStatus.MUTE) | {name: one.status for name, one in answers.items()}
        status |= {node.key: NodeStatus.AWAY for node in listed if node.key not in there}
        is_enough = available >= attendance.min_available
        if is_enough and (
            attendance.unready is UnreadyNodes.without or NodeStatus.UNREADY not in status.values()
        ):
            if not present.keys() & counted:
                _log_left_out(listed, status)
                return present
            answers = {name: answer for name, answer in answers.items() if not answer.is_count}
            continue
        standing = _standing(attendance, present, status)
        if time.monotonic() >= deadline:
            advice = "Start more nodes"
            if is_enough:
                advice = (
                    "A node that is not ready has data that could not be loaded; its log says why. Let its operator mend them "
                    "and start it again, or give unready_nodes=without to begin without it"
                )
            elif NodeStatus.OTHER_CODE in status.values():
                advice = "Install the run's code on the nodes that have other code and start them again, or start more nodes"
            raise RunStoppedError(
                f"after {attendance.timeout:g} seconds {standing}. {advice}; the run can then be resumed from its checkpoint."
            )
        if standing != logged:
            log.info("waiting: %s (for at most %g seconds)", standing, deadline - time.monotonic())
            logged = standing
        time.sleep(min(PAUSE, attendance.timeout))


def wait_for_one(grid: Grid, attendance: Attendance, wanted: Set[str]) -> dict[str, int]:
    """Return {key: node id} of the connected nodes that may take part, once one of `wanted` is there or the timeout is over."""
    deadline, is_first = time.monotonic() + attendance.timeout, True
    while True:
        there = {name: node for name, node in connected(grid).items() if attendance.nodes.admit(name)}
        if wanted & there.keys() or time.monotonic() >= deadline:
            return there
        if is_first:
            log.warning("waiting: no node of this round is connected")
        is_first = False
        time.sleep(PAUSE)


def _standing(attendance: Attendance, present: Mapping[str, Answer], status: Mapping[str, NodeStatus]) -> str:
    """Return how many clients are available, and which nodes are waited for and why."""
    standing = (
        f"{sum(answer.clients for answer in present.values())} clients behind {len(present)} connected nodes are available; "
        f"min_available={attendance.min_available} are needed"
    )
    for why in (NodeStatus.UNREADY, NodeStatus.OTHER_CODE, NodeStatus.MUTE, NodeStatus.AWAY):
        if names := sorted(attendance.nodes.called(name) for name, found in status.items() if found is why):
            standing += f"; {why}: {', '.join(names)}"
    return standing


def _log_left_out(nodes: KnownNodes, status: Mapping[str, NodeStatus]) -> None:
    """Log each node without which an epoch begins, and why."""
    for why, reason in _LEFT_OUT.items():
        for name, key in sorted((nodes.called(key), key) for key, found in status.items() if found is why):
            ending = f"; its key is {key}" if why is NodeStatus.AWAY else ""
            log.warning("node %s %s: the epoch begins without it%s", name, reason, ending)


def digest_key(key: SecretKey, node: str) -> bytes:
    """Return the key of a node's digest: its own, so that no node can guess at the data of another."""
    return key.derive("clients of a node", node).reveal()


def _ask(
    grid: Grid,
    nodes: Mapping[str, int],
    attendance: Attendance,
    key: SecretKey,
    before: Mapping[str, Answer],
) -> dict[str, Answer]:
    """Return what each of `nodes` (key -> node id) answers; one without a proper answer is left out.

    `before` are earlier answers: that a node has other code is logged once.
    """
    if not nodes:
        return {}
    messages = [
        Message(
            RecordDict({wire.HELD: ConfigRecord({wire.DIGEST_KEY: digest_key(key, name)})}),
            node,
            MessageType.QUERY,
        )
        for name, node in nodes.items()
    ]
    replies = exchange(grid, messages, timeout=attendance.query_timeout)
    asked = {message.metadata.message_id: name for message, name in zip(messages, nodes, strict=True)}
    answers = {}
    for reply in replies:
        name, report = asked[reply.metadata.reply_to_message_id], node_report(reply)
        called, node = attendance.nodes.called(name), nodes[name]
        if report.has_other_code:
            answers[name] = Answer(NodeStatus.OTHER_CODE, node)
            if name not in before or before[name].status is not NodeStatus.OTHER_CODE:
                log.warning(
                    "node %s has other code than the run and takes no part until the run's is installed there; its own log "
                    "names the files",
                    called,
                )
        elif report.clients is None:
            log.warning("node %s did not say how many clients it holds; it is asked again", called)
        elif not report.is_ready:
            answers[name] = Answer(NodeStatus.UNREADY, node)
        else:
            clients = _counted(name, report.clients, attendance)
            status = NodeStatus.PRESENT if clients else NodeStatus.EMPTY
            answers[name] = Answer(status, node, clients, report.digest)
    return answers


def _counted(key: str, count: int, attendance: Attendance) -> int:
    """Return how many of the `count` clients that a node declares take part: the first ones, as many as were agreed."""
    agreed, most = attendance.nodes.agreed(key), attendance.max_clients_per_node
    allowed = most if agreed is None else min(agreed, most)
    if count > allowed:
        rule = f"max_clients_per_node={most}" if agreed is None or agreed > most else f"most_clients={agreed}"
        log.warning(
            "node %s declares %d clients; %s of them take part", attendance.nodes.called(key), count, rule
        )
    return min(count, allowed)

"""Gathers the nodes of an epoch: waits until enough are connected, and asks each how many clients it holds.

The answer is what the node's operator declared: it must not depend on anyone's data, or one client could decide who else
takes part. With it a node declares a digest of who its clients are; see `server.attendance`.
"""

import logging
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedmf.checks import check_at_least, check_positive
from fedmf.errors import RunStoppedError, SettingError
from fedmf.randomness import SecretKey
from fedmf.updates import wire
from server.cohort import UnreadyNodes
from server.exchange import exchange
from server.known_nodes import EVERY_NODE, KnownNodes, node_key
from server.messages import says_other_code
from server.roll_call import away, tell_left_out

log = logging.getLogger(__name__)

PAUSE = 2.0  # seconds between two polls for connected nodes
_DIGEST = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True)
class Attendance:
    """When an epoch may begin: with `min_available` clients connected, waited for at most `timeout` seconds.

    A node counts for at most `max_clients_per_node` clients, and for no more than was agreed in `nodes`; it has
    `query_timeout` seconds to say how many it holds. A node that `nodes` does not admit is not asked.

    `unready` is what happens about a connected node that says that it is not ready: the epoch waits for it, so that
    no release depends on what a node says of its data, or begins without it. Raises `SettingError` for a number below 1 or a timeout that is not above 0.
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


def connected(grid: Grid) -> dict[str, int]:
    """Return {key: node id} of the connected nodes that have a public key.

    Raises `SettingError` for a grid that does not give public keys.
    """
    get_nodes = getattr(grid, "get_nodes", None)
    if get_nodes is None:
        raise SettingError(f"{type(grid).__name__} does not give the nodes' public keys; use a SuperLink.")
    return {node_key(bytes(node.public_key)): node.node_id for node in get_nodes() if node.public_key}


def admitted(grid: Grid, nodes: KnownNodes) -> dict[str, int]:
    """Return {key: node id} of the connected nodes that may take part."""
    return {key: node for key, node in connected(grid).items() if nodes.admit(key)}


class Declaration(NamedTuple):
    """What a node says at the start of an epoch: how many `clients` it holds, and a digest of who they are."""

    clients: int
    digest: str


def digest_key(key: SecretKey, node: str) -> SecretKey:
    """Return the key of a node's digest: its own, so that no node can guess at the data of another."""
    return key.derive("clients of a node", node)


def wait_for_clients(grid: Grid, attendance: Attendance, key: SecretKey) -> dict[str, Declaration]:
    """Return what the connected nodes declare by key, once they hold `min_available` clients together.

    What a node said counts for as long as it is connected under the same node id. Where others were waited for, all
    are asked once more when they are there: meanwhile a node may have been started again, or given other data.

    Raises `RunStoppedError` after the timeout.
    """
    deadline = time.monotonic() + attendance.timeout
    held: dict[str, Declaration] = {}
    said_by: dict[str, int] = {}  # the node id under which each has answered
    unready: set[str] = set()
    others: set[str] = set()  # that have other code than the run
    logged, strangers = None, set[str]()
    while True:
        there = connected(grid)
        nodes = {name: node for name, node in there.items() if attendance.nodes.admit(name)}
        for stranger in sorted({*there} - {*nodes} - strangers):
            log.warning("node %s is connected and not in the list of nodes: it takes no part", stranger)
            strangers.add(stranger)
        held = {name: said for name, said in held.items() if nodes.get(name) == said_by[name]}
        unasked = {name: node for name, node in nodes.items() if name not in held}
        answers = ask(grid, unasked, attendance, key)
        held |= answers.held
        said_by |= {name: nodes[name] for name in answers.held}
        unready = {name for name in unready | answers.unready if name in unasked and name not in held}
        for name in sorted(map(attendance.nodes.called, answers.other_code - others)):
            log.warning(
                "node %s has other code than the run and takes no part until the run's is installed there; its own log names the "
                "files",
                name,
            )
        others = {name for name in others | answers.other_code if name in unasked and name not in held}
        present = {name: held[name] for name in nodes if name in held and held[name].clients}
        available = sum(declaration.clients for declaration in present.values())
        goes_without = attendance.unready is UnreadyNodes.without
        if available >= attendance.min_available and (goes_without or not unready):
            if present.keys() - answers.held.keys():
                held = {}
                continue
            empty = held.keys() - present.keys()
            tell_left_out(attendance.nodes, there, present, unready=unready, other_code=others, empty=empty)
            return present
        standing = (
            f"{available} clients behind {len(present)} connected nodes are available; "
            f"min_available={attendance.min_available} are needed"
        )
        if unready:
            standing += f"; not ready: {', '.join(sorted(map(attendance.nodes.called, unready)))}"
        if others:
            standing += (
                f"; with other code than the run: {', '.join(sorted(map(attendance.nodes.called, others)))}"
            )
        if mute := nodes.keys() - held.keys() - unready - others:
            standing += f"; without an answer: {', '.join(sorted(map(attendance.nodes.called, mute)))}"
        if missing := away(attendance.nodes, there):
            standing += f"; not connected: {', '.join(missing)}"
        if time.monotonic() >= deadline:
            advice = "Start more nodes"
            if others:
                advice = "Install the run's code on the nodes that have other code and start them again, or start more nodes"
            if available >= attendance.min_available:
                advice = (
                    "A node that is not ready has data that could not be loaded; its log says why. Let its operator mend them "
                    "and start it again, or give unready_nodes=without to begin without it"
                )
            raise RunStoppedError(
                f"after {attendance.timeout:g} seconds {standing}. {advice}; the run can then be resumed from its checkpoint."
            )
        if standing != logged:
            log.info("waiting: %s (for at most %g seconds)", standing, deadline - time.monotonic())
            logged = standing
        time.sleep(min(PAUSE, attendance.timeout))


class Answers(NamedTuple):
    """What nodes that were asked have answered, by key: what they declare, that they are not ready, or have other code."""

    held: dict[str, Declaration]
    unready: set[str]
    other_code: set[str]


def ask(grid: Grid, nodes: Mapping[str, int], attendance: Attendance, key: SecretKey) -> Answers:
    """Return what each of `nodes` (key -> node id) declares; one without a proper answer is left out."""
    if not nodes:
        return Answers({}, set(), set())
    messages = [
        Message(
            RecordDict({wire.HELD: ConfigRecord({wire.DIGEST_KEY: digest_key(key, name).reveal()})}),
            node,
            MessageType.QUERY,
        )
        for name, node in nodes.items()
    ]
    keys = dict(zip(nodes.values(), nodes, strict=True))
    held, unready, other_code = {}, set[str](), set[str]()
    replies = exchange(grid, messages, timeout=attendance.query_timeout)
    asked = {message.metadata.message_id: keys[message.metadata.dst_node_id] for message in messages}
    for reply in replies:
        name = asked[reply.metadata.reply_to_message_id]
        if says_other_code(reply):
            other_code.add(name)
            continue
        count = claimed(reply)
        if count is None:
            log.warning(
                "node %s did not say how many clients it holds; it is asked again",
                attendance.nodes.called(name),
            )
            continue
        if says_unready(reply):
            unready.add(name)
            continue
        held[name] = Declaration(_counted(name, count, attendance), declared_digest(reply))
    return Answers(held, unready, other_code)


def _counted(key: str, count: int, attendance: Attendance) -> int:
    """Return how many of the `count` clients that a node declares take part: the first ones, as many as were agreed."""
    name, agreed, most = (
        attendance.nodes.called(key),
        attendance.nodes.agreed(key),
        attendance.max_clients_per_node,
    )
    if agreed is not None and count > agreed:
        log.warning(
            "node %s declares %d clients; most_clients=%d were agreed, and take part", name, count, agreed
        )
        count = agreed
    if count > most:
        log.warning("node %s holds %d clients; max_clients_per_node=%d of them take part", name, count, most)
    return min(count, most)


def claimed(reply: Message) -> int | None:
    """Return the number of clients in a node's answer, or None for an error or anything malformed; never raises."""
    count = _said(reply, wire.CLIENTS)
    return count if type(count) is int and count >= 0 else None


def says_unready(reply: Message) -> bool:
    """Say whether a node answers that it is not ready; what says nothing of it is; never raises."""
    return _said(reply, wire.READY) is False


def answered_before(reply: Message) -> int:
    """Return the last round of the epoch that a node had answered before this reply: 0 for none, or anything malformed; never raises."""
    number = _said(reply, wire.ANSWERED)
    return number if type(number) is int else 0


def declared_digest(reply: Message) -> str:
    """Return the digest of a node's clients in a reply, "" for an error or anything malformed; never raises."""
    digest = _said(reply, wire.DIGEST)
    return digest if type(digest) is str and _DIGEST.fullmatch(digest) else ""


def _said(reply: Message, name: str) -> Any:
    """Return what a node says under `name` of what it holds, None for nothing, an error or anything malformed; never raises."""
    try:
        return reply.content.config_records[wire.HELD][name]
    except Exception:  # whatever a hostile node sends counts as nothing
        return None

"""The clients of a deployment: who is connected, how many clients each node holds, who is in which epoch.

A node is its authenticated public key, which lasts across reconnects and restarts; Flower's node ids need not.
At the start of an epoch each connected node is asked how many clients it holds. The answer is what the node's
operator declared: it must not depend on anyone's data, or one client could decide who else takes part.

A client is the node's number for it, so that a node must not number its clients anew in mid-epoch: one of them could be
heard twice. It declares a digest of who they are, in order, and again with every reply; one that says something else
counts as zero vectors until the next epoch. The key of the digest is the node's own and comes from the epoch's: the
roster is public, and without that key, which is erased with the epoch's, it says nothing about anyone's data.
"""

import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedmf.checks import check_at_least, check_positive
from fedmf.errors import RunDirectoryError, RunStoppedError, SettingError
from fedmf.plan import Plan
from fedmf.randomness import SecretKey
from fedmf.updates import wire
from server.cohort import Presence, Roster, UnreadyNodes, node_of
from server.exchange import exchange
from server.files import write_atomically
from server.known_nodes import EVERY_NODE, KnownNodes, node_key
from server.messages import says_other_code
from server.roll_call import away, presence, tell_epoch

log = logging.getLogger(__name__)

ROSTER = "roster.json"
_DIGEST = re.compile("[0-9a-f]{64}")
_PAUSE = 2.0  # seconds between two polls for connected nodes


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


class DeployedPopulation:
    """Clients behind authenticated nodes; see `Population`. The roster of the epoch under way is kept in `folder`.

    A node that connects later takes part from the next epoch on. The clients of a disconnected node are silent;
    when it reconnects, those that have not been heard in the epoch take part again. What changes in the list of nodes
    between two processes of a run counts from the next epoch on: until then the roster decides who the clients are, and
    those of a node that is no longer listed are silent.
    """

    def __init__(
        self, attendance: Attendance, folder: Path, on_epoch: Callable[[Roster], object] = lambda roster: None
    ) -> None:
        """Keep the roster in `folder`; `on_epoch` is called with it when an epoch begins, and when it goes on after a restart."""
        self._attendance = attendance
        self._on_epoch = on_epoch
        self._path = folder / ROSTER
        self._roster: Roster | None = None
        self._key: SecretKey | None = None
        self._declined: set[str] = set()  # nodes of the round under way that were said to have other code
        self._presence: Presence | None = None

    def gather(self, plan: Plan, epoch: int, step: int, grid: Grid, *, key: SecretKey) -> None:
        """Wait for enough clients at the start of an epoch and save the roster, before any client is asked.

        Raises `RunStoppedError` when too few connect in time, `RunDirectoryError` in the middle of an epoch whose
        roster is lost: its cohorts could not be drawn again, and a client might be heard twice.
        """
        self._key = key
        if self._roster is None and self._path.exists():
            self._roster = _read(self._path)
            if self._roster.epoch == epoch:
                _tell_changes(self._roster, self._attendance.nodes)
                tell_epoch(self._roster, self._attendance.nodes, connected(grid), begins=False)
                self._on_epoch(self._roster)
        if self._roster is not None and self._roster.epoch == epoch:
            return
        if step:
            raise RunDirectoryError(
                f"{self._path} does not hold the clients of epoch {epoch + 1}, which is under way; restore it."
            )
        nodes, held = self._attendance.nodes, wait_for_clients(grid, self._attendance, key)
        counts = {node: declaration.clients for node, declaration in held.items()}
        digests = {node: declaration.digest for node, declaration in held.items()}
        roster = Roster(epoch, counts, digests)
        self._save(roster)
        tell_epoch(roster, nodes, connected(grid), begins=True)
        self._on_epoch(roster)

    def cohort(self, plan: Plan, server_round: int) -> list[str]:
        """Return the round's clients as KEY:NUMBER."""
        assert self._roster is not None  # gather is called first
        return self._roster.cohort(plan, server_round)

    def places(self, clients: Sequence[str], grid: Grid) -> dict[int, list[str]]:
        """Return which clients each connected node plays; wait while no node of the round is connected.

        The clients of a disconnected node are silent. Where every node is disconnected the network is at fault:
        after the timeout the result is empty, and nothing is asked.
        """
        assert self._roster is not None  # gather is called first
        nodes, deadline = self._attendance.nodes, time.monotonic() + self._attendance.timeout
        while (
            not (places := _places(clients, there := admitted(grid, nodes))) and time.monotonic() < deadline
        ):
            log.warning("waiting: no node of this round is connected")
            time.sleep(_PAUSE)
        self._presence = presence(nodes, self._roster, there)
        missing = {node_of(client) for client in clients} - {*there}
        for name in sorted(nodes.called(key) for key in missing if nodes.admit(key)):
            log.warning("node %s is not connected; its clients are silent in this round", name)
        self._declined = set()
        return places

    def presence(self) -> Presence | None:
        """Return how many nodes of the list, without a list of the epoch, there are, and how many were connected last."""
        return self._presence

    def question(self, clients: Sequence[str]) -> dict[str, bytes]:
        """Return the key under which the node says again who its clients are."""
        assert self._key is not None  # gather is called first
        return {wire.DIGEST_KEY: digest_key(self._key, node_of(clients[0])).reveal()}

    def declines(self, clients: Sequence[str], reply: Message) -> bool:
        """Say whether the node of `clients` answers that its code is not the run's; the log names it once a round.

        It finds that out before it reads anything of a client, whatever its data are.
        """
        if not says_other_code(reply):
            return False
        node = node_of(clients[0])
        if node not in self._declined:
            log.warning(
                "node %s has other code than the run; its clients are silent in this round, and its own log names the files",
                self._attendance.nodes.called(node),
            )
        self._declined.add(node)
        return True

    def admits(self, clients: Sequence[str], reply: Message) -> bool:
        """Say whether the node's clients are those that it declared, in the same order, all through the epoch."""
        assert self._roster is not None  # gather is called first
        node, said = node_of(clients[0]), declared_digest(reply)
        if node in self._roster.changed:
            return False
        if said == self._roster.digests.get(node, ""):
            return True
        if said:  # else its data could not be loaded this time, which every client's zeros say as well
            log.warning(
                "node %s no longer holds the clients that it declared for this epoch, or in another order: they count as "
                "zero vectors until the next epoch",
                self._attendance.nodes.called(node),
            )
            self._save(replace(self._roster, changed=(*self._roster.changed, node)))
        return False

    def _save(self, roster: Roster) -> None:
        write_atomically(self._path, roster.to_json().encode())
        self._roster = roster


def _places(clients: Sequence[str], nodes: Mapping[str, int]) -> dict[int, list[str]]:
    """Return {node id: clients} of those whose node is among the connected `nodes` (key -> node id)."""
    places: dict[int, list[str]] = {}
    for client in clients:
        if (node := nodes.get(node_of(client))) is not None:
            places.setdefault(node, []).append(client)
    return places


def _read(path: Path) -> Roster:
    """Return the roster in a file. Raises `RunDirectoryError` for a damaged one."""
    try:
        return Roster.from_json(path.read_text())
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunDirectoryError(f"{path} is damaged ({error}); restore the checkpoint folder.") from error


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


def _tell_changes(roster: Roster, nodes: KnownNodes) -> None:
    """Log what the list of nodes now says otherwise than the roster of the epoch under way, by which the epoch ends."""
    for key, count in sorted(roster.nodes.items()):
        if not nodes.admit(key):
            log.warning(
                "node %s is no longer in the list of nodes: its %d clients are silent until epoch %d ends, and out of "
                "the next one",
                key,
                count,
                roster.epoch + 1,
            )
        elif (agreed := nodes.agreed(key)) is not None and agreed < count:
            log.warning(
                "node %s counts for %d clients until epoch %d ends, as when it began; after that for %d, as the list of "
                "nodes says now",
                nodes.called(key),
                count,
                roster.epoch + 1,
                agreed,
            )


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
            for name in sorted(map(attendance.nodes.called, unready)):
                log.warning("node %s is not ready: the epoch begins without it", name)
            for name in sorted(map(attendance.nodes.called, others)):
                log.warning("node %s has other code than the run: the epoch begins without it", name)
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
        time.sleep(min(_PAUSE, attendance.timeout))


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
    try:
        count: Any = reply.content.config_records[wire.HELD][wire.CLIENTS]
    except Exception:  # whatever a hostile node sends counts as no answer
        return None
    return count if type(count) is int and count >= 0 else None


def says_unready(reply: Message) -> bool:
    """Say whether a node answers that it is not ready; what says nothing of it is; never raises."""
    try:
        return reply.content.config_records[wire.HELD].get(wire.READY) is False
    except Exception:  # whatever a hostile node sends counts as nothing
        return False


def declared_digest(reply: Message) -> str:
    """Return the digest of a node's clients in a reply, "" for an error or anything malformed; never raises."""
    try:
        digest: Any = reply.content.config_records[wire.HELD][wire.DIGEST]
    except Exception:  # whatever a hostile node sends counts as none
        return ""
    return digest if type(digest) is str and _DIGEST.fullmatch(digest) else ""

"""The clients of a deployment: who is connected, how many clients each node holds, who is in which epoch.

A node is its authenticated public key, which lasts across reconnects and restarts; Flower's node ids need not. At the start
of an epoch the server waits until enough nodes are connected, and asks each how many clients it holds. The answer is what
the node's operator declared: it must not depend on anyone's data, or one client could decide who else takes part.

A client is the node's number for it, so that a node must not renumber its clients in mid-epoch: one of them could be
heard twice. It declares a digest of who they are, in order, and again with every reply; a node that reports another one
counts as zero vectors until the next epoch. The key of the digest is the node's own and comes from the epoch's: the
roster is public, and without that key, which is erased with the epoch's, it says nothing about anyone's data.

A node's name, its key and whether it is connected are public, and depend on no client's data: the log names nodes.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedmf.checks import check_at_least, check_positive
from fedmf.errors import RunDirectoryError, RunStoppedError, SettingError
from fedmf.plan import Plan
from fedmf.randomness import SecretKey
from fedmf.updates import wire
from server.cohort import Heard, Presence, Roster, UnreadyNodes, node_of
from server.exchange import exchange, node_report
from server.files import write_atomically
from server.known_nodes import EVERY_NODE, KnownNodes, node_key

log = logging.getLogger(__name__)

ROSTER = "roster.json"
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


def _digest_key(key: SecretKey, node: str) -> bytes:
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
            RecordDict({wire.HELD: ConfigRecord({wire.DIGEST_KEY: _digest_key(key, name)})}),
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


class DeployedPopulation:
    """Clients behind authenticated nodes; see `Population`. The roster of the epoch under way is kept in `folder`.

    A node that connects later takes part from the next epoch on. The clients of a disconnected node are silent;
    when it reconnects, those that have not been heard in the epoch take part again. What changes in the list of nodes
    between two processes of a run counts from the next epoch on: until then the roster decides who the clients are, and
    those of a node that is no longer listed are silent.
    """

    def __init__(
        self,
        attendance: Attendance,
        folder: Path,
        on_epoch: Callable[[Roster], object] = lambda roster: None,
        on_wait: Callable[[bool], object] = lambda waits: None,
        on_presence: Callable[[Presence], object] = lambda presence: None,
        *,
        accept_copy: bool = False,
    ) -> None:
        """Keep the roster in `folder`; `on_epoch` is called with it when an epoch begins or continues after a restart.

        `on_wait` is called with whether it waits for nodes, `on_presence` with which nodes there are for a round. With
        `accept_copy` a run continues, with a warning, though a node has answered a later round than it knows.
        """
        self._attendance, self._path, self._accept_copy = attendance, folder / ROSTER, accept_copy
        self._on_epoch, self._on_wait, self._on_presence = on_epoch, on_wait, on_presence
        self._roster = Roster(-1, {})  # of no epoch
        self._key: SecretKey | None = None
        self._round = self._rounds = 0  # of the epoch, from 1, and how many it has
        self._declined: set[str] = set()  # nodes of the round under way that reported other code

    def cohort(self, plan: Plan, server_round: int, grid: Grid, *, key: SecretKey) -> dict[int, list[str]]:
        """Return {node id: clients as KEY:NUMBER} of a round; before the first of an epoch wait for enough clients.

        The clients of a disconnected node are silent. Where every node of the round is disconnected the network is at
        fault: they are waited for, and after the timeout the result is empty, and nothing is asked.
        Raises `RunStoppedError` when too few connect in time, `RunDirectoryError` in the middle of an epoch whose
        roster is lost: its cohorts could not be drawn again, and a client might be heard twice.
        """
        epoch, step = divmod(server_round - 1, plan.participation.rounds_per_epoch)
        self._key, self._round, self._rounds = key, step + 1, plan.participation.rounds_per_epoch
        self._declined, nodes = set(), self._attendance.nodes
        self._on_wait(True)
        self._take_roster(epoch, step, grid)
        clients, deadline = (
            self._roster.cohort(plan, server_round),
            time.monotonic() + self._attendance.timeout,
        )
        in_round = {node_of(client) for client in clients}
        is_first = True
        while True:
            there = {name: node for name, node in connected(grid).items() if nodes.admit(name)}
            if in_round & there.keys() or time.monotonic() >= deadline:
                break
            if is_first:
                log.warning("waiting: no node of this round is connected")
            is_first = False
            time.sleep(PAUSE)
        self._on_wait(False)
        in_epoch = frozenset(self._roster.nodes)
        expected = in_epoch if nodes.listed is None else frozenset(node.key for node in nodes)
        self._on_presence(Presence(expected, frozenset(there), in_epoch, frozenset(in_round)))
        for name in sorted(nodes.called(node) for node in in_round - there.keys() if nodes.admit(node)):
            log.warning("node %s is not connected; its clients are silent in this round", name)
        places: dict[int, list[str]] = {}
        for client in clients:
            if (node := there.get(node_of(client))) is not None:
                places.setdefault(node, []).append(client)
        return places

    def question(self, clients: Sequence[str]) -> dict[str, bytes]:
        """Return the key under which the node reports again who its clients are."""
        assert self._key is not None  # cohort is called first
        return {wire.DIGEST_KEY: _digest_key(self._key, node_of(clients[0]))}

    def heard(self, clients: Sequence[str], reply: Message, *, is_theirs: bool) -> Heard:
        """Return silence where the node of `clients` has other code, values where its clients are those it declared.

        It finds out its code before it reads anything of a client, whatever its data are; the log names it once a round.
        Its clients must be the same, in the same order, all through the epoch. Raises `RunDirectoryError`, before anything
        is released, where the node had answered a later round of the epoch: an older state of the run was restored, with
        the count of its rounds, and would release the same noise on other replies.
        """
        node, report = node_of(clients[0]), node_report(reply)
        name = self._attendance.nodes.called(node)
        if report.has_other_code:
            if node not in self._declined:
                log.warning(
                    "node %s has other code than the run; its clients are silent in this round, and its own log names the "
                    "files",
                    name,
                )
            self._declined.add(node)
            return Heard.SILENCE
        if not is_theirs:
            return Heard.ZEROS
        if self._round < report.answered <= self._rounds:  # a later round there is
            wrong = (
                f"node {name} has answered round {report.answered} of this epoch, and this server asks for its round "
                f"{self._round}: it holds an older state of the run."
            )
            if not self._accept_copy:
                raise RunDirectoryError(
                    f"{wrong} It would release the same noise on other replies. Only if you know that no later round was "
                    "seen, and that no other copy continues: set accept_copy=True."
                )
            log.warning("%s It continues, because accept_copy was set.", wrong)
        if node in self._roster.changed:
            return Heard.ZEROS
        if report.digest == self._roster.digests.get(node, ""):
            return Heard.VALUES
        if (
            report.digest
        ):  # else its data could not be loaded this time, which every client's zeros say as well
            log.warning(
                "node %s no longer holds the clients that it declared for this epoch, or in another order: they count as "
                "zero vectors until the next epoch",
                name,
            )
            self._save(replace(self._roster, changed=(*self._roster.changed, node)))
        return Heard.ZEROS

    def _take_roster(self, epoch: int, step: int, grid: Grid) -> None:
        """Have the roster of `epoch`, before its round `step` (0-based): the one at hand, the one kept, or a new one."""
        if self._roster.epoch < 0 and self._path.exists():
            self._roster = _read(self._path)
            if self._roster.epoch == epoch:
                self._tell_epoch(grid, "continues")
        if self._roster.epoch == epoch:
            return
        if step:
            raise RunDirectoryError(
                f"{self._path} does not hold the clients of epoch {epoch + 1}, which is under way; restore it."
            )
        assert self._key is not None
        answers = wait_for_clients(grid, self._attendance, self._key)
        counts = {node: answer.clients for node, answer in answers.items()}
        self._save(Roster(epoch, counts, {node: answer.digest for node, answer in answers.items()}))
        self._tell_epoch(grid, "begins")

    def _save(self, roster: Roster) -> None:
        write_atomically(self._path, roster.to_json().encode())
        self._roster = roster

    def _tell_epoch(self, grid: Grid, verb: str) -> None:
        """Log who is in the epoch, by names, keys and the ids that Flower's commands know nodes by, and call `on_epoch`.

        Of an epoch that continues, also what the list of nodes has now otherwise than the roster, which decides until its end.
        """
        roster, nodes, there = self._roster, self._attendance.nodes, connected(grid)
        log.info(
            "epoch %d %s with %d clients behind %d nodes",
            roster.epoch + 1,
            verb,
            roster.clients,
            len(roster.nodes),
        )
        for name, key, count in sorted(
            (nodes.called(key), key, count) for key, count in roster.nodes.items()
        ):
            found = f"its node id {there[key]}" if key in there else "and it is not connected now"
            log.info("node %s takes part with %d clients; its key is %s, %s", name, count, key, found)
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
                    name,
                    count,
                    roster.epoch + 1,
                    agreed,
                )
        self._on_epoch(roster)


def _read(path: Path) -> Roster:
    """Return the roster in a file. Raises `RunDirectoryError` for a damaged one."""
    try:
        return Roster.from_json(path.read_text())
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunDirectoryError(f"{path} is damaged ({error}); restore the checkpoint folder.") from error

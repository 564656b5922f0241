"""The clients of a deployment: which nodes an epoch begins with, where its clients are in a round, and whose replies count.

A node is its authenticated public key; Flower's node ids do not outlast a reconnect. The server asks each node how many clients it
holds. The answer is what the node's operator declared: if it depended on data, one client could decide who else takes part.

A client is the node's number for it: a node that renumbered its clients in mid-epoch could have one of them heard twice. So it
declares a digest of who they are, in order, when an epoch begins and with every reply. The digest's key is the node's own and
comes from the epoch's key, with which it is erased: the public roster says nothing about anyone's data.

A node's name, its key and whether it is connected are public, and depend on no client's data: the log names nodes.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedmf.errors import RunDirectoryError, RunStoppedError
from fedmf.participation import rounds_that_fit
from fedmf.plan import Plan
from fedmf.randomness import SecretKey
from fedmf.updates import wire
from server.cohort import ROSTER, Heard, Roster, UnreadyNodes, node_of
from server.copies import allow_or_raise
from server.exchange import exchange, node_report
from server.files import write_atomically
from server.known_nodes import Attendance, KnownNodes, connected

log = logging.getLogger(__name__)

PAUSE = 2.0  # seconds between two polls for connected nodes


class NodeStatus(StrEnum):
    """What a node is when an epoch begins, in the words of the log."""

    PRESENT = "takes part"
    UNREADY = "not ready"
    OTHER_CODE = "with other code than the run"
    MUTE = "without an answer"
    AWAY = "not connected"
    STRANGER = "not in the list of nodes"


_ADVICE = {
    NodeStatus.UNREADY: "A node that is not ready has data that could not be loaded; its log says why. Ask its operator to fix "
    "the data and restart the node, or set unready_nodes=without to begin without it",
    NodeStatus.OTHER_CODE: "Install the run's code on the nodes that have other code and restart them, or start more nodes",
}


class Answer(NamedTuple):
    """What a node answers at the start of an epoch; one that is present, connected as `node_id`, with clients and their digest."""

    status: NodeStatus
    node_id: int | None = None
    clients: int = 0
    digest: str = ""


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
        on_presence: Callable[..., object] = lambda **presence: None,
        *,
        accept_copy: bool = False,
    ) -> None:
        """Keep the roster in `folder`; `on_epoch` is called with it when an epoch begins or continues after a restart.

        `on_wait` is called with whether it waits for nodes, `on_presence` with sets of the keys of
        nodes by keyword: `expected` (those of the list, if there is one), `connected`, `in_epoch` and `in_round`. With
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

        Where no node of the round is connected the first is waited for; after the timeout the result is empty. Raises
        `RunStoppedError` when too few connect in time, `RunDirectoryError` in mid-epoch where the roster is lost.
        """
        epoch, step = divmod(server_round - 1, plan.participation.rounds_per_epoch)
        self._key, self._round, self._rounds = key, step + 1, plan.participation.rounds_per_epoch
        self._declined, nodes = set(), self._attendance.nodes
        self._on_wait(True)
        self._take_roster(plan, epoch, step, key, grid)
        clients = self._roster.cohort(plan, server_round)
        in_round = {node_of(client) for client in clients}
        there = wait_for_one(grid, self._attendance, in_round)
        self._on_wait(False)
        in_epoch = {*self._roster.nodes}
        expected = in_epoch if nodes.listed is None else {node.key for node in nodes}
        self._on_presence(expected=expected, connected={*there}, in_epoch=in_epoch, in_round=in_round)
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
        return {wire.DIGEST_KEY: digest_key(self._key, node_of(clients[0]))}

    def heard(self, clients: Sequence[str], reply: Message, *, is_theirs: bool) -> Heard:
        """Return silence where the node of `clients` has other code, values where its clients are those it declared.

        It finds out its code before it reads anything of a client, whatever its data are. Raises `RunDirectoryError`, before
        anything is released, where the node had answered a later round of the epoch: an older state of the run was restored,
        with the count of its rounds, and would release the same noise on other replies.
        """
        node, report = node_of(clients[0]), node_report(reply)
        name = self._attendance.nodes.called(node)
        if report.has_other_code:
            if node not in self._declined:
                log.warning(
                    "node %s has other code than the run; its clients are silent in this round (see its log)",
                    name,
                )
            self._declined.add(node)
            return Heard.SILENCE
        if not is_theirs:
            return Heard.ZEROS
        if self._round < report.answered <= self._rounds:  # a later round there is
            allow_or_raise(
                self._accept_copy,
                f"node {name} has answered round {report.answered} of this epoch, and this server asks for its round "
                f"{self._round}: it holds an older state of the run.",
                "It would release the same noise on other replies. Only if you know that no later round was seen, and that no "
                "other copy continues: set accept_copy=True.",
            )
        if node in self._roster.changed:
            return Heard.ZEROS
        if report.digest == self._roster.digests.get(node, ""):
            return Heard.VALUES
        if report.digest:  # without one its data could not be loaded this time: its clients' values are zeros
            log.warning(
                "node %s no longer holds the clients that it declared for this epoch, in their order: they count as zeros "
                "until the next one",
                name,
            )
            self._save(replace(self._roster, changed=(*self._roster.changed, node)))
        return Heard.ZEROS

    def _take_roster(self, plan: Plan, epoch: int, step: int, key: SecretKey, grid: Grid) -> None:
        """Have the roster of `epoch`, before its round `step` (0-based): the one at hand, the one kept, or a new one."""
        if self._roster.epoch < 0 and self._path.exists():
            self._roster = Roster.read(self._path)
            if self._roster.epoch == epoch:
                self._tell_epoch(grid, "continues")
        if self._roster.epoch == epoch:
            return
        if step:
            raise RunDirectoryError(
                f"{self._path} does not hold the clients of epoch {epoch + 1}, which is under way; restore it."
            )
        answers = wait_for_clients(grid, self._attendance, key)
        counts, who = {node: answer.clients for node, answer in answers.items()}, plan.participation
        rounds_that_fit(sum(counts.values()), who.cohort_size, who.rounds_per_epoch)
        self._save(Roster(epoch, counts, {node: answer.digest for node, answer in answers.items()}))
        self._tell_epoch(grid, "begins")

    def _save(self, roster: Roster) -> None:
        write_atomically(self._path, roster.to_json().encode())
        self._roster = roster

    def _tell_epoch(self, grid: Grid, verb: str) -> None:
        """Log who is in the epoch, by names, keys and Flower's ids, and for whom the list of nodes has less now."""
        roster, nodes, there = self._roster, self._attendance.nodes, connected(grid)
        number, clients = roster.epoch + 1, sum(roster.nodes.values())
        log.info("epoch %d %s with %d clients behind %d nodes", number, verb, clients, len(roster.nodes))
        for key, count in sorted(roster.nodes.items()):
            name, now = nodes.called(key), self._attendance.most_clients(key) if nodes.admit(key) else 0
            found = f"its node id {there[key]}" if key in there else "and it is not connected now"
            log.info("node %s takes part with %d clients; its key is %s, %s", name, count, key, found)
            if now < count:
                log.warning(
                    "node %s counts for %d clients until epoch %d ends, as when it began; the list of nodes now has it for %d",
                    *(name, count, number, now),
                )
        self._on_epoch(roster)


def wait_for_clients(grid: Grid, attendance: Attendance, key: SecretKey) -> dict[str, Answer]:
    """Return what the nodes that take part answered, by key, once they hold `min_available` clients together.

    A count stands for as long as its node is connected under the same node id. Where others were waited for, all
    are asked once more when they are there: meanwhile a node may have been started again, or given other data.
    Raises `RunStoppedError` after the timeout.
    """
    deadline, listed = time.monotonic() + attendance.timeout, attendance.nodes
    answers: dict[str, Answer] = {}
    logged = ""
    while True:
        there = connected(grid)
        nodes = {name: node for name, node in there.items() if listed.admit(name)}
        answers = {
            name: one for name, one in answers.items() if name in nodes and one.node_id in (None, nodes[name])
        }
        counted = _present(answers)
        unasked = {name: node for name, node in nodes.items() if name not in counted}
        answers |= _ask(grid, unasked, attendance, key)
        present = _present(answers)
        others = _others(listed, there, answers)
        available = sum(one.clients for one in present.values())
        waited_for = "".join(f"; {why}: {', '.join(names)}" for why, names in others.items() if names)
        standing = (
            f"{available} clients behind {len(present)} connected nodes are available; "
            f"min_available={attendance.min_available} are needed{waited_for}"
        )
        is_enough = available >= attendance.min_available
        if is_enough and (attendance.unready is UnreadyNodes.without or not others[NodeStatus.UNREADY]):
            if not counted:
                for why, names in others.items():
                    for name, its_key in names.items():
                        log.warning(
                            "node %s is %s: the epoch begins without it; its key is %s", name, why, its_key
                        )
                return present
            answers = {name: one for name, one in answers.items() if name not in present}
            continue
        if time.monotonic() >= deadline:
            why = NodeStatus.UNREADY if is_enough else NodeStatus.OTHER_CODE
            advice = _ADVICE[why] if others[why] else "Start more nodes"
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


def digest_key(key: SecretKey, node: str) -> bytes:
    """Return the key of a node's digest: its own, so that no node can guess at the data of another."""
    return key.derive("clients of a node", node).reveal()


def _present(answers: Mapping[str, Answer]) -> dict[str, Answer]:
    return {name: one for name, one in answers.items() if one.status is NodeStatus.PRESENT}


def _others(
    listed: KnownNodes, there: Mapping[str, int], answers: Mapping[str, Answer]
) -> dict[NodeStatus, dict[str, str]]:
    """Return the nodes that do not take part by their status: {name: key}, sorted."""
    status = {name: NodeStatus.MUTE if listed.admit(name) else NodeStatus.STRANGER for name in there}
    status |= {name: one.status for name, one in answers.items()}
    status |= {node.key: NodeStatus.AWAY for node in listed if node.key not in there}
    return {
        why: dict(sorted((listed.called(key), key) for key, found in status.items() if found is why))
        for why in NodeStatus
        if why is not NodeStatus.PRESENT
    }


def _ask(grid: Grid, nodes: Mapping[str, int], attendance: Attendance, key: SecretKey) -> dict[str, Answer]:
    """Return what each of `nodes` (key -> node id) answers; one without a proper answer is left out."""
    messages = {
        name: Message(
            RecordDict({wire.HELD: ConfigRecord({wire.DIGEST_KEY: digest_key(key, name)})}),
            node,
            MessageType.QUERY,
        )
        for name, node in nodes.items()
    }
    replies = exchange(grid, [*messages.values()], timeout=attendance.query_timeout)
    asked = {message.metadata.message_id: name for name, message in messages.items()}
    answers = {}
    for reply in replies:
        name, report = asked[reply.metadata.reply_to_message_id], node_report(reply)
        if report.has_other_code:
            answers[name] = Answer(NodeStatus.OTHER_CODE)
        elif report.clients and not report.is_ready:
            answers[name] = Answer(NodeStatus.UNREADY)
        elif report.clients:
            clients = min(report.clients, attendance.most_clients(name))
            if clients < report.clients:
                log.warning(
                    "node %s declares %d clients; %d of them take part (most_clients in the list of nodes, or "
                    "max_clients_per_node)",
                    *(attendance.nodes.called(name), report.clients, clients),
                )
            answers[name] = Answer(NodeStatus.PRESENT, nodes[name], clients, report.digest)
    return answers

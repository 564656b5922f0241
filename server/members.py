"""The clients of a deployment: who is in the epoch under way, where they are in a round, and whose replies count.

A client is the node's number for it, so that a node must not renumber its clients in mid-epoch: one of them could be
heard twice. It declares a digest of who they are, in order, when an epoch begins (`server.attendance`) and again with
every reply; a node that reports another one counts as zero vectors until the next epoch.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from flwr.app import Message
from flwr.serverapp import Grid

from fedmf.errors import RunDirectoryError
from fedmf.plan import Plan
from fedmf.randomness import SecretKey
from fedmf.updates import wire
from server.attendance import Attendance, connected, digest_key, wait_for_clients, wait_for_one
from server.cohort import Heard, Presence, Roster, node_of
from server.exchange import node_report
from server.files import write_atomically

log = logging.getLogger(__name__)

ROSTER = "roster.json"


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
        clients = self._roster.cohort(plan, server_round)
        in_round = {node_of(client) for client in clients}
        there = wait_for_one(grid, self._attendance, in_round)
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
        return {wire.DIGEST_KEY: digest_key(self._key, node_of(clients[0]))}

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

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
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from flwr.app import Message
from flwr.serverapp import Grid

from fedmf.errors import RunDirectoryError
from fedmf.plan import Plan
from fedmf.randomness import SecretKey
from fedmf.updates import wire
from server import gathering
from server.cohort import Presence, Roster, node_of
from server.files import write_atomically
from server.gathering import (
    Attendance,
    admitted,
    answered_before,
    connected,
    declared_digest,
    digest_key,
    wait_for_clients,
)
from server.messages import says_other_code
from server.roll_call import presence, tell_changes, tell_epoch

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
        *,
        accept_copy: bool = False,
    ) -> None:
        """Keep the roster in `folder`; `on_epoch` is called with it when an epoch begins, and when it goes on after a restart.

        With `accept_copy` a run goes on, with a warning, though a node has answered a later round than it knows.
        """
        self._attendance = attendance
        self._on_epoch = on_epoch
        self._path = folder / ROSTER
        self._roster: Roster | None = None
        self._key: SecretKey | None = None
        self._accept_copy = accept_copy
        self._round = self._rounds = 0  # of the epoch, from 1, and how many it has
        self._declined: set[str] = set()  # nodes of the round under way that were said to have other code
        self._presence: Presence | None = None

    def gather(self, plan: Plan, epoch: int, step: int, grid: Grid, *, key: SecretKey) -> None:
        """Wait for enough clients at the start of an epoch and save the roster, before any client is asked.

        Raises `RunStoppedError` when too few connect in time, `RunDirectoryError` in the middle of an epoch whose
        roster is lost: its cohorts could not be drawn again, and a client might be heard twice.
        """
        self._key, self._round, self._rounds = key, step + 1, plan.participation.rounds_per_epoch
        if self._roster is None and self._path.exists():
            self._roster = _read(self._path)
            if self._roster.epoch == epoch:
                tell_changes(self._roster, self._attendance.nodes)
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
        said = False
        while (
            not (places := _places(clients, there := admitted(grid, nodes))) and time.monotonic() < deadline
        ):
            if not said:
                log.warning("waiting: no node of this round is connected")
            said = True
            time.sleep(gathering.PAUSE)
        self._presence = presence(nodes, self._roster, there)
        missing = {node_of(client) for client in clients} - {*there}
        for name in sorted(nodes.called(key) for key in missing if nodes.admit(key)):
            log.warning("node %s is not connected; its clients are silent in this round", name)
        self._declined = set()
        return places

    def presence(self) -> Presence | None:
        """Return which nodes the list names, without a list the epoch, which were connected last, and which are in the epoch."""
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
        """Say whether the node's clients are those that it declared, in the same order, all through the epoch.

        Raises `RunDirectoryError`, before anything is released, where the node had answered a later round of the epoch: an
        older state of the run was restored, with the count of its rounds, and would release the same noise on other replies.
        """
        assert self._roster is not None  # gather is called first
        node, said = node_of(clients[0]), declared_digest(reply)
        if self._round < (before := answered_before(reply)) <= self._rounds:  # a later round there is
            wrong = (
                f"node {self._attendance.nodes.called(node)} has answered round {before} of this epoch, and this server asks for "
                f"its round {self._round}: it holds an older state of the run."
            )
            if not self._accept_copy:
                raise RunDirectoryError(
                    f"{wrong} It would release the same noise on other replies. Only if you know that nobody saw a later round, "
                    "and that no other copy goes on: set accept_copy=True."
                )
            log.warning("%s It goes on, because accept_copy was set.", wrong)
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

"""Every round of a run computed again from its keys, and compared with what was released, bit for bit.

For each round the clients that were heard train again in this process, with the run's own keys, masks and noise row. A
node whose reply did not count (an error, a lie, silence after an announcement) has zeros in place of its values: which
nodes those were is found by trying, because the journal does not tell. A release that no such sum explains holds something
else than what its clients sent and its noise row once: another row, a row twice, a client twice, values of somebody else.

It uses the project's own code of client and server, so that it finds what faults do to a deployment, not what is wrong with the
mechanism: that is for the audit.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

import numpy as np
import torch
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from experiments.deployment.node import Node, node_settings
from experiments.deployment.node_app import Sources, reply_to
from experiments.deployment.server import build_deployed
from experiments.engines.grid import (
    CLIENT_APP_RAISED,
    InProcessWorker,
    LocalGrid,
    call_app,
    set_identity,
)
from experiments.settings.experiment import Experiment
from experiments.settings.schema import Settings
from experiments.soak.witness import digest_of
from fedmf.plan import Plan
from fedmf.randomness import SecretKey
from fedmf.updates.vectors import Vector
from server.cohort import Roster, SimulatedPopulation, node_of
from server.exchange import tasks_per_message
from server.messages import model_record
from server.state import Release, Secrets, ServerState, apply_release, begin_epoch, first_state
from server.strategy import FedMF


@dataclass
class Recounted:
    """What the recount found: `unexplained` rounds, nodes by round whose replies did not count, and the last model.

    `digests` has those of all models that follow from the releases, by round, that before the first one included.
    `is_undisturbed`: whether every client of every cohort was heard and counted, as in a run without faults.
    """

    model: Vector = field(repr=False)
    unexplained: list[int] = field(default_factory=list)
    zeros: dict[int, list[str]] = field(default_factory=dict)
    digests: dict[int, str] = field(default_factory=dict)
    is_undisturbed: bool = True


class Recount:
    """The rounds of a run with `settings`; `holdings` says by its key with which overrides each node was started."""

    def __init__(self, settings: Settings, holdings: Mapping[str, str]) -> None:
        torch.set_num_threads(1)
        set_identity()
        self._settings = settings
        self._experiment: Experiment = build_deployed(settings)
        self._holdings = dict(holdings)
        self._nodes = {key: Node.of(node_settings(text)) for key, text in holdings.items()}

    @property
    def plan(self) -> Plan:
        """The plan of the run."""
        return self._experiment.plan

    def of(
        self,
        releases: Sequence[Release],
        keys: Mapping[int, Sequence[bytes]],
        rosters: Mapping[int, Sequence[Roster]],
    ) -> Recounted:
        """Compute all of `releases` again, which are those of rounds 1, 2, ... each once."""
        experiment, plan = self._experiment, self.plan
        state = first_state(plan, experiment.initial, SecretKey(keys[0][0]))
        found = Recounted(state.model, digests={0: digest_of(state.model)})
        for release in releases:
            epoch = (release.round - 1) // plan.participation.rounds_per_epoch
            secrets = Secrets(epoch, SecretKey(keys[epoch][0]), None)
            before = replace(begin_epoch(plan, state), secrets=secrets)
            zeros = self._explained(before, rosters[epoch][0], release)
            if zeros is None:
                found.unexplained.append(release.round)
            elif zeros:
                found.zeros[release.round] = sorted(zeros)
            if zeros != () or len(release.answered) < release.cohort_size:
                found.is_undisturbed = False
            state = apply_release(plan, experiment.optimizer, replace(before, secrets=None), release, None)
            found.digests[release.round] = digest_of(state.model)
        found.model = state.model
        return found

    def _explained(self, state: ServerState, roster: Roster, release: Release) -> tuple[str, ...] | None:
        """Return the nodes, heard in a round, whose values must be zeros for its sum; None where no such sum is released."""
        attempt = _Attempt(release)
        strategy = FedMF(
            self.plan,
            self._experiment.optimizer,
            _Recorded(roster, self._nodes),
            state,
            commit=attempt.compare,
            tasks_per_message=tasks_per_message(self.plan),
            fixed_digest=self._experiment.fixed_digest,
        )
        asked = _asked(strategy, release)
        replies = {
            node: [(message, self._reply(node, message)) for message in sent] for node, sent in asked.items()
        }
        for zeros in _subsets(sorted(replies)):
            told = [
                _error(message) if node in zeros else reply
                for node, pairs in replies.items()
                for message, reply in pairs
            ]
            try:
                strategy.aggregate_train(release.round, told)
            except _Unlike:
                continue
            return zeros
        return None

    def _reply(self, node: str, message: Message) -> Message:
        """Return what an honest node answers to a task."""
        context = Context(1, 1, {"overrides": node}, RecordDict(), {"overrides": ""})
        sources = Sources(lambda key: self._nodes[str(key)], lambda _: self._settings)

        def app(message: Message, context: Context) -> Message:
            return reply_to(message, context, sources)

        return call_app(app, message, context)  # type: ignore[arg-type]  # it only calls it


class _Unlike(Exception):
    """A sum is not the one that was released."""


@dataclass(frozen=True)
class _Attempt:
    """Takes the place of the journal: lets a release pass that is the one recorded, bit for bit."""

    recorded: Release

    def compare(self, release: Release) -> None:
        """Raise `_Unlike` unless `release` is the one recorded."""
        if set(release.answered) != set(self.recorded.answered) or not np.array_equal(
            _bits(release.noisy_sum), _bits(self.recorded.noisy_sum)
        ):
            raise _Unlike


@dataclass(frozen=True)
class _Recorded(SimulatedPopulation):
    """The population of an epoch as its roster had it, all of it in this process."""

    roster: Roster
    nodes: Mapping[str, Node]

    def cohort(self, plan: Plan, server_round: int) -> list[str]:
        """Return the clients that were asked, or would have been."""
        return self.roster.cohort(plan, server_round)

    def places(self, clients: Sequence[str], grid: Any) -> dict[int, list[str]]:
        """Return the clients by node, each node by its place among the keys."""
        places: dict[int, list[str]] = {}
        for client in clients:
            places.setdefault(1 + sorted(self.nodes).index(node_of(client)), []).append(client)
        return places


def _asked(strategy: FedMF, release: Release) -> dict[str, list[Message]]:
    """Return the round's messages by the key of their node, of those nodes whose clients were heard."""
    heard = set(release.answered)
    arrays, grid = model_record(strategy.state.model), LocalGrid(InProcessWorker(ClientApp()))
    messages = strategy.configure_train(release.round, arrays, ConfigRecord(), grid)
    by_node: dict[str, list[Message]] = {}
    for number, message in enumerate(messages):
        message.metadata.__dict__["_message_id"] = f"{number:012d}"
        clients = list(message.content.config_records["task"]["client"])  # type: ignore[arg-type]
        if heard & set(map(str, clients)):
            by_node.setdefault(node_of(str(clients[0])), []).append(message)
    return by_node


def _error(message: Message) -> Message:
    return Message(Error(CLIENT_APP_RAISED, "counts as zeros"), reply_to=message)


def _subsets(names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Return all subsets of `names`, the empty one first.

    >>> list(_subsets(["a", "b"]))
    [(), ('a',), ('b',), ('a', 'b')]
    """
    for size in range(len(names) + 1):
        yield from combinations(names, size)


def _bits(vector: Vector) -> np.ndarray:
    return np.asarray(vector, np.float32).view(np.uint32)

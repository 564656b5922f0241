"""Which node plays which client. The privacy unit is the client; a node is only where its task runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from fedmf.checks import check_at_least
from fedmf.participation import epoch_cohorts
from fedmf.plan import Plan


@dataclass(frozen=True)
class ReplyPolicy:
    """When a round may be released: with at least `min_replies`, asked for at most `max_attempts` times.

    A public policy: it must not depend on private data, and silence is what it counts, never what was said.
    """

    min_replies: int = 0
    max_attempts: int = 3

    def __post_init__(self) -> None:
        check_at_least("population.min_replies", self.min_replies, 0)
        check_at_least("population.max_attempts", self.max_attempts, 1)


class Population(Protocol):
    """The clients of a run and where they are reached.

    Guarantee: `name(index)` is the same person's unit for the whole run, and two indices are never the same
    client.
    """

    def name(self, index: int) -> str:
        """Return the lasting name of client `index` (0 .. N-1), the unit of participation."""

    def node(self, index: int, nodes: Sequence[int]) -> int:
        """Return which of the connected `nodes` plays client `index`."""


class SimulatedPopulation:
    """Clients of a simulation: any node can play any client, so they are dealt out evenly."""

    def name(self, index: int) -> str:
        """Return the index as text."""
        return str(index)

    def node(self, index: int, nodes: Sequence[int]) -> int:
        """Return node number index modulo the number of nodes, in increasing order of node ids."""
        return sorted(nodes)[index % len(nodes)]


def cohort_of(plan: Plan, server_round: int) -> list[int]:
    """Return the client indices of `server_round` (1-based), in increasing order."""
    epoch, step = divmod(server_round - 1, plan.participation.rounds_per_epoch)
    cohorts = epoch_cohorts(
        plan.participation.clients,
        plan.participation.cohort_size,
        plan.participation.rounds_per_epoch,
        epoch=epoch,
        seed=plan.seed,
    )
    return [int(index) for index in np.sort(cohorts[step])]

"""Who takes part in a round, and where a client is reached.

The unit of privacy is the client; a node is only where its task runs.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum, StrEnum, auto
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np

from fedmf.checks import check_at_least
from fedmf.errors import RunDirectoryError, SettingError
from fedmf.participation import draw_cohort
from fedmf.plan import Plan
from fedmf.randomness import SecretKey

ROSTER = "roster.json"  # the `Roster` of a deployment's epoch under way


@dataclass(frozen=True)
class ReplyPolicy:
    """When a round may be released: with at least `min_replies`, asked for at most `max_attempts` times.

    A public policy: it must not depend on private data, so it counts silence and never what a reply holds.
    """

    min_replies: int = 0
    max_attempts: int = 3

    def __post_init__(self) -> None:
        check_at_least("min_replies", self.min_replies, 0)
        check_at_least("max_attempts", self.max_attempts, 1)

    def check_fits(self, cohort_size: int) -> None:
        """Raise `SettingError` if more replies are asked for than a cohort has clients."""
        if self.min_replies > cohort_size:
            raise SettingError(
                f"min_replies is {self.min_replies}, but a cohort has {cohort_size} clients; "
                f"it can be at most {cohort_size}."
            )


class Heard(Enum):
    """What a message's reply counts as: not come, zero vectors of its clients, or the values in it."""

    SILENCE = auto()
    ZEROS = auto()
    VALUES = auto()


class Population(Protocol):
    """The clients of a run and where they are reached. `grid` is a Flower Grid.

    Guarantee: a name stands for the same unit of privacy for the whole run, and two names never for the same one. A subclass
    whose clients are run by the code of this process may leave out `question` and `heard`.
    """

    def cohort(self, plan: Plan, server_round: int, grid: Any, *, key: SecretKey) -> dict[int, list[str]]:
        """Return {node id: the clients to ask there} in `server_round` (1-based): n in all, disjoint in an epoch.

        Clients of disconnected nodes are in no list. It may wait for nodes, and decides at an epoch's first round who takes
        part in the epoch. `key` is derived from the epoch's, for nothing but asking nodes who their clients are.
        """

    def question(self, clients: Sequence[str]) -> dict[str, bytes]:
        """Return what the message to the node of `clients` asks besides their tasks; empty for nothing."""
        return {}

    def heard(self, clients: Sequence[str], reply: Any, *, is_theirs: bool) -> Heard:
        """Return what `reply`, to the tasks of `clients`, counts as; no client's data may make it silence.

        `is_theirs` is whether any value in it has the tag of its own task: if not, it may come from another node.
        """
        return Heard.VALUES


class SimulatedPopulation(Population):
    """Clients of a simulation, named by their index and dealt out evenly: any node can run any client."""

    def cohort(self, plan: Plan, server_round: int, grid: Any, *, key: SecretKey) -> dict[int, list[str]]:
        """Give client i to node number i modulo the number of nodes, in increasing order of node ids."""
        nodes = sorted(grid.get_node_ids())
        places: dict[int, list[str]] = {}
        for index in cohort_indices(plan, server_round) if nodes else ():
            places.setdefault(nodes[index % len(nodes)], []).append(str(index))
        return places


def cohort_indices(plan: Plan, server_round: int, clients: int | None = None) -> list[int]:
    """Return the indices of the cohort of `server_round` (1-based) among `clients` (None: the plan's N), increasing."""
    who = plan.participation
    epoch, step = divmod(server_round - 1, who.rounds_per_epoch)
    clients = who.clients if clients is None else clients
    return sorted(draw_cohort(clients, who.cohort_size, epoch=epoch, step=step, seed=plan.seed).tolist())


class UnreadyNodes(StrEnum):
    """What an epoch of a deployment does about connected nodes that say that their data could not be loaded."""

    wait = "wait"
    without = "without"


@dataclass(frozen=True)
class Roster:
    """The clients of one epoch (0-based) of a deployment: how many each node holds.

    `nodes` maps a node's key (from its authenticated public key) to a count; a client is (key, the node's own
    number for it, 0 .. count-1), written KEY:NUMBER. The schedule is a function of the roster and the public
    seed alone, so that a restarted server draws the same one.

    `digests` are what nodes report of who their clients are, in order, under keys that go with the epoch's ("": nothing,
    their data could not be loaded). `changed` are nodes that have reported something else since.
    """

    epoch: int
    nodes: Mapping[str, int]
    digests: Mapping[str, str] = field(default_factory=dict)
    changed: tuple[str, ...] = ()

    def cohort(self, plan: Plan, server_round: int) -> list[str]:
        """Return the names of the clients of `server_round` (1-based), a round of this epoch."""
        return self.names(cohort_indices(plan, server_round, sum(self.nodes.values())))

    def names(self, indices: Iterable[int]) -> list[str]:
        """Return the names of clients by index: nodes in the order of their keys, each one's clients by number.

        >>> Roster(0, {"b7": 2, "a1": 1}).names([0, 1, 2])
        ['a1:0', 'b7:0', 'b7:1']
        """
        keys = sorted(self.nodes)
        ends = np.cumsum([self.nodes[key] for key in keys])  # after each node, the clients up to its last
        named = []
        for index in indices:
            place = int(np.searchsorted(ends, index, side="right"))
            named.append(f"{keys[place]}:{index - int(ends[place]) + self.nodes[keys[place]]}")
        return named

    def to_json(self) -> str:
        """Return the roster as text."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return the roster whose text is in a file. Raises `RunDirectoryError` for a missing or damaged one."""
        try:
            document = json.loads(path.read_text())
            return cls(**{**document, "changed": tuple(document["changed"])})
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunDirectoryError(f"{path} is damaged ({error}). Restore the checkpoint folder.") from error


def node_of(client: str) -> str:
    """Return the key of the node that holds a client of a deployment.

    >>> node_of("b7:12")
    'b7'
    """
    return client.rpartition(":")[0]

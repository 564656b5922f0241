"""What can be watched of a run while it goes on: the table of its figures, and one value that holds them all.

Whoever plays the run puts a new value in the place of the old one (`Watch`); whoever looks, from another thread, takes the
value that is there. So nobody waits for anybody, and no figure is half changed.

Figures of rounds are those of metrics.jsonl, and come from its rows: cohort and replies by number, seconds, epsilon. Which
clients were silent, and when, no privacy statement covers, so that no figure has a client, and none counts the clients heard
before their round is released; who could not train is in no figure at all (docs/alerts.md).
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from fedmf.accounting import Ledger
from fedmf.plan import Plan
from fedmf.randomness import SecretKey
from server.cohort import Population, Presence, node_of
from server.pulling import pulls_under_way
from server.state import ServerState


@dataclass(frozen=True)
class Figures:
    """What is known of a run; None: not yet, or nothing that this run has.

    Times with `clock` are seconds of a clock that never falls, the others are of the day. `nodes` are those that the clients of
    the round under way are behind, `silent` those from which no client was heard when they were last asked. `expected` are
    those of the list, whichever are in the epoch, `present` those of them that are connected, and `in_epoch` those that are in it.
    """

    run: str
    engine: str
    rounds_planned: int
    epochs_planned: int
    clients: int
    cohort_size: int
    epsilon_planned: float
    epsilon_limit: float | None
    delta: float
    is_private: bool
    session_started: float
    progress_clock: float
    rounds_released: int = 0
    epochs_begun: int = 0
    replies: int | None = None
    round_seconds: float | None = None
    last_round: float | None = None
    epsilon_spent: float = 0.0
    is_waiting: bool = False
    nodes: int | None = None
    connected: int | None = None
    silent: int | None = None
    expected: int | None = None
    present: int | None = None
    in_epoch: int | None = None


@dataclass(frozen=True)
class Gauge:
    """A figure as Prometheus sees it: its name, its unit, what it means, and its value; None leaves it out."""

    name: str
    unit: str
    meaning: str
    value: Callable[[Figures], float | None]


GAUGES = (
    Gauge(
        "fedmf_rounds_released",
        "rounds",
        "Rounds released since the run began, in all its sessions",
        lambda seen: seen.rounds_released,
    ),
    Gauge("fedmf_rounds_planned", "rounds", "Rounds of the whole run", lambda seen: seen.rounds_planned),
    Gauge(
        "fedmf_epochs_begun",
        "epochs",
        "Epochs that have begun, each of which counts whole",
        lambda seen: seen.epochs_begun,
    ),
    Gauge("fedmf_epochs_planned", "epochs", "Epochs of the whole run", lambda seen: seen.epochs_planned),
    Gauge("fedmf_clients", "clients", "Clients that the statement names", lambda seen: seen.clients),
    Gauge("fedmf_cohort_size", "clients", "Clients of a round, as planned", lambda seen: seen.cohort_size),
    Gauge(
        "fedmf_replies",
        "clients",
        "Clients heard in the last released round, as in metrics.jsonl",
        lambda seen: seen.replies,
    ),
    Gauge(
        "fedmf_round_seconds",
        "seconds",
        "Time of the last released round, as in metrics.jsonl",
        lambda seen: seen.round_seconds,
    ),
    Gauge(
        "fedmf_last_round_timestamp_seconds",
        "Unix time",
        "When the last round of this session was released",
        lambda seen: seen.last_round,
    ),
    Gauge(
        "fedmf_session_started_timestamp_seconds",
        "Unix time",
        "When this session began, or the run was resumed",
        lambda seen: seen.session_started,
    ),
    Gauge(
        "fedmf_epsilon_spent",
        "epsilon",
        "Epsilon of the epochs that have begun, +Inf without noise",
        lambda seen: seen.epsilon_spent,
    ),
    Gauge(
        "fedmf_epsilon_planned",
        "epsilon",
        "Epsilon of all planned epochs, +Inf without noise",
        lambda seen: seen.epsilon_planned,
    ),
    Gauge(
        "fedmf_epsilon_limit",
        "epsilon",
        "privacy.max_epsilon; left out without one",
        lambda seen: seen.epsilon_limit,
    ),
    Gauge("fedmf_delta", "probability", "Delta of every epsilon here", lambda seen: seen.delta),
    Gauge(
        "fedmf_private",
        "0 or 1",
        "1 where the statement calls the run private, 0 for a run without noise or with secrets from its seed",
        lambda seen: float(seen.is_private),
    ),
    Gauge(
        "fedmf_waiting_for_nodes",
        "0 or 1",
        "1 while a deployed run waits for enough clients, or for a node of its round",
        lambda seen: float(seen.is_waiting),
    ),
    Gauge(
        "fedmf_round_nodes",
        "nodes",
        "Nodes that the clients of the round under way are behind; of a deployed run",
        lambda seen: seen.nodes,
    ),
    Gauge(
        "fedmf_round_nodes_connected",
        "nodes",
        "Those of them that were connected when the round began; of a deployed run",
        lambda seen: seen.connected,
    ),
    Gauge(
        "fedmf_round_nodes_silent",
        "nodes",
        "Nodes from which no client was heard in the last round that asked any of theirs, connected or not; of a deployed run",
        lambda seen: seen.silent,
    ),
    Gauge(
        "fedmf_nodes_expected",
        "nodes",
        "Nodes of the list, in the epoch or not; without a list those of the epoch; of a deployed run",
        lambda seen: seen.expected,
    ),
    Gauge(
        "fedmf_nodes_connected",
        "nodes",
        "Those of the expected nodes that were connected when the round began; of a deployed run",
        lambda seen: seen.present,
    ),
    Gauge(
        "fedmf_nodes_in_epoch",
        "nodes",
        "Those of the expected nodes that are in the epoch under way, connected or not; of a deployed run",
        lambda seen: seen.in_epoch,
    ),
    Gauge(
        "fedmf_pulls_under_way",
        "nodes",
        "Requests for a reply that are under way, at most one a node: above 1 nodes announce replies and deliver them slowly; of "
        "a deployed run",
        lambda seen: None if seen.nodes is None else pulls_under_way(),
    ),
)
"""All figures with a number; beside them stands `fedmf_run_info`, whose labels are `INFO`."""

INFO = ("run", "engine", "version")


def table() -> str:
    """Return all metrics as a table of Markdown."""
    rows = [
        ("fedmf_run_info", "info", "1", f"Labels {', '.join(INFO)}; `run` is the name of the run's folder"),
        *((gauge.name, "gauge", gauge.unit, gauge.meaning) for gauge in GAUGES),
    ]
    lines = [
        ("Metric", "Type", "Unit", "Meaning"),
        ("---",) * 4,
        *((f"`{row[0]}`", *row[1:]) for row in rows),
    ]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def health(seen: Figures, within: float, now: float) -> tuple[bool, dict[str, Any]]:
    """Return whether a round, or the session, has ended or begun within the last `within` seconds, and what to say of it.

    `now` is of the clock of `Figures.progress_clock`.
    """
    since = now - seen.progress_clock
    is_well = since <= within
    return is_well, {
        "status": "ok" if is_well else "late",
        "run": seen.run,
        "waiting_for_nodes": seen.is_waiting,
        "rounds_released": seen.rounds_released,
        "rounds_planned": seen.rounds_planned,
        "seconds_since_last_round": round(since, 1),
        "late_after_seconds": within,
    }


class Watch:
    """The figures of a run as they are now, for whoever plays it to change and for everybody to read."""

    def __init__(
        self,
        plan: Plan,
        *,
        run: str,
        engine: str,
        reproducible: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        planned = plan.spent()
        self._clock = clock
        self._of_round, self._silent = set[str](), set[str]()  # keys of nodes
        self.figures = Figures(
            run=run,
            engine=engine,
            rounds_planned=plan.participation.rounds,
            epochs_planned=plan.participation.epochs,
            clients=plan.participation.clients,
            cohort_size=plan.participation.cohort_size,
            epsilon_planned=planned.epsilon,
            epsilon_limit=plan.privacy.max_epsilon,
            delta=plan.privacy.delta,
            is_private=planned.is_private and plan.sigma > 0 and not reproducible,
            session_started=time.time(),
            progress_clock=clock(),
        )

    def begin(self, plan: Plan, state: ServerState, row: Mapping[str, Any] | None) -> None:
        """Take over what the run's earlier sessions did: the state to go on from, and the last row of its metrics."""
        self._change(
            rounds_released=state.round,
            epochs_begun=len(state.ledger.entries),
            epsilon_spent=plan.spent_on(state.ledger).epsilon if state.ledger != Ledger() else 0.0,
            replies=None if row is None else row["replies"],
            round_seconds=None if row is None else row["seconds"],
            progress_clock=self._clock(),
        )

    def on_row(self, row: Mapping[str, Any], /) -> None:
        """Take the row that a released round has in metrics.jsonl; without seconds it is one of an earlier session."""
        self._change(
            rounds_released=row["round"],
            epochs_begun=row["epoch"],
            replies=row["replies"],
            round_seconds=row["seconds"],
            epsilon_spent=row["epsilon"],
            last_round=self.figures.last_round if row["seconds"] is None else time.time(),
            progress_clock=self._clock(),
        )

    def on_heard(self, number: int, asked: Sequence[str], answered: Sequence[str]) -> None:
        """Count the nodes of a deployment from which no client was heard when last asked; clients are KEY:NUMBER.

        The nodes of this round's clients that are not connected count, as `found` was told of them.
        """
        if self.figures.nodes is not None:
            heard = {node_of(client) for client in answered}
            self._silent = (self._silent | self._of_round) - heard
            self._change(silent=len(self._silent))

    def over(self, population: Population) -> Population:
        """Return `population`, watched while it waits for nodes."""
        return _WatchedPopulation(population, self)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Say that the run waits for nodes while the block lasts."""
        self._change(is_waiting=True)
        try:
            yield
        finally:
            self._change(is_waiting=False)

    def found(
        self, clients: Sequence[str], places: Mapping[int, Sequence[str]], presence: Presence | None
    ) -> None:
        """Count the nodes that a round's clients are behind, those that are connected, and how many are expected at all.

        A node that nobody expects any more, in no list and not in the epoch, is no longer silent: it is gone.
        """
        connected = {node_of(client) for group in places.values() for client in group}
        self._of_round = {node_of(client) for client in clients}
        self._change(nodes=len(self._of_round), connected=len(connected))
        if presence is not None:
            self._silent &= presence.expected | presence.in_epoch
            expected, present, in_epoch = presence.counts()
            self._change(expected=expected, present=present, in_epoch=in_epoch)

    def _change(self, **values: Any) -> None:
        self.figures = replace(self.figures, **values)


class _WatchedPopulation:
    """A deployment's population that tells a watch when it waits for nodes, and which it found, by number."""

    def __init__(self, population: Population, watch: Watch) -> None:
        self._population, self._watch = population, watch

    def gather(self, plan: Plan, epoch: int, step: int, grid: Any, *, key: SecretKey) -> None:
        """Wait for enough clients."""
        with self._watch.waiting():
            self._population.gather(plan, epoch, step, grid, key=key)

    def cohort(self, plan: Plan, server_round: int) -> list[str]:
        """Return the clients of a round."""
        return self._population.cohort(plan, server_round)

    def places(self, clients: Sequence[str], grid: Any) -> dict[int, list[str]]:
        """Return which clients each connected node plays."""
        with self._watch.waiting():
            places = self._population.places(clients, grid)
        self._watch.found(clients, places, self._population.presence())
        return places

    def presence(self) -> Presence | None:
        """Return which nodes there are."""
        return self._population.presence()

    def question(self, clients: Sequence[str]) -> dict[str, bytes]:
        """Return what else a node is asked."""
        return self._population.question(clients)

    def declines(self, clients: Sequence[str], reply: Any) -> bool:
        """Say whether a reply leaves its clients silent."""
        return self._population.declines(clients, reply)

    def admits(self, clients: Sequence[str], reply: Any) -> bool:
        """Say whether a reply counts."""
        return self._population.admits(clients, reply)

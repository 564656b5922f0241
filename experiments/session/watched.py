"""What is watched of a run while it goes on: one value that holds all its figures, and who changes it.

Whoever plays the run puts a new value in the place of the old one (`Watch`); whoever looks, from another thread, takes the
value that is there. So nobody waits for anybody, and no figure is half changed.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from experiments.session.figures import Figures
from fedmf.accounting import Ledger
from fedmf.accounting.caveats import LARGEST
from fedmf.plan import Plan
from fedmf.randomness import SecretKey
from server.cohort import Population, Presence, node_of
from server.state import ServerState


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
            is_private=plan.sigma > 0 and planned.epsilon <= LARGEST and not reproducible,
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

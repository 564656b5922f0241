"""Sabotage of the sum, of who takes part in it, and of the model before and between rounds."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Message
from flwr.serverapp import Grid

import server.strategy
from experiments.audit.sabotage.hooks import ExamplesOf, Sabotage, patched
from fedmf.plan import Plan
from fedmf.register import Register
from fedmf.updates import wire
from fedmf.updates.vectors import Vector
from server.cohort import SimulatedPopulation
from server.state import Release, Secrets, ServerState, apply_release, make_release
from server.strategy import FedMF

_decode = wire.decode


class StaleSum(FedMF):
    """A strategy whose sum is not emptied at once: everyone's update is added again a round later."""

    _before: npt.NDArray[np.float64] | None = None

    def _add(self, replies: Iterable[Message]) -> tuple[npt.NDArray[np.float64], list[str]]:
        total, answered = super()._add(replies)
        stale, self._before = self._before, total
        return (total if stale is None else total + stale), answered


class TakesAwayTheLast(FedMF):
    """A strategy that sums changes: each client's update less its update of the epoch before."""

    _last: dict[str, npt.NDArray[np.float64]] | None = None

    def _add(self, replies: Iterable[Message]) -> tuple[npt.NDArray[np.float64], list[str]]:
        last = self._last = {} if self._last is None else self._last
        total, answered = super()._add([])
        for reply in replies:
            part, who = super()._add([reply])
            message = ",".join(who)
            total = total + part - last.get(message, 0.0)
            last[message] = part.copy()
            answered = [*answered, *who]
        return total, answered


class CountsTwice(FedMF):
    """A strategy that adds every reply that comes, a second one of a client too."""

    def _add(self, replies: Iterable[Message]) -> tuple[npt.NDArray[np.float64], list[str]]:
        firsts: dict[str, Message] = {}
        seconds: dict[str, Message] = {}
        for reply in replies:
            question = reply.metadata.reply_to_message_id
            (seconds if question in firsts else firsts)[question] = reply
        total, answered = super()._add(firsts.values())
        return total + super()._add(seconds.values())[0], answered


def every_reply(grid: Grid, messages: Sequence[Message], *, timeout: float) -> Iterator[Message]:
    """Send `messages`, and yield all replies to each."""
    for question in grid.push_messages(messages):
        yield from grid.pull_messages([question])


class TakesPartTwice(SimulatedPopulation):
    """Cohorts in which the first client of an epoch's first round takes part in its second round too."""

    def cohort(self, plan: Plan, server_round: int) -> list[str]:
        """Return the round's clients; in the second round of an epoch one of them is another."""
        step = (server_round - 1) % plan.participation.rounds_per_epoch
        names = super().cohort(plan, server_round)
        if step == 1:
            names[0] = super().cohort(plan, server_round - 1)[0]
        return names


@contextmanager
def without_a_register() -> Iterator[None]:
    """Forget who took part in the epoch."""
    with patched((Register, "spend", lambda self, clients: self)):
        yield


@contextmanager
def divided_by_who_spoke() -> Iterator[None]:
    """Average over the clients whose update is not zero, in place of the planned number."""
    spoke: list[bool] = []

    def decode(data: object, bounds: wire.Bounds, *, kept: int) -> Vector:
        values = _decode(data, bounds, kept=kept)
        spoke.append(bool(values.any()))
        return values

    def make(plan: Plan, state: ServerState, *given: Any, **more: Any) -> tuple[Release, Secrets]:
        release, secrets = make_release(plan, state, *given, **more)
        factor = plan.participation.cohort_size / max(1, sum(spoke))
        spoke.clear()
        return replace(release, noisy_sum=(release.noisy_sum * factor).astype(np.float32)), secrets

    with patched((wire, "decode", decode), (server.strategy, "make_release", make)):
        yield


@contextmanager
def momentum_of_the_exact_sum() -> Iterator[None]:
    """Let the server optimizer keep the sum without its noise; the model of the round itself has the noise."""
    exact: list[npt.NDArray[np.float64]] = []

    def make(plan: Plan, state: ServerState, rotated_sum: Any, *given: Any, **more: Any) -> Any:
        exact[:] = [plan.rotation.unrotate(rotated_sum)]
        return make_release(plan, state, rotated_sum, *given, **more)

    def apply(plan: Plan, optimizer: Any, state: ServerState, release: Release, secrets: Any) -> ServerState:
        after = apply_release(plan, optimizer, state, release, secrets)
        noise = (release.noisy_sum - exact[0]) / plan.denominator
        velocity = np.asarray(after.slots["velocity"] - noise, np.float32)
        return replace(after, slots={**after.slots, "velocity": velocity})

    with patched((server.strategy, "make_release", make), (server.strategy, "apply_release", apply)):
        yield


def warmed_up_on_clients(start: Vector, plan: Plan, examples_of: ExamplesOf) -> Vector:
    """Return an initial model that was moved by a hundredth of every known vector of the first epoch."""
    who, moved = plan.participation, start.copy()
    for server_round in range(1, who.rounds_per_epoch + 1):
        for name in SimulatedPopulation().cohort(plan, server_round):
            held = examples_of(int(name), server_round)
            if held.x[0].shape == start.shape:
                moved += 0.01 * np.nan_to_num(held.x[0], posinf=0, neginf=0)
    return moved


SUMS = (
    Sabotage(
        "a stale sum",
        "everyone's update is added again a round later",
        caught_by=("coupled sensitivity", "coupled own round"),
        strategy=StaleSum,
    ),
    Sabotage(
        "changes in place of updates",
        "each client's update of the epoch before is taken away from the one that it sends",
        caught_by=("coupled sensitivity",),
        strategy=TakesAwayTheLast,
    ),
    Sabotage(
        "a second participation",
        "one client takes part in two rounds of an epoch",
        caught_by=("coupled sensitivity", "coupled own round"),
        population=TakesPartTwice,
        patches=without_a_register,
    ),
    Sabotage(
        "a client that answers twice counts twice",
        "a second reply to the same task is added to the sum like the first",
        caught_by=("coupled sensitivity",),
        hostile=True,
        strategy=CountsTwice,
        patches=lambda: patched((server.strategy, "exchange", every_reply)),
    ),
    Sabotage(
        "divided by who spoke",
        "the sum is divided by the number of updates that are not zero",
        caught_by=("coupled sensitivity",),
        patches=divided_by_who_spoke,
    ),
    Sabotage(
        "momentum that leaks",
        "the server optimizer keeps the sum without its noise",
        caught_by=("residual correlation",),
        patches=momentum_of_the_exact_sum,
    ),
    Sabotage(
        "an initial model that leaks",
        "the model that is sent first was warmed up on clients' data",
        caught_by=("coupled own round",),
        start=warmed_up_on_clients,
    ),
)

"""Sabotage of what survives a crash: noise that is drawn anew, and a journal that lacks the noise."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import server.journal
import server.strategy
from experiments.audit.sabotage.hooks import Restored, Sabotage, patched
from fedmf.plan import Plan
from server.journal import append
from server.state import Release, Secrets, ServerState, make_release


def drawn_anew(restored: Restored, plan: Plan) -> Restored:
    """Return the state one round earlier than the journal, under another key: the round is released once more."""
    state, replayed = restored
    if len(replayed) < 2 or state.secrets is None:
        return restored
    before = replayed[-2][0]
    epoch, _ = before.position(plan)
    secrets = Secrets(epoch, state.secrets.key.derive("drawn anew"), None)
    return replace(before, secrets=secrets), replayed[:-1]


@contextmanager
def written_before_the_noise() -> Iterator[None]:
    """Write to the journal the sum of a round as it was before its noise was added."""
    exact: list[np.ndarray[Any, Any]] = []

    def make(plan: Plan, state: ServerState, rotated_sum: Any, *given: Any, **more: Any) -> Any:
        exact[:] = [np.asarray(plan.rotation.unrotate(rotated_sum), np.float32)]
        return make_release(plan, state, rotated_sum, *given, **more)

    def write(path: Path, release: Release) -> None:
        append(path, replace(release, noisy_sum=exact[0]))

    with patched((server.strategy, "make_release", make), (server.journal, "append", write)):
        yield


RECOVERY = (
    Sabotage(
        "noise drawn anew after a resume",
        "a round that was released is released again with other noise",
        caught_by=("coupled journal",),
        resumes=True,
        restored=drawn_anew,
    ),
    Sabotage(
        "a journal ahead of the noise",
        "the journal holds the sum without its noise",
        caught_by=("coupled journal",),
        resumes=True,
        patches=written_before_the_noise,
    ),
)

"""Faults that the audit puts into the pipeline on purpose, from outside: no product code has a switch for any of them.

Five controls belong to the command. Each must be caught by the tests that it names, or the command exits 1.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import numpy as np

import client.privatize
import fedmf.mechanisms.noise
import server.strategy
from experiments.audit.scene import Scene
from fedmf.mechanisms.workload import Float64
from fedmf.plan import Plan
from fedmf.randomness import SecretKey, gaussian_row
from fedmf.updates import wire
from server.state import FixedPoint, make_release
from server.strategy import FedMF


@dataclass(frozen=True)
class Sabotage:
    """One fault. `caught_by` names the tests that must refute it; `applies` says in which scenes it changes anything."""

    name: str
    sentence: str
    caught_by: tuple[str, ...]
    patches: Callable[[], AbstractContextManager[Any]]
    applies: Callable[[Scene], bool] = lambda scene: True


@contextmanager
def patched(*replacements: tuple[object, str, Any]) -> Iterator[None]:
    """Set each (object, attribute) to a value for the block, and put back what was there."""
    with ExitStack() as stack:
        for owner, name, value in replacements:
            stack.enter_context(mock.patch.object(owner, name, value))
        yield


def half_noise() -> AbstractContextManager[None]:
    """Halve the noise of each round."""

    def make(plan: Plan, *given: Any, **more: Any) -> Any:
        return make_release(replace(plan, noise_multiplier=plan.noise_multiplier / 2), *given, **more)

    return patched((server.strategy, "make_release", make))


def _without_a_coordinate(key: SecretKey, row: int, dimension: int) -> Float64:
    drawn = gaussian_row(key, row, dimension)
    drawn[0] = 0
    return drawn


def stale_sum() -> AbstractContextManager[None]:
    """Add every sum again a round later."""
    honest, before = FedMF._add, [np.zeros(1)]

    def add(self: FedMF, replies: Any) -> Any:
        total, *others = honest(self, replies)
        before.append(total)
        return total + (before[-2] if self.state.round else 0.0), *others

    return patched((FedMF, "_add", add))


def one_mask() -> AbstractContextManager[None]:
    """Give all clients of a round the same mask key."""
    honest = SecretKey.mask_key
    return patched((SecretKey, "mask_key", lambda self, client, step: honest(self, "everyone", step)))


_fit = FixedPoint.fit
UNCLIPPED = (
    *((module, name, lambda values, *_, **more: values) for module in (client.privatize, wire) for name in ("clip_l2", "clip_linf")),
    (FixedPoint, "fit", staticmethod(lambda bound, terms: _fit(None, terms))),
)  # fmt: skip
VARIANCE = ("residual variance",)
HALF_NOISE = Sabotage(
    "noise halved",
    "the server adds half of the calibrated noise",
    (*VARIANCE, "attack on many runs"),
    half_noise,
)
CONTROLS = (
    HALF_NOISE,
    Sabotage(
        "a coordinate without noise",
        "one coordinate is given no noise",
        VARIANCE,
        lambda: patched((fedmf.mechanisms.noise, "gaussian_row", _without_a_coordinate)),
    ),
    Sabotage(
        "no clipping",
        "nothing is clipped, by client or server",
        ("coupled sensitivity",),
        lambda: patched(*UNCLIPPED),
    ),
    Sabotage(
        "a stale sum",
        "everyone's update is added again a round later",
        ("coupled sensitivity", "coupled own round"),
        stale_sum,
    ),
    Sabotage(
        "one mask for all",
        "all clients of a round are given the same mask key",
        ("mask correlation",),
        one_mask,
        lambda scene: scene.keep_probability < 1,
    ),
)

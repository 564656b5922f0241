"""Sabotage of the bounds on what a client sends: for everyone or for one, in the whole run or in some rounds of it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

import client.app
import client.privatize
import server.strategy
from client.app import Task
from experiments.audit.sabotage.hooks import Patches, Sabotage, patched
from fedmf.plan import Plan
from fedmf.updates import wire
from fedmf.updates.client_plan import ClientPlan
from fedmf.updates.vectors import Vector
from fedmf.updates.wire import Bounds, Values
from server.aggregation import UNCLIPPED_BOUND, FixedPoint
from server.state import ServerState, begin_epoch

SENSITIVITY = ("coupled sensitivity",)
LARGER = 3.0  # times the bounds
FAVOURED = "7"

Replacement = tuple[object, str, Any]
When = Callable[[Plan, int, int], bool]
"""Whether something is broken in a round of a plan, given its epoch and step, both 0-based."""

_fit = FixedPoint.fit
_decode = wire.decode
_mask = client.app.mask


def _as_given(values: Any, bound: float, **_: Any) -> Any:
    return values


def _unbounded(bound: float | None, terms: int) -> FixedPoint:
    return _fit(None, terms)


def _passing_on(data: object, bounds: Bounds, *, kept: int) -> Vector:
    """Decode a reply; what is not finite becomes as large as the server's sum takes, because it knows no NaN."""
    if bounds.value_type == "float32" and isinstance(data, bytes) and len(data) == 4 * kept:
        values = np.frombuffer(data, "<f4")
        if not np.isfinite(values).all():
            return np.full(kept, UNCLIPPED_BOUND, np.float32)
    return _decode(data, bounds, kept=kept)


# Clip nowhere: not at the client, not when a reply is decoded, not in the sum.
WITHOUT_CLIPPING: tuple[Replacement, ...] = (
    (client.privatize, "clip_l2", _as_given),
    (client.privatize, "clip_linf", _as_given),
    (wire, "clip_l2", _as_given),
    (wire, "clip_linf", _as_given),
    (FixedPoint, "fit", _unbounded),
)

# Trust clients to clip: not when a reply is decoded, not in the sum.
WITHOUT_CLIPPING_AT_THE_SERVER = WITHOUT_CLIPPING[2:]

# Trust them to look for what is not finite, too.
WITHOUT_A_LOOK_AT_THE_SERVER: tuple[Replacement, ...] = (
    (wire, "decode", _passing_on),
    (FixedPoint, "fit", _unbounded),
)

# Let through what is not finite, at the client and at the server.
WITHOUT_A_LOOK_FOR_NAN: tuple[Replacement, ...] = (
    (client.privatize, "zero_if_not_finite", lambda rotated: rotated),
    (client.privatize, "clip_l2", _as_given),
    (wire, "decode", _passing_on),
    (FixedPoint, "fit", _unbounded),
)


@contextmanager
def broken(
    replacements: tuple[Replacement, ...], when: When = lambda plan, epoch, step: True
) -> Iterator[None]:
    """Put the replacements in place of the product's functions, in the rounds that `when` names."""
    is_due = [False]

    def begin(plan: Plan, state: ServerState) -> ServerState:
        is_due[0] = when(plan, *state.position(plan))
        return begin_epoch(plan, state)

    def switched(owner: object, name: str, value: Any) -> Replacement:
        honest = getattr(owner, name)

        def chosen(*given: Any, **more: Any) -> Any:
            return (value if is_due[0] else honest)(*given, **more)

        return owner, name, staticmethod(chosen) if isinstance(owner, type) else chosen

    with patched((server.strategy, "begin_epoch", begin), *(switched(*each) for each in replacements)):
        yield


def in_round(number: int) -> When:
    """Return what names one round of a run, 1-based."""
    return lambda plan, epoch, step: epoch * plan.participation.rounds_per_epoch + step + 1 == number


def _in_the_last_epoch(plan: Plan, epoch: int, step: int) -> bool:
    return epoch == plan.participation.epochs - 1


@contextmanager
def larger_bounds_for_one() -> Iterator[None]:
    """Hold one client, and the server what comes from it, to larger bounds than all others."""
    theirs: set[bytes] = set()

    def larger(bounds: Bounds) -> Bounds:
        l2_norm, linf_norm = (
            None if norm is None else LARGER * norm for norm in (bounds.l2_norm, bounds.linf_norm)
        )
        return replace(bounds, l2_norm=l2_norm, linf_norm=linf_norm)

    def mask(update: Vector, task: Task, plan: ClientPlan, **more: Any) -> Values:
        if task.client != FAVOURED:
            return _mask(update, task, plan, **more)
        values = _mask(update, task, replace(plan, bounds=larger(plan.bounds)), **more)
        theirs.add(wire.to_bytes(values))
        return values

    def decode(data: object, bounds: Bounds, *, kept: int) -> Vector:
        return _decode(data, larger(bounds) if data in theirs else bounds, kept=kept)

    with patched(
        (client.app, "mask", mask), (wire, "decode", decode), (FixedPoint, "fit", staticmethod(_unbounded))
    ):
        yield


def _unclipped(name: str, sentence: str, patches: Patches, clients: int = 0) -> Sabotage:
    """Return a sabotage that lets a client's vector be larger than is accounted."""
    return Sabotage(name, sentence, SENSITIVITY, clients=clients, patches=patches)


def _not_finite_in(number: int) -> Sabotage:
    return _unclipped(
        f"what is not finite is passed on in round {number}",
        f"an update that is not finite is not made zero in round {number} of a run, and in no other",
        partial(broken, WITHOUT_A_LOOK_FOR_NAN, in_round(number)),
    )


CLIPPING = (
    _unclipped("no clipping", "nothing is clipped, by client or server", partial(broken, WITHOUT_CLIPPING)),
    _unclipped(
        "no clipping in the last epoch",
        "nothing is clipped once the last epoch has begun",
        partial(broken, WITHOUT_CLIPPING, _in_the_last_epoch),
    ),
    _unclipped(
        "no clipping in round 5",
        "nothing is clipped in round 5 of a run, by client or server",
        partial(broken, WITHOUT_CLIPPING, in_round(5)),
    ),
    _unclipped(
        "larger bounds for one client",
        f"client {FAVOURED} is held to {LARGER:g} times the bounds of all others",
        larger_bounds_for_one,
        clients=int(FAVOURED) + 1,
    ),
    Sabotage(
        "no clipping by the server",
        "clients clip, and a reply is taken as it comes",
        SENSITIVITY,
        hostile=True,
        patches=partial(broken, WITHOUT_CLIPPING_AT_THE_SERVER),
    ),
    Sabotage(
        "the server passes on what is not finite",
        "clients look for what is not finite, and a reply is taken as it comes",
        SENSITIVITY,
        hostile=True,
        patches=partial(broken, WITHOUT_A_LOOK_AT_THE_SERVER),
    ),
    _unclipped(
        "what is not finite is passed on",
        "an update that is not finite is not made zero",
        partial(broken, WITHOUT_A_LOOK_FOR_NAN),
    ),
    *(_not_finite_in(number) for number in (1, 3, 5)),
)

"""Sabotage of how much noise there is: by the plan, by round and epoch, by what was sent."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

import client.privatize
import server.strategy
from experiments.audit.sabotage.hooks import Sabotage, patched
from fedmf.plan import Plan
from fedmf.randomness import SecretKey
from fedmf.updates.clipping import clip_l2, l2_norm
from fedmf.updates.vectors import Vector
from server.state import Release, Secrets, ServerState, make_release

VARIANCE = ("residual variance",)


def scaled(factor: float) -> Callable[[Plan], Plan]:
    """Return what makes a plan with `factor` times the calibrated noise."""
    return lambda plan: plan.with_noise_multiplier(plan.noise_multiplier * factor)


def for_the_mean(plan: Plan) -> Plan:
    """Return the plan whose noise is calibrated for the mean update, and added to the sum."""
    return plan.with_noise_multiplier(plan.noise_multiplier / plan.denominator)


def by_row_norms(plan: Plan) -> Plan:
    """Return the plan that takes the smallest row norm of C for its sensitivity, which the largest column norm is."""
    encoder = plan.factorization.epochs[0].stream.materialize_strategy()
    wrong = float(np.linalg.norm(encoder, axis=1).min())
    return plan.with_noise_multiplier(
        plan.noise_multiplier * wrong / plan.factorization.epochs[0].sensitivity
    )


@contextmanager
def by_round(factor_at: Callable[[Plan, int, int], float]) -> Iterator[None]:
    """Multiply the noise of each round by `factor_at(plan, epoch, step)`, both 0-based."""

    def make(plan: Plan, state: ServerState, *given: Any, **more: Any) -> tuple[Release, Secrets]:
        factor = factor_at(plan, *state.position(plan))
        return make_release(plan.with_noise_multiplier(plan.noise_multiplier * factor), state, *given, **more)

    with patched((server.strategy, "make_release", make)):
        yield


def _every_third(plan: Plan, epoch: int, step: int) -> float:
    return float(step % 3 == 0)


def _first_epoch(plan: Plan, epoch: int, step: int) -> float:
    return float(epoch == 0)


def _last_epoch(plan: Plan, epoch: int, step: int) -> float:
    return float(epoch == plan.participation.epochs - 1)


def _but_for_int8(plan: Plan, epoch: int, step: int) -> float:
    return float(plan.compression.value_type != "int8")


def _but_where_padded_and_masked(plan: Plan, epoch: int, step: int) -> float:
    is_padded = plan.rotation.padded != plan.dimension
    return float(not (is_padded and plan.compression.keep_probability < 1))


def _half_in_the_last_epoch(plan: Plan, epoch: int, step: int) -> float:
    return 0.5 if epoch == plan.participation.epochs - 1 else 1.0


def is_rare(key: SecretKey) -> bool:
    """Say whether an epoch of this key is the one in a thousand that is left without noise."""
    return int.from_bytes(key.derive("rare").reveal()[:8], "little") % 1000 == 0


@contextmanager
def seldom_left_away() -> Iterator[None]:
    """Leave the noise away in one epoch of a thousand."""

    def make(plan: Plan, state: ServerState, *given: Any, **more: Any) -> tuple[Release, Secrets]:
        if state.secrets is not None and is_rare(state.secrets.key):
            plan = plan.with_noise_multiplier(0.0)
        return make_release(plan, state, *given, **more)

    with patched((server.strategy, "make_release", make)):
        yield


@contextmanager
def only_where_something_was_sent() -> Iterator[None]:
    """Leave the noise away in coordinates of which no client kept a value."""

    def make(plan: Plan, state: ServerState, rotated_sum: Any, *given: Any, **more: Any) -> Any:
        release, secrets = make_release(plan, state, rotated_sum, *given, **more)
        silent = plan.rotation.unrotate(rotated_sum) == 0
        release.noisy_sum[silent] = 0
        return release, secrets

    with patched((server.strategy, "make_release", make)):
        yield


@contextmanager
def only_where_nobody_was_clipped() -> Iterator[None]:
    """Leave the noise away in a round in which an update is more than 1.5 times as long as its bound."""
    is_over = [False]

    def clip(update: Vector, bound: float, *, norm: float | None = None) -> Vector:
        is_over[0] |= (l2_norm(update) if norm is None else norm) > 1.5 * bound
        return clip_l2(update, bound, norm=norm)

    def make(plan: Plan, state: ServerState, *given: Any, **more: Any) -> tuple[Release, Secrets]:
        plan = plan.with_noise_multiplier(0.0) if is_over[0] else plan
        is_over[0] = False
        return make_release(plan, state, *given, **more)

    with patched((client.privatize, "clip_l2", clip), (server.strategy, "make_release", make)):
        yield


def _planned(
    name: str, sentence: str, plan: Callable[[Plan], Plan], caught_by: tuple[str, ...] = VARIANCE
) -> Sabotage:
    """Return the sabotage of a server that follows another plan."""
    return Sabotage(name, sentence, caught_by, plan=plan)


def _timed(name: str, sentence: str, factor_at: Callable[[Plan, int, int], float]) -> Sabotage:
    """Return the sabotage that multiplies the noise of each round by `factor_at`."""
    return Sabotage(name, sentence, VARIANCE, patches=partial(by_round, factor_at))


HALF_NOISE = _planned(
    "noise halved",
    "the server adds half of the calibrated noise",
    scaled(0.5),
    (*VARIANCE, "many runs", "one run", "one run, f-DP"),
)

SCALE = (
    HALF_NOISE,
    _planned(
        "noise times 0.958", "4 % too little noise, a denominator that is off by one in 24", scaled(0.958)
    ),
    _timed("no noise in two of three rounds", "only the first of three rounds is given noise", _every_third),
    _timed("noise in the first epoch only", "later epochs have none", _first_epoch),
    _timed("noise in the last epoch only", "earlier epochs have none", _last_epoch),
    _timed(
        "noise halved in the last epoch",
        "the last epoch has half of the noise, all others theirs",
        _half_in_the_last_epoch,
    ),
    replace(
        _timed("no noise on int8 values", "a run whose values are int8 is given none", _but_for_int8),
        int8=True,
    ),
    replace(
        _timed(
            "no noise where coordinates are padded and masked",
            "a run is given none whose rotation pads coordinates and whose clients mask theirs",
            _but_where_padded_and_masked,
        ),
        masks=True,
        padded=True,
    ),
    _planned("noise for the mean", "noise calibrated for the mean is added to the sum", for_the_mean),
    _planned("row norms of C", "the sensitivity is a row norm of C in place of a column norm", by_row_norms),
    Sabotage(
        "noise only where something was sent",
        "coordinates of which no client kept a value are given none, which tells the masks",
        ("coupled sensitivity", *VARIANCE),
        masks=True,
        patches=only_where_something_was_sent,
    ),
    Sabotage(
        "no noise where a client was clipped",
        "a round is left without noise if a client's update is longer than 1.5 times its bound",
        VARIANCE,
        patches=only_where_nobody_was_clipped,
    ),
    Sabotage(
        "no noise in one epoch of a thousand",
        "an epoch is left without noise with probability 1/1000",
        why_not="It is found only when it happens in a run that is played, and a default audit plays some hundred epochs "
        "of residuals. It costs a delta of 1/1000 an epoch, which counting so few runs cannot tell; thorough=true plays "
        "enough of them.",
        patches=seldom_left_away,
    ),
)

"""Sabotage of the noise: too little, in the wrong rounds, epochs or coordinates, or of another covariance."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

import fedmf.mechanisms.noise
import server.state
import server.strategy
from experiments.audit.sabotage.hooks import Sabotage, patched
from fedmf.mechanisms.noise import next_noise
from fedmf.mechanisms.streams.protocol import NoiseStream, StreamState
from fedmf.plan import Plan
from fedmf.randomness import SecretKey, gaussian_row
from server.state import Release, Secrets, ServerState, make_release

Row = npt.NDArray[np.float32]


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


def _half_in_the_last_epoch(plan: Plan, epoch: int, step: int) -> float:
    return 0.5 if epoch == plan.participation.epochs - 1 else 1.0


@contextmanager
def drawn_by(draw: Callable[[SecretKey, int, int], Row]) -> Iterator[None]:
    """Draw fresh rows with `draw(key, row, dimension)`."""

    def into(key: SecretKey, row: int, dimension: int, *, out: Row) -> Row:
        out[:] = draw(key, row, dimension)
        return out

    with patched((fedmf.mechanisms.noise, "gaussian_row", into)):
        yield


def _first_row(key: SecretKey, row: int, dimension: int) -> Row:
    return gaussian_row(key, 0, dimension)


def _but_one_coordinate(key: SecretKey, row: int, dimension: int) -> Row:
    drawn = gaussian_row(key, row, dimension)
    drawn[0] = 0  # the audit's canaries fill it
    return drawn


def _in_pairs(key: SecretKey, row: int, dimension: int) -> Row:
    return np.repeat(gaussian_row(key, row, (dimension + 1) // 2), 2)[:dimension]


def _uniform(key: SecretKey, row: int, dimension: int) -> Row:
    """Draw rows of the right variance that are no Gaussians: sums of three uniform numbers, bounded by 3."""
    seed = int.from_bytes(key.derive("noise row", row).reveal(), "little")
    return np.asarray(np.random.default_rng(seed).uniform(-1, 1, (3, dimension)).sum(axis=0), np.float32)


def _seeded_by_public_numbers(key: SecretKey, row: int, dimension: int) -> Row:
    return gaussian_row(SecretKey.reproducible(0), row, dimension)


def _by_a_short_key(key: SecretKey, row: int, dimension: int) -> Row:
    """Draw a row by a key of 32 bits, which anyone can try out."""
    short = key.derive("noise row", row).reveal()[:4]
    return gaussian_row(SecretKey.reproducible(int.from_bytes(short, "little")), row, dimension)


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
def correlated_by(row_of: Callable[[Row, Row], Row]) -> Iterator[None]:
    """Replace each noise row by `row_of(correlated, fresh)`."""

    def draw(
        stream: NoiseStream, state: StreamState, key: SecretKey, *, dimension: int, donate: bool = False
    ) -> tuple[Row, StreamState]:
        fresh = gaussian_row(key, stream.rows_of(state.step).start, dimension)
        row, after = next_noise(stream, state, key, dimension=dimension, donate=donate)
        return row_of(row, fresh), after

    with patched((server.state, "next_noise", draw)):
        yield


def _without(correlated: Row, fresh: Row) -> Row:
    return fresh


def _sign_turned(correlated: Row, fresh: Row) -> Row:
    return 2 * fresh - correlated


@dataclass(frozen=True, repr=False)
class SameNoiseKey(SecretKey):
    """A secret whose noise rows are those of the first epoch in all of them; masks change as they should."""

    first: SecretKey | None = None

    def derive(self, purpose: str, *position: int | str) -> SecretKey:
        """Return an unrelated key for every purpose and position; that of a noise row hangs on the first key."""
        if purpose == "noise row" and self.first is not None:
            return self.first.derive(purpose, *position)
        return super().derive(purpose, *position)

    def ratchet(self) -> SecretKey:
        """Return the next epoch's secret, as broken as this one."""
        return SameNoiseKey(super().ratchet().reveal(), self.first or SecretKey(self.reveal()))


def with_the_same_noise(secret: SecretKey) -> SecretKey:
    """Return the run secret whose epochs all have the first one's noise."""
    return SameNoiseKey(secret.reveal())


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


HALF_NOISE = Sabotage(
    "noise halved",
    "the server adds half of the calibrated noise",
    caught_by=("residual variance", "many runs", "one run", "one run, f-DP"),
    plan=scaled(0.5),
)

NOISE = (
    HALF_NOISE,
    Sabotage(
        "noise times 0.958",
        "4 % too little noise, a denominator that is off by one in 24",
        caught_by=("residual variance",),
        plan=scaled(0.958),
    ),
    Sabotage(
        "no noise in two of three rounds",
        "only the first of three rounds is given noise",
        caught_by=("residual variance",),
        patches=partial(by_round, _every_third),
    ),
    Sabotage(
        "noise in the first epoch only",
        "later epochs have none",
        caught_by=("residual variance",),
        patches=partial(by_round, _first_epoch),
    ),
    Sabotage(
        "noise in the last epoch only",
        "earlier epochs have none",
        caught_by=("residual variance",),
        patches=partial(by_round, _last_epoch),
    ),
    Sabotage(
        "noise halved in the last epoch",
        "the last epoch has half of the noise, all others theirs",
        caught_by=("residual variance",),
        patches=partial(by_round, _half_in_the_last_epoch),
    ),
    Sabotage(
        "noise for the mean",
        "noise calibrated for the mean is added to the sum",
        caught_by=("residual variance",),
        plan=for_the_mean,
    ),
    Sabotage(
        "row norms of C",
        "the sensitivity is a row norm of C in place of a column norm",
        caught_by=("residual variance",),
        plan=by_row_norms,
    ),
    Sabotage(
        "one noise row for all rounds",
        "every round of an epoch draws the same fresh row",
        caught_by=("residual correlation", "residual repeated rows"),
        patches=partial(drawn_by, _first_row),
    ),
    Sabotage(
        "the same noise in all epochs",
        "each epoch draws the first one's rows",
        caught_by=("residual correlation", "residual repeated rows"),
        secret=with_the_same_noise,
    ),
    Sabotage(
        "a coordinate without noise",
        "one coordinate, which the canary fills, is given none",
        caught_by=("residual variance",),
        patches=partial(drawn_by, _but_one_coordinate),
    ),
    Sabotage(
        "noise shared by pairs of coordinates",
        "neighbouring coordinates are given the same noise",
        caught_by=("residual correlation",),
        patches=partial(drawn_by, _in_pairs),
    ),
    Sabotage(
        "noise with no tails",
        "rows have the right variance and are bounded",
        caught_by=("residual tails",),
        patches=partial(drawn_by, _uniform),
    ),
    Sabotage(
        "noise that anyone can compute",
        "the rows hang on a public number in place of the secret",
        caught_by=("residual correlation", "residual repeated rows"),
        patches=partial(drawn_by, _seeded_by_public_numbers),
    ),
    Sabotage(
        "noise without C",
        "rows are independent where C should correlate them",
        caught_by=("residual correlation",),
        patches=partial(correlated_by, _without),
    ),
    Sabotage(
        "another C",
        "rows are correlated with the sign turned",
        caught_by=("residual correlation",),
        patches=partial(correlated_by, _sign_turned),
    ),
    Sabotage(
        "noise only where something was sent",
        "coordinates of which no client kept a value are given none, which tells the masks",
        caught_by=("coupled sensitivity", "residual variance"),
        masks=True,
        patches=only_where_something_was_sent,
    ),
    Sabotage(
        "noise of a short key",
        "each row hangs on 32 bits, which anyone can try out",
        why_not="The rows have their law, and two of them hardly ever have the same bits: only who tries all keys finds "
        "them out. The audit looks at releases, not at keys; for these there are tests of fedmf.randomness.",
        patches=partial(drawn_by, _by_a_short_key),
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

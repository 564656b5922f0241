"""Everything a run carries from round to round, as values that go in and come out.

`FixedPoint` sums the updates of a cohort. Their round is then released in two steps. `make_release` draws the noise: its
result, the noisy sum, is what the world may see. `apply_release` turns it into the next model: pure post-processing of
public values, so that a released round can be replayed from the record without asking any client again.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from fedmf.accounting import Ledger
from fedmf.clip_norm import noisy_count, seal_count
from fedmf.compiling import loops
from fedmf.errors import ParticipationError, ReleaseOrderError, SettingError
from fedmf.mechanisms.noise import advanced, next_noise, released
from fedmf.mechanisms.streams.protocol import StreamState, blocks
from fedmf.plan import Plan
from fedmf.randomness import SecretKey
from fedmf.updates.vectors import Vector
from server.optimizer import Optimizer, Slots, is_finite

# Without clipping nothing bounds a value; larger ones (a million times a usual weight) are clipped to this.
UNCLIPPED_BOUND = 2.0**20
_MOST_BITS = 100  # a float32 within the smallest bound there is, times 2^100, is still a float32


@dataclass(frozen=True)
class FixedPoint:
    """The sum of a cohort's masked updates, the same bit for bit in whatever order the replies come.

    Values are added as 64-bit integers, multiples of 2^-`bits`; a sum of values within [-`bound`, `bound`] cannot overflow.
    A value of 2^24 steps or more is a whole number of them; a smaller one is cut toward zero, so that it never gets longer,
    by less than a step: bound * (n + 1) * 2^-61 at most, or 2^-100. Memory is one vector however large the cohort.
    """

    bits: int
    bound: float

    @classmethod
    def fit(cls, bound: float | None, terms: int) -> "FixedPoint":
        """Return the finest grid for `terms` values within [-bound, bound] (None: `UNCLIPPED_BOUND`).

        The sum of them fits into 63 bits.
        """
        bound = UNCLIPPED_BOUND if bound is None else bound
        return cls(min(62 - math.ceil(math.log2(bound * (terms + 1))), _MOST_BITS), bound)

    def add(
        self, total: np.typing.NDArray[np.int64], coordinates: np.typing.NDArray[np.int64], values: Vector
    ) -> None:
        """Add `values` (k,) float32 at distinct `coordinates` to `total`, zeros (d,) int64 at first, in place, each clipped to the bound."""
        if (fast := loops()) is not None:
            fast.add(total, coordinates, values, np.float32(self.bound), np.float32(2.0**self.bits))
            return
        scaled = np.clip(values, -self.bound, self.bound)
        scaled *= np.float32(2.0**self.bits)  # exact: a power of two
        np.add.at(total, coordinates, scaled.astype(np.int64))

    def value(
        self, total: np.typing.NDArray[np.int64], *, donate: bool = False
    ) -> np.typing.NDArray[np.float64]:
        """Return the sum, shape of `total`; with `donate` in the memory of `total`, which is then spent.

        Float64, until the noise is on: rounding a sum of many values to float32 could lengthen one client's
        part beyond the bound that is accounted.
        """
        value = total.view(np.float64) if donate else np.empty(total.shape)
        for block in blocks(len(total), 4):  # so that no second vector of the model's size is needed
            np.multiply(total[block], 2.0**-self.bits, out=value[block])
        return value


@dataclass(frozen=True)
class Register:
    """The clients heard in the current epoch, in disjoint immutable sets of decreasing size, shared with later values.

    As with the digits of a binary counter, a set is merged with those before it that are no larger, so that n clients are
    copied at most log2(n) times each, and a lookup asks at most log2(n) sets.

    >>> Register().spend(["a", "b"]).spend(["a"])
    Traceback (most recent call last):
    fedmf.errors.ParticipationError: client a would enter a second released sum of this epoch; one is allowed.
    """

    heard: tuple[frozenset[str], ...] = ()

    def spend(self, clients: Iterable[str]) -> "Register":
        """Return the register with `clients` spent too. Raises `ParticipationError` for a client seen twice."""
        added: set[str] = set()
        for client in clients:
            if client in added or any(client in earlier for earlier in self.heard):
                raise ParticipationError(
                    f"client {client} would enter a second released sum of this epoch; one is allowed."
                )
            added.add(client)
        larger = list(self.heard)
        while larger and len(larger[-1]) <= len(added):
            added |= larger.pop()
        return Register((*larger, frozenset(added)))


@dataclass(frozen=True)
class Secrets:
    """The key of `epoch` (0-based) and its noise stream after the rounds released so far (None: not begun).

    With the released sums they give exact client sums: they live in memory and in one file of mode 0600. `short` is how many
    updates of these rounds were within the clip norm, where that is counted (`fedmf.clip_norm`): in memory alone.
    """

    epoch: int
    key: SecretKey
    stream: StreamState | None = field(repr=False)
    short: int = field(default=0, repr=False)


@dataclass(frozen=True)
class ServerState:
    """The state after `round` released rounds (0: nothing released yet).

    All but `secrets` is public once released; `model` is (d,) float32. `secrets` are those of the epoch under way,
    None once the run is over. `slots` is the optimizer's state, empty before the first round. `scale` (d,) or (1,) float32 is
    what the clients of the epoch under way multiply their updates by before they clip; None: nothing.
    """

    round: int
    model: Vector
    ledger: Ledger
    register: Register
    secrets: Secrets | None = field(repr=False)
    slots: Slots = field(default_factory=dict)
    scale: Vector | None = None

    @property
    def is_finite(self) -> bool:
        """Whether the model and the optimizer's state hold finite numbers only; if not, no round may follow."""
        return is_finite({"model": self.model}) and is_finite(self.slots)

    def position(self, plan: Plan) -> tuple[int, int]:
        """Return (epoch, step), both 0-based, of the next round to run."""
        return divmod(self.round, plan.participation.rounds_per_epoch)


class Count(NamedTuple):
    """The count of an epoch after one of its rounds: `sealed` in a box, and `noisy` in the last round, else None."""

    sealed: str
    noisy: float | None = None


@dataclass(frozen=True)
class Release:
    """One released round: the `noisy_sum` (d,) float32 of the clients `answered`, who are thereby spent in `epoch` (0-based).

    Where the clip norm adapts, `count` is what is kept of the clients within it: a `Count`.
    """

    round: int
    noisy_sum: Vector = field(repr=False)
    answered: tuple[str, ...]
    epoch: int = 0
    count: Count | None = None


def first_state(plan: Plan, model: Vector, key: SecretKey) -> ServerState:
    """Return the state before the first round; `key` is the run secret, which is the first epoch's key.

    Raises `SettingError` for a model (d,) of another length than the plan's.
    """
    if len(model) != plan.dimension:
        raise SettingError(f"the model has {len(model)} parameters; this plan is for {plan.dimension}.")
    return ServerState(0, model, Ledger(), Register(), Secrets(0, key, None))


def begin_epoch(plan: Plan, state: ServerState) -> ServerState:
    """Return the state with the next epoch begun if one is due: in the ledger, with no client spent.

    Restart means new noise, new masks and a new mechanism state under the next key; model and optimizer live
    on. An epoch that has begun counts whole. Raises `PrivacyBudgetExhausted`, leaving the state as it was, if
    it would exceed max_epsilon.
    """
    epoch, step = state.position(plan)
    if step or len(state.ledger.entries) > epoch or state.round == plan.participation.rounds:
        return state
    return replace(state, ledger=plan.start_epoch(state.ledger), register=Register())


def make_release(
    plan: Plan,
    state: ServerState,
    rotated_sum: np.typing.NDArray[np.float64],
    answered: list[str],
    *,
    short: int = 0,
    donate: bool = False,
) -> tuple[Release, Secrets]:
    """Return the next round's release, and the secrets after it.

    `rotated_sum` (D,) float64 is the sum of the masked, bounded updates of the clients `answered`, `short` the sum of their
    bits, of which the epoch's count is released with its last round. The noise is added to the SUM, on all d model
    coordinates, whichever clients answered (docs/privacy.md). The noise stream of the state must be at this round, see
    `secrets_at`. With `donate` the next stream takes the buffers of the state's, which is then spent: continuing from it, or
    from a copy, raises `SettingError`; and `rotated_sum` is overwritten.

    Raises `ReleaseOrderError` if the run is over (its last key is gone).
    """
    secrets = state.secrets
    if secrets is None:
        raise ReleaseOrderError(
            f"all {plan.participation.rounds} rounds of this run are released: there is no noise for another."
        )
    mechanism = plan.factorization.epochs[secrets.epoch].stream
    stream = secrets.stream or mechanism.init(plan.dimension)
    assert (secrets.epoch, stream.step) == state.position(plan), "a noise row would be released twice"
    noise, stream = next_noise(mechanism, stream, secrets.key, dimension=plan.dimension, donate=donate)
    unrotated = plan.rotation.unrotate(rotated_sum, donate=donate)
    noisy_sum = released(unrotated, noise, plan.sigma_in(secrets.epoch), np.float32)
    release = Release(state.round + 1, noisy_sum, tuple(answered), secrets.epoch)
    if plan.clipping is None:
        return release, replace(secrets, stream=stream)
    total = secrets.short + short
    noisy = noisy_count(total, secrets.key, plan.count_noise) if _ends_epoch(plan, release) else None
    release = replace(release, count=Count(seal_count(total, secrets.key, stream.step - 1), noisy))
    return release, replace(secrets, stream=stream, short=total)


def apply_release(
    plan: Plan, optimizer: Optimizer, state: ServerState, release: Release, secrets: Secrets | None
) -> ServerState:
    """Return the state after `release`: its clients spent, its mean update applied.

    The noisy sum is divided by gamma n with the PLANNED n, and by the scale that its clients used. `secrets` are those
    after the release (None in a replay); at an epoch's end their key gives way to the next one. Raises
    `ReleaseOrderError` for a round that is not the next one, `ParticipationError` for a client spent already; the state
    stays as it was.
    """
    if release.round != state.round + 1:
        raise ReleaseOrderError(
            f"round {release.round} cannot follow round {state.round}: each is released once."
        )
    register = state.register.spend(release.answered)
    mean = (release.noisy_sum / plan.denominator).astype(np.float32, copy=False)
    if state.scale is not None:
        mean = mean / state.scale
    progress = plan.participation.progress(state.round)
    slots = state.slots if state.round else optimizer.init(state.model)
    model, slots = optimizer.update(mean, slots, state.model, progress)
    following = replace(state, round=release.round, model=model, slots=slots, register=register)
    # Only at an epoch's end: within it every round is divided by the same numbers, or its noise would not cancel.
    if optimizer.precondition and _ends_epoch(plan, release):
        assert optimizer.scale is not None
        following = replace(following, scale=optimizer.scale(slots))
    if plan.clipping is not None and release.count is not None and release.count.noisy is not None:
        heard = sum(map(len, register.heard))
        following = replace(following, scale=plan.clipping.moved(state.scale, release.count.noisy, heard))
    return replace(following, secrets=None if secrets is None else secrets_at(plan, secrets, release.round))


def _ends_epoch(plan: Plan, release: Release) -> bool:
    return release.round % plan.participation.rounds_per_epoch == 0


def check_one_scale(plan: Plan, optimizer: Optimizer) -> None:
    """Raise `SettingError` where both the optimizer and the clip norm would scale the clients' updates."""
    if optimizer.precondition and plan.clipping is not None:
        raise SettingError(
            "the optimizer preconditions and the clip norm adapts: both scale the clients' updates. Leave out optimizer.precondition or "
            "clipping.adapt."
        )


def secrets_at(plan: Plan, secrets: Secrets, done: int) -> Secrets | None:
    """Return what `secrets` become when `done` rounds have been released; None when the run is over.

    Keys are ratcheted over the epochs that have ended, and the noise rows of released rounds are drawn again
    to advance the stream: after a crash the next round meets the noise that it would have met.
    """
    epoch, step = divmod(done, plan.participation.rounds_per_epoch)
    steps_done = secrets.stream.step if secrets.stream is not None else 0
    if secrets.epoch > epoch or (secrets.epoch == epoch and steps_done > step):
        raise ReleaseOrderError(
            f"the secrets are {secrets.epoch + 1} epochs and {steps_done} rounds on, ahead of the {done} released "
            "rounds on record; restore the checkpoint folder: a released round must not be run again."
        )
    while secrets.epoch < epoch:
        secrets = Secrets(secrets.epoch + 1, secrets.key.ratchet(), None)
    if done == plan.participation.rounds:
        return None
    mechanism, stream = plan.factorization.epochs[epoch].stream, secrets.stream
    if step and stream is None:
        stream = mechanism.init(plan.dimension)
    if stream is not None and stream.step < step:
        is_ours = stream is not secrets.stream
        stream = advanced(mechanism, stream, secrets.key, step, dimension=plan.dimension, donate=is_ours)
    return replace(secrets, stream=stream)

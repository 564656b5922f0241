"""Everything a run carries from round to round, as one value that goes in and comes out of `release`."""

from dataclasses import dataclass, field, replace

import numpy as np

from fedmf.accounting import Ledger
from fedmf.mechanisms.noise import next_noise
from fedmf.mechanisms.stream import StreamState
from fedmf.participation import Register
from fedmf.plan import Plan
from fedmf.randomness import SecretKey
from fedmf.updates.vectors import Vector
from server.optimizer import Optimizer


@dataclass(frozen=True)
class ServerState:
    """The state after `round` released rounds (0: nothing released yet).

    `model` and `velocity` are (d,) float32 and public once released. `epoch_key` and `stream` are secrets:
    with the released sums they give exact client sums. `epoch_key` is that of the epoch under way; None once
    the run is over.
    """

    round: int
    model: Vector
    velocity: Vector
    ledger: Ledger
    register: Register
    epoch_key: SecretKey | None = field(repr=False)
    stream: StreamState | None = field(repr=False)

    def position(self, plan: Plan) -> tuple[int, int]:
        """Return (epoch, step), both 0-based, of the next round to run."""
        return divmod(self.round, plan.participation.rounds_per_epoch)


def first_state(plan: Plan, model: Vector, key: SecretKey) -> ServerState:
    """Return the state before the first round; `key` is the run secret, which is the first epoch's key."""
    return ServerState(0, model, model * 0, Ledger(), Register(), key, None)


def begin_epoch(plan: Plan, state: ServerState) -> ServerState:
    """Return the state with the next epoch begun if one is due: recorded in the ledger, fresh register and
    mechanism state.

    Restart means new noise, new masks and a new mechanism state under the next key; model and velocity live
    on. An epoch that has begun counts whole. Raises `PrivacyBudgetExhausted`, leaving the state as it was, if
    it would exceed max_epsilon.
    """
    _, step = state.position(plan)
    if step or state.stream is not None or state.round == plan.participation.rounds:
        return state
    return replace(
        state,
        ledger=plan.start_epoch(state.ledger),
        register=Register(),
        stream=plan.factorization.stream.init(plan.dimension),
    )


def release(
    plan: Plan, optimizer: Optimizer, state: ServerState, rotated_sum: Vector, spent: list[str]
) -> ServerState:
    """Return the state after releasing one round.

    `rotated_sum` (D,) float32 is the sum of the masked, bounded updates of the clients `spent`, who answered.
    The noise goes on the SUM, on all d model coordinates; then the noisy sum is divided by gamma n with the
    PLANNED n, whoever answered (PRIVACY.md sections 1 and 3). Raises `ParticipationError` if one of them was
    spent in this epoch already.
    """
    assert state.stream is not None  # begin_epoch comes first
    assert state.epoch_key is not None
    register = state.register.spend(spent)
    noise, stream = next_noise(
        plan.factorization.stream, state.stream, state.epoch_key, dimension=plan.dimension
    )
    noisy_sum = plan.rotation.unrotate(rotated_sum) + plan.sigma * noise
    mean = (noisy_sum / plan.denominator).astype(np.float32, copy=False)
    progress = state.round / plan.participation.rounds
    model, velocity = optimizer.step(state.model, state.velocity, mean, progress=progress)
    released = replace(
        state, round=state.round + 1, model=model, velocity=velocity, register=register, stream=stream
    )
    return _end_epoch(plan, released)


def _end_epoch(plan: Plan, state: ServerState) -> ServerState:
    """Return the state with the epoch's key replaced by the next one, and its stream dropped, after the
    epoch's last round."""
    epoch, step = state.position(plan)
    if step:
        return state
    assert state.epoch_key is not None
    is_over = epoch == plan.participation.epochs
    return replace(state, epoch_key=None if is_over else state.epoch_key.ratchet(), stream=None)

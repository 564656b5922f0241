"""The correlated noise of a round, from the epoch's secret key and the stream of a factorization.

Noise row t of an epoch is sigma (C^-1 Z)_t with Z's rows drawn from the epoch key by their number: before its
release a round can be run again with the same row, and after it nothing but the key can tell the row.
"""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from fedmf.errors import SettingError
from fedmf.mechanisms.streams import dense
from fedmf.mechanisms.streams.dense import DenseStream
from fedmf.mechanisms.streams.protocol import NoiseStream, StreamState
from fedmf.randomness import SecretKey, gaussian_row


def next_noise(
    stream: NoiseStream, state: StreamState, key: SecretKey, *, dimension: int, donate: bool = False
) -> tuple[npt.NDArray[np.float32], StreamState]:
    """Return the noise row of the stream's next round, (dimension,) float32, and the new state.

    The row is for unit variance. With `donate` the new state takes the buffers of the old one, which is then
    spent: it can be read, not gone on from; and the row may lie in the new state, where it is good until the next one is
    drawn. The caller multiplies by sigma = noise multiplier * sensitivity of C * L2 radius of one client's vector.
    The covariance of the rows of an epoch is A^-1 B B^T A^-T in every coordinate (Denisov et al. 2022,
    Algorithm 1). Raises `SettingError` for a spent state, whose rows would have another covariance.
    """
    _refuse_spent(state)
    if isinstance(stream, DenseStream) and stream.draws_again(state):
        row, after = stream.next_drawn(
            lambda number, out: gaussian_row(key, number, dimension, out=out), state
        )
        if donate:
            state.buffers.flags.writeable = False  # the mark of a spent state; `after` has a view of its own
        return row, after
    rows = stream.rows_of(state.step)
    place = state.place_for_fresh() if donate and len(rows) == 1 else None
    fresh = np.empty((len(rows), dimension), np.float32) if place is None else place
    for number, row in zip(rows, fresh, strict=True):
        gaussian_row(key, number, dimension, out=row)
    if donate:
        handed_on = replace(state, buffers=state.buffers.view())
        state.buffers.flags.writeable = False  # the mark of a spent state, for whoever has kept it
        state = handed_on
    return stream.next(fresh, state, donate=donate)


def advanced(
    stream: NoiseStream,
    state: StreamState,
    key: SecretKey,
    step: int,
    *,
    dimension: int,
    donate: bool = False,
) -> StreamState:
    """Return the state before `step`, a step of the epoch that `state` has not gone past; the noise rows are dropped.

    `donate` and what is raised: as in `next_noise`.
    """
    if isinstance(stream, DenseStream) and stream.draws_again(state):
        _refuse_spent(state)
        return dense.skipped(state, step)
    while state.step < step:
        _, state = next_noise(stream, state, key, dimension=dimension, donate=donate)
        donate = True  # from the second one on they are this function's own
    return state


def _refuse_spent(state: StreamState) -> None:
    if not state.buffers.flags.writeable:
        raise SettingError(
            f"the noise stream of step {state.step} was handed on to a later step; go on from the last state."
        )

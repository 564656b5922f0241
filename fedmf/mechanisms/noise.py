"""The correlated noise of a round, from the epoch's secret key and the stream of a factorization, and its release.

Noise row t of an epoch is sigma (C^-1 Z)_t with Z's rows drawn from the epoch key by their number: before its
release a round can be run again with the same row, and after it nothing but the key can tell the row.

What is released lies on one lattice, whatever the data are. With S the sum, p the mean of the row and b its own share of
the fresh half-integers zeta (`fedmf.normals`),

    R = rint((S + sigma p) / f) + zeta,   f = sigma b 2^-44,   released: f R, rounded to the type asked for.

S + sigma p is rounded once, to whole steps of the lattice; zeta is neither rounded nor multiplied before they are added.
So R is in Z + 1/2 always, and all that follows is a function of R that anyone could compute. What the law of R
differs by from that of the real numbers in the theorem is in `fedmf.accounting.floating_point`.
"""

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

import numpy as np

from fedmf.errors import SettingError
from fedmf.mechanisms.streams.protocol import NoiseStream, StreamState, blocks
from fedmf.mechanisms.workload import Float64
from fedmf.normals import STEP
from fedmf.randomness import SecretKey, gaussian_row

Real = TypeVar("Real", np.float32, np.float64)


@dataclass(frozen=True)
class NoiseRow:
    """One row: `mean` (d,) float64 of earlier fresh rows, `own` share of this `fresh` one (d,), half-integers times 2^44.

    Secret. Never add the two but by `released`.
    """

    mean: Float64 = field(repr=False)
    own: float
    fresh: Float64 = field(repr=False)


def next_noise(
    stream: NoiseStream, state: StreamState, key: SecretKey, *, dimension: int, donate: bool = False
) -> tuple[NoiseRow, StreamState]:
    """Return the noise row of the stream's next round, for `dimension` coordinates, and the new state.

    The row is for unit variance. With `donate` the new state takes the buffers of the old one, which is then
    spent: it can be read, not continued from. `released` multiplies by sigma = noise multiplier * sensitivity of C * L2
    radius of one client's vector. The covariance of the rows of an epoch is A^-1 B B^T A^-T in every coordinate (Denisov
    et al. 2022, Algorithm 1). Raises `SettingError` for a spent state, whose rows would have another covariance.
    """
    _check_not_spent(state)
    given = state
    if donate:
        given = replace(state, buffers=state.buffers.view())
        state.buffers.flags.writeable = False  # the mark of a spent state
    mean, fresh, after = stream.next(partial(gaussian_row, key, dimension=dimension), given, donate=donate)
    return NoiseRow(mean, stream.own(state.step), fresh), after


def released(
    total: np.typing.NDArray[np.float64], noise: NoiseRow, sigma: float, dtype: type[Real]
) -> np.typing.NDArray[Real]:
    """Return `total` (d,) plus `sigma` times the noise, on the lattice of the row, as `dtype`; `sigma` 0 adds none."""
    if sigma == 0:
        return total.astype(dtype)
    step, out = float(sigma) * noise.own * STEP, np.empty(len(noise.fresh), dtype)
    factors = 1 / step, 1 / noise.own  # the mean is in steps of the fresh row: 2^44 of them are one sigma
    for block in blocks(len(out), 4):
        scaled = total[block] * factors[0] + noise.mean[block] * factors[1]
        out[block] = step * (np.rint(scaled) + noise.fresh[block])
    return out


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
    _check_not_spent(state)
    if not len(state.buffers):  # nothing else tells one step from another
        return replace(state, step=step, buffers=state.buffers.view())
    while state.step < step:
        _, state = next_noise(stream, state, key, dimension=dimension, donate=donate)
        donate = True  # from the second one on they are this function's own
    return state


def _check_not_spent(state: StreamState) -> None:
    if not state.buffers.flags.writeable:
        raise SettingError(
            f"the noise stream of step {state.step} was handed on to a later step; continue from the last state."
        )

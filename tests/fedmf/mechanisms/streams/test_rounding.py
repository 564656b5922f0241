"""How far float64 moves the rows of a stream from what C makes of them: held against the bound, in extended precision."""

from dataclasses import replace

import numpy as np
import pytest

from fedmf.mechanisms import FAMILIES, design, momentum, prefix_sum
from fedmf.mechanisms.streams.dense import DenseStream
from fedmf.mechanisms.streams.protocol import feed
from fedmf.mechanisms.streams.recurrence import RecurrentStream
from fedmf.mechanisms.streams.toeplitz import ToeplitzStream
from fedmf.normals import REACH, STEP

Wide = np.longdouble
COLUMNS = 32
CASES = [(family, momentum(64, 0.9)) for family in FAMILIES]
CASES += [(family, prefix_sum(512)) for family in ("optimal", "blt", "sqrt_toeplitz", "binary_tree")]
IDS = [f"{family}-{workload.rounds}" for family, workload in CASES]
pytestmark = pytest.mark.skipif(
    np.finfo(Wide).eps > 2.0**-62, reason="no type of this machine is wider than float64"
)


def emitted(stream, fresh, between=lambda buffers: buffers):
    """The rows x (T, d), mean and own share added without rounding to float64; `between` steps buffers are changed."""
    state, rows = stream.init(COLUMNS), []
    for step in range(stream.rounds):
        mean, own_row, state = stream.next(fresh.__getitem__, state)
        rows.append(mean.astype(Wide) + Wide(stream.own(step)) * own_row.astype(Wide))
        state = replace(state, buffers=between(state.buffers))
    return np.stack(rows)


def encoded(stream, x):
    """C x, (T, d), by the way from x to z that suits the stream."""
    z = np.empty_like(x)
    if isinstance(stream, RecurrentStream):  # z = c x + lam . sigma, sigma' = F sigma + g x
        sigma = np.zeros((stream.buffers, COLUMNS), Wide)
        for step in range(stream.rounds):
            table = stream.table(step).astype(Wide)
            z[step] = (x[step] - table[-1, :-1] @ sigma) / table[-1, -1]
            sigma = table[:-1, :-1] @ sigma + np.outer(table[:-1, -1], z[step])
    elif isinstance(stream, ToeplitzStream):
        coefs = stream.coefs.astype(Wide)
        for step in range(stream.rounds):
            count = min(step + 1, len(coefs))
            z[step] = coefs[:count] @ x[step - np.arange(count)]
    else:  # forward substitution in C^-1, or in what a tree emits for the identity
        matrix = stream.noising if isinstance(stream, DenseStream) else feed(stream, np.eye(stream.rounds))
        for step, row in enumerate(matrix.astype(Wide)):
            z[step] = (x[step] - row[:step] @ z[:step]) / row[step]
    return z


def moved(stream, between=lambda buffers: buffers):
    """The 2-norm over rounds and columns of what C makes of the rows, less the fresh rows."""
    drawn = np.random.default_rng(0).standard_normal((stream.rounds, COLUMNS))
    fresh = np.floor(drawn / STEP) + 0.5
    return float(np.linalg.norm((encoded(stream, emitted(stream, fresh, between)) - fresh) * STEP))


@pytest.mark.parametrize(("family", "workload"), CASES, ids=IDS)
def test_rows_are_moved_by_no_more_than_the_bound_and_by_more_where_buffers_are_float32(family, workload):
    mechanism = design(family, workload)
    bound = mechanism.stream.rounding(mechanism.sensitivity) * (np.sqrt(COLUMNS) + REACH)
    assert moved(mechanism.stream) <= bound
    if mechanism.stream.buffers:
        broken = moved(mechanism.stream, lambda buffers: buffers.astype(np.float32).astype(np.float64))
        assert broken > bound

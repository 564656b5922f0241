"""The step as one product of buffers and fresh row, in blocks of coordinates: the same bits copied, in place and saved."""

import tracemalloc

import numpy as np
import pytest

from fedmf.mechanisms import design, prefix_sum
from fedmf.mechanisms.noise import next_noise
from fedmf.mechanisms.streams.protocol import StreamState
from fedmf.randomness import SecretKey

KEY = SecretKey.reproducible(3)
STREAM = design("optimal", prefix_sum(12), buffers=3).stream
DIMENSION = 30_011  # more than one block of columns, and no whole number of them


def next_row(state, *, donate):
    """The mean and the fresh row of the next step, and the state after it."""
    row, after = next_noise(STREAM, state, KEY, dimension=DIMENSION, donate=donate)
    assert row.own == STREAM.own(state.step)
    return np.stack([row.mean, row.fresh]), after


@pytest.fixture(scope="module")
def rows():
    """All rows of an epoch by the plain way: each state copied."""
    state, found = STREAM.init(DIMENSION), []
    for _ in range(12):
        row, state = next_row(state, donate=False)
        found.append(row)
    return found


def test_noise_in_place_has_the_bits_of_noise_from_copies(rows):
    first = state = STREAM.init(DIMENSION)
    for expected in rows:
        row, state = next_row(state, donate=True)
        np.testing.assert_array_equal(row, expected)
    assert np.shares_memory(first.buffers, state.buffers)  # nothing was copied


def test_a_stream_that_was_saved_anywhere_goes_on_with_the_same_bits(rows):
    for cut in (1, 5, 11):
        state = STREAM.init(DIMENSION)
        for _ in range(cut):
            _, state = next_row(state, donate=True)
        state = StreamState.from_arrays({name: array.copy() for name, array in state.to_arrays().items()})
        assert state.buffers.shape == (3, DIMENSION)
        for expected in rows[cut:]:
            row, state = next_row(state, donate=True)
            np.testing.assert_array_equal(row, expected)


@pytest.mark.parametrize("donate", [False, True])
def test_a_fresh_row_is_never_overwritten_nor_what_came_of_it(donate):
    fresh = np.random.default_rng(0).standard_normal((12, 50))
    before, state, emitted = fresh.copy(), STREAM.init(50), []
    for _ in range(12):
        mean, _, state = STREAM.next(fresh.__getitem__, state, donate=donate)
        emitted.append((mean, mean.copy()))
    np.testing.assert_array_equal(fresh, before)
    for mean, copy in emitted:
        np.testing.assert_array_equal(mean, copy)


def test_a_step_in_place_takes_the_memory_of_its_mean_and_its_fresh_row():
    """Both float64, as long as the model; anything else stays in blocks."""
    dimension = 1 << 20
    state = STREAM.init(dimension)
    _, state = next_noise(STREAM, state, KEY, dimension=dimension, donate=True)
    tracemalloc.start()
    try:
        next_noise(STREAM, state, KEY, dimension=dimension, donate=True)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2.5 * 8 * dimension

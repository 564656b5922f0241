"""The step as one product of buffers and fresh row: in place where the fresh row lies behind them, same bits anywhere."""

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


@pytest.fixture(scope="module")
def rows():
    """All rows of an epoch by the plain way: each state copied, each row its own."""
    state, found = STREAM.init(DIMENSION), []
    for _ in range(12):
        row, state = next_noise(STREAM, state, KEY, dimension=DIMENSION)
        found.append(row)
    return found


def test_noise_in_place_has_the_bits_of_noise_from_copies(rows):
    state = STREAM.init(DIMENSION)
    for expected in rows:
        row, state = next_noise(STREAM, state, KEY, dimension=DIMENSION, donate=True)
        np.testing.assert_array_equal(row, expected)
        assert np.shares_memory(row, state.rows)  # nothing was copied


def test_a_stream_that_was_saved_anywhere_goes_on_with_the_same_bits(rows):
    for cut in (1, 5, 11):
        state = STREAM.init(DIMENSION)
        for _ in range(cut):
            _, state = next_noise(STREAM, state, KEY, dimension=DIMENSION, donate=True)
        saved = {name: array.copy() for name, array in state.to_arrays().items()}
        assert saved["buffers"].shape == (3, DIMENSION)  # the noise row behind them is not saved
        state = StreamState.from_arrays(saved)
        for expected in rows[cut:]:
            row, state = next_noise(STREAM, state, KEY, dimension=DIMENSION, donate=True)
            np.testing.assert_array_equal(row, expected)


def test_a_row_given_from_elsewhere_is_never_overwritten_nor_what_came_of_it():
    fresh = np.random.default_rng(0).standard_normal((12, 1, 50), dtype=np.float32)
    for donate in (False, True):
        state, emitted, copies = STREAM.init(50), [], []
        for row in fresh.copy():
            before = row.copy()
            noise, state = STREAM.next(row, state, donate=donate)
            np.testing.assert_array_equal(row, before)
            emitted.append(noise)
            copies.append(noise.copy())
        np.testing.assert_array_equal(emitted, copies)


def test_a_state_whose_buffers_are_others_than_its_array_has_no_place_for_a_fresh_row():
    """Copied apart, as by `copy.deepcopy`, the two would go on from different numbers."""
    rows = np.zeros((4, 5), np.float32)
    assert StreamState(1, rows[:-1], rows).place_for_fresh().base is rows
    assert StreamState(1, rows[:-1].copy(), rows).place_for_fresh() is None
    assert StreamState(1, rows[:-1]).place_for_fresh() is None


def test_a_step_in_place_takes_no_memory_of_the_models_size():
    dimension = 1 << 20
    state = STREAM.init(dimension)
    _, state = next_noise(STREAM, state, KEY, dimension=dimension, donate=True)
    tracemalloc.start()
    try:
        next_noise(STREAM, state, KEY, dimension=dimension, donate=True)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * dimension / 2

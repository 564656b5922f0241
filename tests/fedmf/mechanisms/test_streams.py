"""Streams at work: the same noise bit for bit in place, in blocks and saved; and what a step takes."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from fedmf.errors import SettingError
from fedmf.mechanisms import StreamState, design, prefix_sum
from fedmf.mechanisms.noise import advanced, next_noise
from fedmf.randomness import SecretKey

KEY = SecretKey.reproducible(6)
ROUNDS, DIMENSION = 7, 40_000  # more than two blocks of normals


def parts(row):
    """Mean and fresh row, (2, d)."""
    return np.stack([row.mean, row.fresh])


def rows_of(stream, state, *, donate=False):
    """The rows of all steps that are left."""
    rows = []
    while state.step < stream.rounds:
        row, state = next_noise(stream, state, KEY, dimension=DIMENSION, donate=donate)
        rows.append(parts(row))
    return rows


def peak_of_a_step(stream, state, dimension):
    """The most memory that a step in place takes, in bytes, once it has run before."""
    _, state = next_noise(stream, state, KEY, dimension=dimension, donate=True)
    tracemalloc.start()
    try:
        next_noise(stream, state, KEY, dimension=dimension, donate=True)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_rows_drawn_again_take_the_memory_of_four():
    """Float64: the mean, the fresh row, the one drawn again and the one before it. Kept ones would be six more."""
    stream, dimension = design("honaker_full", prefix_sum(ROUNDS)).stream, 1 << 18
    state = replace(stream.init(dimension), step=ROUNDS - 2)
    peak = peak_of_a_step(stream, state, dimension)
    assert peak < 5 * 8 * dimension  # with scratch of the normals and of the sum


def test_going_forward_without_rows_draws_nothing(monkeypatch):
    stream = design("honaker_full", prefix_sum(ROUNDS)).stream
    expected = rows_of(stream, stream.init(DIMENSION))
    with monkeypatch.context() as patched:
        patched.delattr("fedmf.mechanisms.noise.gaussian_row")
        state = advanced(stream, stream.init(DIMENSION), KEY, 5, dimension=DIMENSION)
    np.testing.assert_array_equal(rows_of(stream, state), expected[5:])


def test_a_step_in_place_takes_the_memory_of_its_mean_and_its_fresh_row():
    """Both float64, as long as the model; anything else stays in blocks."""
    stream, dimension = design("optimal", prefix_sum(12), buffers=3).stream, 1 << 20
    assert peak_of_a_step(stream, stream.init(dimension), dimension) < 2.5 * 8 * dimension


def test_noise_in_place_and_from_a_saved_state_has_the_bits_of_noise_from_copies():
    """In more than one block of columns, and no whole number of them."""
    stream = design("optimal", prefix_sum(12), buffers=3).stream
    expected = rows_of(stream, stream.init(DIMENSION))
    np.testing.assert_array_equal(rows_of(stream, stream.init(DIMENSION), donate=True), expected)
    state = stream.init(DIMENSION)
    for _ in range(5):
        _, state = next_noise(stream, state, KEY, dimension=DIMENSION, donate=True)
    saved = StreamState(state.step, state.buffers.copy())
    np.testing.assert_array_equal(rows_of(stream, saved, donate=True), expected[5:])


@pytest.mark.parametrize("family", ["optimal", "sqrt_toeplitz", "binary_tree", "honaker_full"])
def test_a_round_is_drawn_again_until_its_state_was_handed_on_and_never_after(family):
    stream = design(family, prefix_sum(6)).stream
    state = stream.init(20)
    for _ in range(6):
        row, _ = next_noise(stream, state, KEY, dimension=20)
        again, after = next_noise(stream, state, KEY, dimension=20, donate=True)
        np.testing.assert_array_equal(parts(row), parts(again))
        for refused in (next_noise, lambda *given, dimension: advanced(*given, 6, dimension=dimension)):
            with pytest.raises(SettingError, match=f"of step {state.step} was handed on"):
                refused(stream, state, KEY, dimension=20)
        state = after

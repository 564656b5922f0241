"""One client's update as a vector: its layout, both clips in float64, and rounding to int8."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as hnp

from fedmf.errors import SettingError
from fedmf.randomness import PublicSeed, SecretKey
from fedmf.updates import vectors
from fedmf.updates.rotation import Rotation, zero_if_not_finite
from fedmf.updates.vectors import (
    TAU,
    Layout,
    clip_l2,
    clip_linf,
    dequantize,
    l2_norm,
    level_step,
    round_to_levels,
)


def test_a_layout_flattens_arrays_of_any_type_and_splits_without_a_copy():
    arrays = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.array(7.0)}
    layout = Layout.of(arrays)
    flat = layout.flatten(arrays)
    assert (flat.dtype, flat.shape) == (np.float32, (layout.dimension,))
    for name, array in layout.split(flat).items():
        np.testing.assert_array_equal(array, arrays[name])
    layout.split(flat)["a"][0, 0] = 9
    assert flat.tolist() == [9, 1, 2, 3, 4, 5, 7]
    with pytest.raises(SettingError, match="parameters are Layout"):
        layout.flatten({"a": np.zeros(6), "b": np.zeros(())})
    with pytest.raises(SettingError, match="7 parameters"):
        layout.split(np.zeros(8, np.float32))


any_float32 = hnp.arrays(np.float32, st.integers(1, 50), elements=st.floats(width=32))


def as_given_or_zero(vector):
    """What the look for entries that are not finite leaves of a vector that is not rotated."""
    return zero_if_not_finite(Rotation("identity", vector.size, PublicSeed(0)).turn(vector)).values


@given(any_float32, st.floats(1e-6, 1e6))
@settings(max_examples=300)
def test_whatever_comes_in_leaves_within_both_bounds(vector, bound):
    """Known traps of docs/privacy.md: NaN, inf, and the float32 norm of 1e30 that overflows."""
    vector = as_given_or_zero(vector)
    clipped = clip_l2(vector, bound)
    assert np.isfinite(clipped).all()
    assert np.linalg.norm(clipped.astype("f8")) <= bound
    boxed = clip_linf(vector, bound)
    assert np.abs(boxed.astype("f8")).max() <= bound


def test_norm_is_taken_in_float64():
    assert l2_norm(np.full(4, 1e30, np.float32)) == pytest.approx(2e30)


def test_one_bad_entry_zeroes_the_vector():
    for bad in (np.nan, np.inf, -np.inf):
        assert not as_given_or_zero(np.array([1, bad, 2], np.float32)).any()
    assert as_given_or_zero(np.array([1, 3e38, 2], np.float32))[1] == np.float32(3e38)


@pytest.mark.parametrize("bound", [1e-20, 1e-12, 1e-6, 3e-5, 1e-3, 1.0])
@pytest.mark.parametrize("largest", [3e38, 2e37, 1e36])
def test_the_longest_vectors_end_at_the_bound_however_small_it_is(bound, largest):
    """The factor is then no normal float32: it would be lost, or rounded up by more than the margin."""
    vector = largest * np.random.default_rng(0).uniform(-1, 1, 1000)
    clipped = clip_l2(vector.astype("f4"), bound)
    assert clipped.dtype == np.float32
    assert bound * (1 - 2.0**-19) < np.linalg.norm(clipped.astype("f8")) <= bound


KEY = SecretKey.reproducible(3)


def unit_vector(dimension=4096, seed=0):
    vector = np.random.default_rng(seed).normal(size=dimension)
    return (vector / np.linalg.norm(vector)).astype("f4")


def test_rounding_is_unbiased():
    linf = 0.06
    vector = clip_linf(unit_vector(), linf)
    draws = [
        dequantize(round_to_levels(vector, l2_bound=1.0, linf_bound=linf, key=KEY.derive("t", k)), linf)
        for k in range(400)
    ]
    step = level_step(linf)
    error = np.mean(draws, axis=0) - vector
    assert np.abs(error).max() < 5 * step / 2 / np.sqrt(400)
    truncated = np.trunc(vector / step) * step  # the control: rounding toward zero is biased
    assert np.abs(truncated - vector).max() > 5 * step / 2 / np.sqrt(400)


@pytest.mark.parametrize("word", [0, 2**64 - 1])
def test_the_quantiser_divides_by_the_step_that_levels_are_multiplied_by(word, monkeypatch):
    """Values on the grid are their levels in every draw, the lowest and the highest too; on a grid of linf / 127 they are not."""
    monkeypatch.setattr(vectors, "uniform_words", lambda key, count: np.full(count, word, np.uint64))
    levels = np.arange(-127, 128, dtype=np.int8)
    for linf in np.random.default_rng(0).uniform(0.01, 1, 200):
        grid = levels * float(level_step(linf))  # float64, exact
        np.testing.assert_array_equal(round_to_levels(grid, l2_bound=20.0, linf_bound=linf, key=KEY), levels)


@pytest.mark.parametrize("radius", [0.01, 1.0, 30.0])
@pytest.mark.parametrize("linf", [0.06, 1.0])
def test_radius_is_held_also_where_nearly_every_draw_is_too_long(linf, radius):
    """With a coarse grid a vector would grow up to 1.4 times as long; then rounding goes toward zero."""
    for seed in range(5):
        vector = clip_linf(radius * unit_vector(seed=seed), linf * radius)
        levels = round_to_levels(vector, l2_bound=radius, linf_bound=linf * radius, key=KEY)
        assert levels.dtype == np.int8
        assert np.linalg.norm(dequantize(levels, linf * radius).astype("f8")) <= (1 + TAU) * radius
        assert float(np.abs(dequantize(levels, linf * radius)).max()) <= linf * radius


def test_a_single_stochastic_draw_on_a_coarse_grid_would_break_the_radius():
    vector, step = unit_vector(), 1 / 127
    lengthened = np.floor(vector / step + np.random.default_rng(0).random(vector.size)) * step
    assert np.linalg.norm(lengthened) > 1 + TAU


@pytest.mark.parametrize("value", [0.5, 0.51])  # 0.51 is 129.5 steps, which no int8 holds
def test_the_ends_of_the_grid_are_the_bounds_and_values_just_beyond_it_do_not_change_sign(value):
    vector = np.array([value, -value], np.float32)
    assert round_to_levels(vector, l2_bound=1.0, linf_bound=0.5, key=KEY).tolist() == [127, -127]


def test_a_draw_that_is_too_long_is_made_anew_and_not_repeated():
    """The first value's higher level is too long. Repeated, such draws would all be rounded toward zero: biased."""
    vector = np.array([100.5 / 127, 0.5 / 127], np.float32)
    drawn = [
        round_to_levels(vector, l2_bound=100.5 / 127, linf_bound=1.0, key=KEY.derive("t", k)).tolist()
        for k in range(400)
    ]
    assert drawn.count([100, 1]) + drawn.count([100, 0]) == 400
    assert abs(drawn.count([100, 1]) - 200) < 5 * 10  # 5 standard deviations; 100 if draws were repeated

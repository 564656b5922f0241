import numpy as np
import pytest

from fedmf.randomness import SecretKey
from fedmf.updates import rounding
from fedmf.updates.clipping import clip_linf
from fedmf.updates.rounding import TAU, dequantize, level_step, round_to_levels

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
    monkeypatch.setattr(rounding, "uniform_words", lambda key, count: np.full(count, word, np.uint64))
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


def test_grid_ends_are_the_bounds():
    vector = np.array([0.5, -0.5], np.float32)
    assert round_to_levels(vector, l2_bound=1.0, linf_bound=0.5, key=KEY).tolist() == [127, -127]


def test_a_value_just_beyond_the_grid_is_its_last_level_and_does_not_change_sign():
    vector = np.array([0.51, -0.51], np.float32)  # 129.5 steps, which no int8 holds
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

"""One client's update as a vector, clipped and rounded; and as it travels: within its bounds whatever the bytes are, bound to its task by a tag."""

import hashlib
import hmac as standard

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as hnp

from fedmf.errors import SettingError
from fedmf.randomness import PublicSeed, SecretKey
from fedmf.updates import vectors, wire
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
from fedmf.updates.wire import TAG_BYTES, Bounds, Turn, with_tag, without_tags


def test_a_layout_splits_without_a_copy():
    layout, flat = Layout(("a", "b"), ((2, 3), ())), np.arange(7, dtype=np.float32)
    layout.split(flat)["a"][0, 0] = 9
    assert flat.tolist() == [9, 1, 2, 3, 4, 5, 6]
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
    assert np.abs(clip_linf(vector, bound).astype("f8")).max() <= bound


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
    clipped = clip_l2((largest * np.random.default_rng(0).uniform(-1, 1, 1000)).astype("f4"), bound)
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
    assert np.abs(np.mean(draws, axis=0) - vector).max() < 5 * step / 2 / np.sqrt(400)
    truncated = np.trunc(vector / step) * step  # the control: rounding toward zero is biased
    assert np.abs(truncated - vector).max() > 5 * step / 2 / np.sqrt(400)


@pytest.mark.parametrize("word", [0, 2**64 - 1])
def test_the_quantiser_divides_by_the_step_that_levels_are_multiplied_by(word, monkeypatch):
    """Values on the grid are their levels in every draw, the lowest and the highest too; on a grid of linf / 127 they are not."""
    keys, words = set(), np.full(255, word, np.uint64)
    monkeypatch.setattr(vectors, "uniform_words", lambda key, count: keys.add(key) or words[:count])
    levels = np.arange(-127, 128, dtype=np.int8)
    for linf in np.random.default_rng(0).uniform(0.01, 1, 200):
        grid = levels * float(level_step(linf))  # float64, exact
        np.testing.assert_array_equal(round_to_levels(grid, l2_bound=20.0, linf_bound=linf, key=KEY), levels)
    assert keys == {KEY.derive("rounding", 0)}  # no other draw has this purpose


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


# on the wire


BOUNDS = Bounds(1.0, 0.25)
INT8 = Bounds(1.0, 0.25, "int8")


def test_values_and_levels_survive_the_wire():
    values = np.array([0.1, -0.2, 0.0], np.float32)
    np.testing.assert_array_equal(wire.decode(wire.to_bytes(values), BOUNDS, kept=3), values)
    np.testing.assert_array_equal(wire.to_vector(wire.to_bytes(values)), values)
    levels = np.array([127, -127, 3], np.int8)
    decoded = wire.decode(wire.to_bytes(levels), INT8, kept=3)
    np.testing.assert_allclose(decoded, levels * (0.25 / 127), rtol=1e-6)


@pytest.mark.parametrize(
    "data",
    [
        None,
        3,
        "text",
        b"",
        b"123",
        bytes(16),
        np.zeros(3, np.float32),
        np.array([0, np.nan, 0], "<f4").tobytes(),
    ],
    ids=["nothing", "a number", "text", "no bytes", "few bytes", "many bytes", "an array", "not finite"],
)
def test_whatever_is_malformed_counts_as_the_zero_vector(data):
    np.testing.assert_array_equal(wire.decode(data, BOUNDS, kept=3), np.zeros(3))


@given(st.binary(max_size=64), st.integers(0, 16), st.sampled_from([BOUNDS, INT8, Bounds(None, None)]))
@settings(max_examples=300)
def test_no_bytes_exceed_the_bounds(data, kept, bounds):
    values = wire.decode(data, bounds, kept=kept)
    assert values.shape == (kept,)
    assert np.isfinite(values).all()
    if bounds.l2_norm is not None:
        assert np.linalg.norm(values.astype("f8")) <= bounds.radius
        assert np.abs(values).max(initial=0) <= np.float32(bounds.linf_norm)


def test_values_beyond_the_bounds_are_clipped_to_them():
    wild = np.array([1e30, -1e30, 0.1], np.float32)
    np.testing.assert_allclose(wire.decode(wild.tobytes(), BOUNDS, kept=3), [0.25, -0.25, 0.1])
    many = np.full(100, 0.25, np.float32)
    assert np.linalg.norm(wire.decode(many.tobytes(), BOUNDS, kept=100)) == pytest.approx(1.0, rel=1e-5)


def test_value_bytes_are_nominal_and_int8_is_accounted_at_the_longer_radius():
    assert INT8.radius == pytest.approx(1 + TAU)
    assert BOUNDS.radius == 1.0
    assert wire.value_bytes(1024, 0.1, "float32") == pytest.approx(409.6)
    assert wire.value_bytes(1024, 0.1, "int8") == pytest.approx(102.4)


MASK_KEY = SecretKey.reproducible(0).mask_key("7", 2)
TURN = Turn(run=2**63 + 5, epoch=1, step=2, client="7")
VALUES = bytes(range(40))


def opened(data):
    """What is left of a client's bytes without their tag."""
    return without_tags([data], [MASK_KEY], [TURN])[0]


def test_what_the_client_binds_is_what_the_server_opens():
    for values in (VALUES, b"", bytes(1_000_000)):
        sent = with_tag(values, MASK_KEY, TURN)
        assert len(sent) == len(values) + TAG_BYTES == len(values) + 16
        assert opened(sent) == values


def test_the_tag_is_hmac_under_a_key_of_its_own_that_hangs_on_run_epoch_step_and_client():
    """By hand: every part of the key's name with its type and length, as `SecretKey.derive` says."""
    name = b"".join(
        len(part).to_bytes(4, "big") + part
        for part in (b"sreply tag", b"i%d" % (2**63 + 5), b"i1", b"i2", b"s7")
    )
    key = standard.new(MASK_KEY.reveal(), name, hashlib.sha256).digest()
    expected = standard.new(key, VALUES, hashlib.sha256).digest()[:16]
    assert with_tag(VALUES, MASK_KEY, TURN) == VALUES + expected
    assert key not in (
        MASK_KEY.reveal(),
        MASK_KEY.derive("coordinates").reveal(),
        MASK_KEY.derive("rounding", 0).reveal(),
    )


@pytest.mark.parametrize(
    "other",
    [
        TURN._replace(run=1),
        TURN._replace(epoch=0),
        TURN._replace(step=1),
        TURN._replace(client="8"),
        TURN._replace(epoch=2, step=1),
    ],
    ids=["run", "epoch", "step", "client", "epoch and step"],
)
def test_values_of_another_task_or_under_another_key_are_refused(other):
    assert opened(with_tag(VALUES, MASK_KEY, other)) is None
    assert opened(with_tag(VALUES, SecretKey.reproducible(1), TURN)) is None


@given(st.integers(0, len(VALUES) + TAG_BYTES - 1), st.integers(1, 255))
def test_no_byte_of_values_or_tag_can_be_changed(place, flipped):
    sent = bytearray(with_tag(VALUES, MASK_KEY, TURN))
    sent[place] ^= flipped
    assert opened(bytes(sent)) is None


@given(st.one_of(st.binary(max_size=80), st.none(), st.text(), st.floats(), st.lists(st.binary())))
def test_whatever_else_is_sent_is_refused_without_an_error(data):
    assert opened(data) is None
    assert opened(with_tag(VALUES, MASK_KEY, TURN)[:-1]) is None


def test_tags_are_compared_in_constant_time(monkeypatch):
    compared = []
    monkeypatch.setattr(wire.hmac, "compare_digest", lambda a, b: compared.append((a, b)) or False)
    assert opened(with_tag(VALUES, MASK_KEY, TURN)) is None
    assert [(len(a), len(b)) for a, b in compared] == [(16, 16)]

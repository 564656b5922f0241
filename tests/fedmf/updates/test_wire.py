import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from fedmf.updates import wire
from fedmf.updates.rounding import TAU
from fedmf.updates.wire import Bounds

BOUNDS = Bounds(1.0, 0.25)
INT8 = Bounds(1.0, 0.25, "int8")


def test_values_survive_the_wire():
    values = np.array([0.1, -0.2, 0.0], np.float32)
    np.testing.assert_array_equal(wire.decode(wire.to_bytes(values), BOUNDS, kept=3), values)
    np.testing.assert_array_equal(wire.to_vector(wire.to_bytes(values)), values)


def test_levels_survive_the_wire():
    levels = np.array([127, -127, 3], np.int8)
    np.testing.assert_allclose(
        wire.decode(wire.to_bytes(levels), INT8, kept=3), np.array([127, -127, 3]) * 0.25 / 127, rtol=1e-6
    )


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
@settings(max_examples=300, deadline=None)
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


def test_int8_is_accounted_at_the_longer_radius():
    assert INT8.radius == pytest.approx(1 + TAU)
    assert BOUNDS.radius == 1.0


def test_value_bytes_are_nominal():
    assert wire.value_bytes(1024, 0.1, "float32") == pytest.approx(409.6)
    assert wire.value_bytes(1024, 0.1, "int8") == pytest.approx(102.4)

"""The sum of replies, compiled and in numpy: the same bits of the exact integer sum whatever clients send."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from fedmf.updates import wire
from fedmf.updates.wire import Bounds
from server.aggregation import FixedPoint
from without_numba import both_forms

BOUNDS = [
    Bounds(1.0, 0.25),
    Bounds(1.0, 0.25, "int8"),
    Bounds(None, None),
    Bounds(1e-20, 1e-20),
    Bounds(0.3, 0.3),
]
SPECIAL = [
    np.nan,
    np.inf,
    -np.inf,
    3.4e38,
    -3.4e38,
    1e-45,
    -0.0,
    0.25,
    0.25000003,
    -0.25,
    -1.0,
    2.0**20,
    2.0**21,
]


def summed(replies, bounds):
    """The sum of `replies`, (coordinates, bytes) each, and what each was decoded to."""
    grid = FixedPoint.fit(bounds.linf_norm, 9)
    total, decoded = grid.zeros(64), []
    for coordinates, data in replies:
        decoded.append(wire.decode(data, bounds, kept=len(coordinates)))
        grid.add(total, coordinates, decoded[-1])
    return total, decoded


def both(replies, bounds):
    """What numpy alone gives and what compiled code gives."""
    return both_forms(lambda: summed(replies, bounds))


@given(st.data(), st.sampled_from(BOUNDS), st.integers(0, 64))
@settings(max_examples=200, deadline=None)
def test_the_exact_sum_has_the_same_bits_compiled(data, bounds, kept):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    replies = []
    for _ in range(3):
        coordinates = np.sort(rng.choice(64, kept, replace=False)).astype(np.int64)
        size = data.draw(st.sampled_from([0.01, 0.125, 0.2, 1.0, 1e6]))
        values = rng.normal(0, size * (bounds.linf_norm or 1), kept).astype("<f4")
        if kept and data.draw(st.booleans()):
            values[rng.integers(kept)] = data.draw(st.sampled_from(SPECIAL))
        levels = rng.integers(-128, 128, kept).astype("i1") if bounds.value_type == "int8" else values
        replies.append((coordinates, data.draw(st.sampled_from([levels.tobytes(), data.draw(st.binary())]))))
    (total, decoded), (compiled_total, compiled_decoded) = both(replies, bounds)
    np.testing.assert_array_equal(compiled_total, total)
    for one, other in zip(decoded, compiled_decoded, strict=True):
        np.testing.assert_array_equal(other.view(np.uint32), one.view(np.uint32))


@pytest.mark.parametrize("bounds", BOUNDS)
def test_each_special_value_is_decoded_to_the_same_bits_compiled(bounds):
    """Not finite, beyond the bound, at it, denormal: among values that are within all bounds."""
    for special in SPECIAL:
        values = np.full(8, 0.01, "<f4")
        values[3] = special
        (total, decoded), (compiled, found) = both([(np.arange(8), values.tobytes())], bounds)
        np.testing.assert_array_equal(compiled, total)
        np.testing.assert_array_equal(found[0].view(np.uint32), decoded[0].view(np.uint32))


def test_a_norm_within_rounding_of_the_bound_is_decided_by_numpy_alone():
    """Whether a reply is clipped must not depend on the order of a sum."""
    coordinates = np.arange(64)
    for scale in (1 - 1e-7, 1 - 6e-8, 1.0, 1 + 6e-8, 1 + 1e-6):
        values = np.full(64, scale / 8, "<f4")
        (total, _), (compiled, _) = both([(coordinates, values.tobytes())], Bounds(1.0, 0.25))
        np.testing.assert_array_equal(compiled, total)


def test_compiled_code_reports_a_coordinate_outside_the_sum():
    grid = FixedPoint.fit(1.0, 3)
    for coordinate in (-5, 4):
        with pytest.raises(IndexError):
            grid.add(grid.zeros(4), np.array([0, coordinate]), np.ones(2, np.float32))


def test_the_sum_is_converted_in_its_own_memory_when_donated():
    grid = FixedPoint.fit(0.25, 3)
    total = grid.zeros(40_001)
    total[:] = np.random.default_rng(0).integers(-(2**62), 2**62, total.size)
    before = total.copy()
    value = grid.value(total)
    np.testing.assert_array_equal(total, before)
    np.testing.assert_array_equal(value, before * 2.0**-grid.bits)
    donated = grid.value(total, donate=True)
    assert np.shares_memory(donated, total)
    np.testing.assert_array_equal(donated, value)

"""The exact sum of replies: the same bits in any order, compiled and in numpy, whatever clients send."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from fedmf.updates import wire
from fedmf.updates.wire import Bounds
from oracles import both_forms
from server.state import UNCLIPPED_BOUND, FixedPoint

BOUNDS = [
    Bounds(1.0, 0.25),
    Bounds(1.0, 0.25, "int8"),
    Bounds(None, None),
    Bounds(1e-20, 1e-20),
    Bounds(0.3, 0.3),
]
# Not finite, beyond the bound, at it, denormal.
SPECIAL = [np.nan, np.inf, -np.inf, 3.4e38, -3.4e38, 1e-45, -0.0, 0.25, 0.25000003, -0.25, -1.0, 2.0**20, 2.0**21]  # fmt: skip


@given(st.integers(0, 2**32), st.integers(1, 40), st.floats(1e-6, 1e6))
@settings(max_examples=50)
def test_sum_does_not_depend_on_the_order_of_replies(seed, terms, bound):
    rng = np.random.default_rng(seed)
    grid = FixedPoint.fit(bound, terms)
    messages = [
        (np.sort(rng.choice(30, 12, replace=False)), (bound * rng.uniform(-1, 1, 12)).astype("f4"))
        for _ in range(terms)
    ]
    sums = []
    for order in (range(terms), rng.permutation(terms)):
        total = np.zeros(30, np.int64)
        for k in order:
            grid.add(total, *messages[k])
        sums.append(total)
    np.testing.assert_array_equal(*sums)
    exact = np.zeros(30)
    for coordinates, values in messages:
        np.add.at(exact, coordinates, values.astype("f8"))
    np.testing.assert_allclose(grid.value(sums[0]), exact, rtol=1e-6, atol=1e-9 * bound)


@pytest.mark.parametrize("bound", [1e-20, 1.001e-7, 0.37, 1.0, 1e20])
@pytest.mark.parametrize("terms", [1, 1000, 10**6])
def test_values_are_added_exactly_or_cut_toward_zero_by_less_than_a_step(bound, terms):
    grid = FixedPoint.fit(bound, terms)
    step = 2.0**-grid.bits
    assert step <= max(bound * (terms + 1) * 2.0**-61, 2.0**-100)
    sizes = np.geomspace(step / 10, bound, 200).astype("f4")[:-1]
    for values in (sizes, -sizes):
        total = np.zeros(len(values), np.int64)
        grid.add(total, np.arange(len(values)), values)
        cut = np.sign(values) * (values.astype("f8") - grid.value(total))
        assert (cut >= 0).all()
        assert (cut < step).all()
        assert not cut[sizes >= 2**24 * step].any()


@pytest.mark.parametrize(
    ("bound", "values", "sums"),
    [
        (None, [1e30, 3.25], [UNCLIPPED_BOUND, 3.25]),
        (0.25, [7.0, -7.0, 0.25, np.inf], [0.25, -0.25, 0.25, 0.25]),
    ],
)
@pytest.mark.parametrize("terms", [1, 7, 100, 100_000])
def test_values_beyond_the_bound_count_as_the_bound_and_no_sum_of_whole_numbers_overflows(
    bound, values, sums, terms
):
    grid = FixedPoint.fit(bound, terms)
    assert grid.bound * 2.0**grid.bits * terms < 2**63
    total = np.zeros(len(values), np.int64)
    for _ in range(min(terms, 100)):
        grid.add(total, np.arange(len(values)), np.array(values, np.float32))
    assert total.dtype == np.int64
    assert grid.value(total).dtype == np.float64
    assert grid.value(total).tolist() == [min(terms, 100) * one for one in sums]


# compiled


def both(replies, bounds):
    """The sum of `replies`, (coordinates, bytes) each, and what each was decoded to: the same bits in both forms."""

    def summed():
        grid = FixedPoint.fit(bounds.linf_norm, 9)
        total, decoded = np.zeros(64, np.int64), []
        for coordinates, data in replies:
            decoded.append(wire.decode(data, bounds, kept=len(coordinates)))
            grid.add(total, coordinates, decoded[-1])
        return total, decoded

    (total, decoded), (compiled_total, compiled_decoded) = both_forms(summed)
    np.testing.assert_array_equal(compiled_total, total)
    for one, other in zip(decoded, compiled_decoded, strict=True):
        np.testing.assert_array_equal(other.view(np.uint32), one.view(np.uint32))


@given(st.data(), st.sampled_from(BOUNDS), st.integers(0, 64))
@settings(max_examples=200)
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
    both(replies, bounds)


@pytest.mark.parametrize("bounds", BOUNDS)
def test_norms_within_rounding_of_the_bound_have_the_same_bits_compiled(bounds):
    """Whether a reply is clipped must not depend on the order of a sum."""
    for scale in (1 - 1e-7, 1 - 6e-8, 1.0, 1 + 6e-8, 1 + 1e-6):
        both([(np.arange(64), np.full(64, scale / 8, "<f4").tobytes())], bounds)


def test_compiled_code_reports_a_coordinate_outside_the_sum():
    grid = FixedPoint.fit(1.0, 3)
    for coordinate in (-5, 4):
        with pytest.raises(IndexError):
            grid.add(np.zeros(4, np.int64), np.array([0, coordinate]), np.ones(2, np.float32))


def test_the_sum_is_converted_in_its_own_memory_when_donated():
    grid = FixedPoint.fit(0.25, 3)
    total = np.zeros(40_001, np.int64)
    total[:] = np.random.default_rng(0).integers(-(2**62), 2**62, total.size)
    before = total.copy()
    value = grid.value(total)
    np.testing.assert_array_equal(total, before)
    np.testing.assert_array_equal(value, before * 2.0**-grid.bits)
    donated = grid.value(total, donate=True)
    assert np.shares_memory(donated, total)
    np.testing.assert_array_equal(donated, value)

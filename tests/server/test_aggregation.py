import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from server.aggregation import UNCLIPPED_BOUND, FixedPoint


@given(st.integers(0, 2**32), st.integers(1, 40), st.floats(1e-6, 1e6))
@settings(max_examples=50, deadline=None)
def test_sum_does_not_depend_on_the_order_of_replies(seed, terms, bound):
    rng = np.random.default_rng(seed)
    grid = FixedPoint.fit(bound, terms)
    messages = [
        (np.sort(rng.choice(30, 12, replace=False)), (bound * rng.uniform(-1, 1, 12)).astype("f4"))
        for _ in range(terms)
    ]
    sums = []
    for order in (range(terms), rng.permutation(terms)):
        total = grid.zeros(30)
        for k in order:
            grid.add(total, *messages[k])
        sums.append(total)
    np.testing.assert_array_equal(*sums)
    exact = np.zeros(30)
    for coordinates, values in messages:
        np.add.at(exact, coordinates, values.astype("f8"))
    np.testing.assert_allclose(grid.value(sums[0]), exact, rtol=1e-6, atol=1e-9 * bound)


def test_a_plain_float_sum_would_depend_on_the_order():
    values = np.array([1.0, 1e-8, -1.0], np.float32)
    assert (values[0] + values[1]) + values[2] != (values[0] + values[2]) + values[1]


@pytest.mark.parametrize("terms", [1, 7, 100, 100_000])
def test_values_at_the_bound_never_overflow(terms):
    grid = FixedPoint.fit(0.37, terms)
    assert 0.37 * 2.0**grid.bits * terms < 2**63
    total = grid.zeros(1)
    for _ in range(min(terms, 100)):
        grid.add(total, np.array([0]), np.array([np.inf], np.float32))
    np.testing.assert_allclose(grid.value(total), 0.37 * min(terms, 100), rtol=1e-6)


@pytest.mark.parametrize("bound", [1e-20, 1.001e-7, 0.37, 1.0, 1e20])
@pytest.mark.parametrize("terms", [1, 1000, 10**6])
def test_values_are_added_exactly_or_cut_toward_zero_by_less_than_a_step(bound, terms):
    grid = FixedPoint.fit(bound, terms)
    step = 2.0**-grid.bits
    assert step <= max(bound * (terms + 1) * 2.0**-61, 2.0**-100)
    sizes = np.geomspace(step / 10, bound, 200).astype("f4")[:-1]
    for values in (sizes, -sizes):
        total = grid.zeros(len(values))
        grid.add(total, np.arange(len(values)), values)
        cut = np.sign(values) * (values.astype("f8") - grid.value(total))
        assert (cut >= 0).all()
        assert (cut < step).all()
        assert not cut[sizes >= 2**24 * step].any()


def test_without_clipping_values_count_up_to_the_unclipped_bound():
    grid = FixedPoint.fit(None, 4)
    total = grid.zeros(2)
    grid.add(total, np.array([0, 1]), np.array([1e30, 3.25], np.float32))
    np.testing.assert_array_equal(grid.value(total), [UNCLIPPED_BOUND, 3.25])


def test_values_beyond_the_bound_on_either_side_count_as_the_bound_and_sums_are_whole_numbers():
    grid = FixedPoint.fit(0.25, 3)
    total = grid.zeros(4)
    assert total.dtype == np.int64
    grid.add(total, np.arange(4), np.array([7.0, -7.0, 0.25, -0.25], np.float32))
    assert total.dtype == np.int64
    assert grid.value(total).tolist() == [0.25, -0.25, 0.25, -0.25]
    assert grid.value(total).dtype == np.float64

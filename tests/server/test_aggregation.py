import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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


def test_without_clipping_values_count_up_to_the_unclipped_bound():
    grid = FixedPoint.fit(None, 4)
    total = grid.zeros(2)
    grid.add(total, np.array([0, 1]), np.array([1e30, 3.25], np.float32))
    np.testing.assert_array_equal(grid.value(total), [UNCLIPPED_BOUND, 3.25])

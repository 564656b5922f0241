"""Epsilon and delta as people read them: never less than they are, by as little as four digits allow."""

import numpy as np
import pytest

from fedmf.rounding import rounded_up


@pytest.mark.parametrize("digits", [1, 3, 4])
def test_a_bound_is_never_said_smaller_and_at_most_one_last_digit_larger(digits):
    values = np.exp(np.random.default_rng(0).uniform(np.log(1e-12), np.log(1e7), 2000)).tolist()
    for value in (*values, 5.71640, 9.9996, 0.1, 0.3, 1e-5, 8.0, 8 - 1e-12, 8 + 1e-12):
        said = float(rounded_up(value, digits))
        assert value <= said <= value * (1 + 10.0 ** (1 - digits)) * (1 + 1e-12)


def test_what_fits_is_said_as_it_is():
    for value in (8.0, 0.5, 1e-4, 5.716, 1234.0, 100000.0, 0.0):
        assert float(rounded_up(value)) == value

"""A row is measured in turns: which turn counts, whose floor is whose, and that compiling is in none of them."""

import time

import numpy as np
import pytest
from numba import njit

from experiments.benchmark.row import Row, measure


@pytest.fixture(autouse=True)
def one_call_a_turn(monkeypatch):
    monkeypatch.setattr("experiments.benchmark.row._SHORTEST_TURN", 0.0)


class Clock:
    """CPU time that passes only when an action says how much it takes."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr("experiments.benchmark.row.time.process_time", lambda: self.now)

    def taking(self, *seconds):
        """Return an action that takes the next of `seconds` at each call, after two calls that warm up."""
        left = iter((0.0, 0.0, *seconds))

        def action():
            self.now += next(left)

        return action


def test_the_turn_with_the_median_ratio_counts(monkeypatch):
    """A slow minute makes both slow: the median of our times over the median of the floors would be 30 / 2 here."""
    clock = Clock(monkeypatch)
    row = Row(clock.taking(30.0, 3.0, 40.0), clock.taking(10.0, 2.0, 2.0), "steps")
    measured = measure(row, 3)
    assert (measured["ratio"], measured["seconds"], measured["floor"]) == (3.0, 30.0, 10.0)
    assert measured["turns"] == 3


def test_compiling_is_in_no_turn():
    """The third call and the fifth, which would be the turn, meet types that numba has not compiled for."""
    calls = []

    @njit
    def total(x):
        return x.sum()

    def action():
        calls.append(1)
        total(np.zeros(4, {3: np.int16, 5: np.int32}.get(len(calls), np.float32)))

    begun = time.process_time()
    measured = measure(Row(action, lambda: None, "nothing"), 1)
    assert len(total.signatures) == 3
    assert measured["seconds"] < 1e-3 < 0.01 < time.process_time() - begun


def test_a_row_that_compiles_in_every_turn_is_refused():
    with pytest.raises(RuntimeError, match="compiled something"):
        measure(Row(lambda: njit(lambda: 1)(), lambda: None, "nothing"), 1)

"""The diagonal compiled and in numpy, and the form for one state beside that for two."""

import numpy as np
import pytest

from fedmf.mechanisms import momentum, of_run, prefix_sum
from fedmf.mechanisms.optimum import fixed_point, smoother
from fedmf.mechanisms.optimum.poles import poles
from fedmf.mechanisms.optimum.smoother import diagonal, filters_in_numpy, filters_of_one_state
from fedmf.mechanisms.schedules import rates
from without_numba import needs_numba, without_numba


@needs_numba
@pytest.mark.parametrize(
    "workload",
    [momentum(60, 0.9, rates("cooldown", 60)), of_run(60, 3, 0.9)[0], of_run(12, 3, 0.9, rates("cooldown", 36))[1]],
    ids=["momentum", "run", "rates"],
)  # fmt: skip
def test_the_compiled_diagonal_is_that_of_numpy_to_rounding(workload, monkeypatch):
    with without_numba():
        solution = fixed_point.solve(workload)
        expansion = poles(solution.interval, 1e-6)
        plain = diagonal(solution.v, workload, expansion)
    monkeypatch.setattr(smoother, "COMPILED_FROM", 1)
    np.testing.assert_allclose(diagonal(solution.v, workload, expansion), plain, rtol=1e-12)
    compiled = fixed_point.solve(workload)
    assert (compiled.upper, compiled.lower) == pytest.approx((solution.upper, solution.lower), rel=1e-9)


def test_short_designs_ask_for_no_compiler(monkeypatch):
    def no_compiler():
        raise AssertionError("numba was asked for")

    monkeypatch.setattr(smoother, "loops", no_compiler)
    fixed_point.solve(prefix_sum(600))
    fixed_point.solve(momentum(60, 0.9))
    with pytest.raises(AssertionError, match="numba was asked for"):
        fixed_point.solve(momentum(smoother.COMPILED_FROM, 0.9))


@pytest.mark.parametrize("workload", [prefix_sum(40), of_run(20, 2, 0.0, tuple(np.linspace(1, 0.2, 40)))[0]])
def test_one_state_needs_no_filter_of_two(workload):
    """Rates that differ and rounds after the epoch included."""
    solution = fixed_point.solve(workload)
    expansion = poles(solution.interval, 1e-6)
    for found, expected in zip(
        filters_of_one_state(solution.v, workload, expansion),
        filters_in_numpy(solution.v, workload, expansion),
        strict=True,
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-300)

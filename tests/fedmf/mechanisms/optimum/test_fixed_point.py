"""The fixed point and its certificate against the dense optimum."""

import logging

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmf.errors import SettingError
from fedmf.mechanisms import design, momentum, prefix_sum, relative_gap
from fedmf.mechanisms import workload as workloads
from fedmf.mechanisms.families.optimal_dense import solve as dense_solve
from fedmf.mechanisms.optimum import fixed_point
from workloads import every_workload


@every_workload
def test_solver_agrees_with_the_dense_fixed_point(workload):
    solution = fixed_point.solve(workload)
    dense = dense_solve(workloads.materialize(workload), gap=1e-8, max_iterations=3000)
    assert solution.lower <= dense.upper * (1 + 1e-9)
    assert dense.lower <= solution.upper * (1 + 1e-9)
    assert solution.upper**2 / solution.lower**2 - 1 <= 1e-6


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 30), st.sampled_from([0.0, 0.5, 0.9]), st.integers(0, 1000))
def test_both_bounds_hold_for_any_v(rounds, beta, seed):
    """Left is below and right above the optimum for every positive v, not only for the fixed point."""
    workload = momentum(rounds, beta)
    optimum = dense_solve(workloads.materialize(workload), gap=1e-7, max_iterations=3000)
    v = np.exp(np.random.default_rng(seed).normal(size=rounds))
    current = fixed_point._evaluate(v, workload)
    assert current.lower <= optimum.upper**2 * (1 + 1e-9)
    assert current.upper >= optimum.lower**2 * (1 - 1e-9)


@pytest.mark.parametrize("rounds", [5, 40, 100])
def test_bounds_are_charged_the_quadrature_error(rounds, monkeypatch):
    """With poles so few that they err by 1 %, the certificate holds; without the charge it would not."""
    exact = fixed_point.solve(prefix_sum(rounds), gap=1e-8)
    monkeypatch.setattr(fixed_point, "QUADRATURE", 1e-2)
    coarse = fixed_point._evaluate(exact.v, prefix_sum(rounds))
    assert coarse.lower <= exact.lower**2
    assert coarse.upper >= exact.upper**2
    assert coarse.upper / (1 + 4e-2) < exact.lower**2


def test_the_solution_has_the_length_that_makes_the_lower_bound_tight():
    """sum v D = sum v: at the optimum D is 1, at any other v this is the best multiple of v."""
    workload = momentum(30, 0.5)
    for start in (1e-6, 1.0, 1e6):
        found = fixed_point._evaluate(start * np.linspace(1, 2, 30), workload)
        assert (found.v * found.diagonal).sum() == pytest.approx(found.v.sum(), rel=1e-9)


def test_stopping_early_says_the_gap_and_keeps_the_bounds(monkeypatch, caplog, tmp_path):
    early = fixed_point.solve(prefix_sum(100), max_iterations=2)
    full = fixed_point.solve(prefix_sum(100))
    assert early.gap > 1e-4
    assert early.lower <= full.upper
    assert early.upper >= full.lower
    monkeypatch.setenv("FEDMF_CACHE", str(tmp_path))
    monkeypatch.setattr(fixed_point, "solve", lambda workload, start: early)
    with caplog.at_level(logging.WARNING):
        mechanism = design("optimal", prefix_sum(100))
    assert "relative gap of" in caplog.text
    assert relative_gap(mechanism) > 0
    assert mechanism.root_loss >= full.lower


def test_a_gap_below_the_quadrature_error_is_refused():
    with pytest.raises(SettingError, match="gap is 1e-12"):
        fixed_point.solve(prefix_sum(10), gap=1e-12)
    with pytest.raises(SettingError, match="gap is nan"):
        fixed_point.solve(prefix_sum(10), gap=float("nan"))

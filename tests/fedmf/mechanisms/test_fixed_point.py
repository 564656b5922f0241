"""The fixed point and its certificate against the dense optimum."""

import logging
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from fedmf.mechanisms import design, momentum, prefix_sum, relative_gap, workload as workloads
from fedmf.mechanisms.families.optimal import solve_densely
from fedmf.mechanisms.optimum import fixed_point
from fedmf.mechanisms.optimum.poles import poles, spectral_interval
from fedmf.mechanisms.schedules import rates
from fedmf.mechanisms.workload import of_run
from fedmf.setting import SCHEDULES
from oracles import every_workload

pytestmark = pytest.mark.long


@every_workload
def test_solver_agrees_with_the_dense_fixed_point(workload):
    solution = fixed_point.solve(workload)
    _, (lower, upper) = solve_densely(workloads.gram(workload), gap=1e-8, max_iterations=3000)
    assert solution.lower <= upper * (1 + 1e-9)
    assert lower <= solution.upper * (1 + 1e-9)
    assert solution.upper**2 / solution.lower**2 - 1 <= 1e-6


@pytest.mark.parametrize("rounds", [5, 40, 100])
def test_bounds_are_charged_the_quadrature_error(rounds, monkeypatch):
    """With poles so few that they err by 1 %, the certificate holds; without the charge it would not."""
    exact = fixed_point.solve(prefix_sum(rounds), gap=1e-8)
    monkeypatch.setattr(fixed_point, "QUADRATURE", 1e-2)
    coarse, _ = fixed_point._evaluate(exact.v, prefix_sum(rounds))
    assert coarse.lower <= exact.lower
    assert coarse.upper >= exact.upper
    assert coarse.upper * (1 - 1e-2) < exact.lower


@pytest.mark.parametrize("error", [-1, 1])
def test_bounds_are_charged_the_rounding_of_the_diagonal(error, monkeypatch):
    """A diagonal that is off by all that is charged for 40 rounds still gives bounds around those of the exact one."""
    workload = replace(prefix_sum(40), later=of_run(1, 101)[0].later)
    v = fixed_point.solve(workload).v
    trusted = fixed_point.diagonal(v, workload, poles(spectral_interval(v, workload), 1e-14))
    trace = (v * trusted).sum()
    monkeypatch.setattr(fixed_point, "QUADRATURE", 1e-14)
    charged = 1 + error * 0.99 * 8 * np.finfo(np.float64).eps * 40
    monkeypatch.setattr(fixed_point, "ROUNDING", 0.0)
    monkeypatch.setattr(fixed_point, "diagonal", lambda v, *_: charged * trusted)
    current, _ = fixed_point._evaluate(v, workload)
    assert current.lower**2 <= trace**2 / v.sum()
    assert trusted.max() * trace <= current.upper**2


def test_stopping_early_says_the_gap_and_keeps_the_bounds(monkeypatch, caplog):
    early = fixed_point.solve(prefix_sum(100), max_iterations=2)
    full = fixed_point.solve(prefix_sum(100))
    assert early.upper / early.lower - 1 > 1e-4
    assert early.lower <= full.upper
    assert early.upper >= full.lower
    fixed_point.certified_run.cache_clear()
    monkeypatch.setattr(fixed_point, "solve", lambda workload, start: early)
    with caplog.at_level(logging.WARNING):
        mechanism = design("optimal", prefix_sum(100))
    assert "relative gap of" in caplog.text
    assert relative_gap(mechanism) > 0
    assert mechanism.root_loss >= full.lower
    fixed_point.certified_run.cache_clear()


@settings(max_examples=30)
@given(st.integers(1, 12), st.integers(0, 5), st.sampled_from([0.0, 0.9]), st.integers(0, 10**6))
def test_no_factorization_is_below_the_left_bound(rounds, extra, beta, seed):
    """For C with more rows than columns and columns shorter than one, with B = A C^+, and for any v."""
    random = np.random.default_rng(seed)
    workload = of_run(rounds, 2, beta)[0]
    C = random.normal(size=(rounds + extra, rounds)) + 3 * np.eye(rounds + extra, rounds)
    C *= random.uniform(0.3, 1, rounds) / np.linalg.norm(C, axis=0)
    encoder = np.linalg.pinv(C, rcond=1e-14)
    loss = np.trace(encoder.T @ workloads.gram(workload) @ encoder)
    v = np.exp(random.normal(size=rounds))
    current, _ = fixed_point._evaluate(v, workload)
    assert current.lower**2 <= loss
    _, (lower, _) = solve_densely(workloads.gram(workload))
    assert current.upper >= lower * (1 - 1e-9)
    # The step of the proof: ||N^(1/2) Y^(-1/2) - Y^(1/2)||_F^2 >= 0 for N = V^1/2 W V^1/2, Y = V^1/2 X V^1/2.
    N, Y = (matrix * np.sqrt(np.multiply.outer(v, v)) for matrix in (workloads.gram(workload), C.T @ C))
    root = np.sqrt(np.linalg.eigvalsh(N)).sum()
    assert np.trace(np.linalg.solve(Y, N)) + np.trace(Y) >= 2 * root * (1 - 1e-9)


@pytest.mark.parametrize("beta", [0.0, 0.9])
def test_orthogonal_epochs_cost_the_sum_of_their_losses_whatever_rows_they_share(beta):
    """C^T C is block-diagonal, though C is not: B = A C^+ has the loss of the E designs, above their certificate."""
    rounds, epochs = 6, 3
    run = of_run(rounds, epochs, beta)
    random = np.random.default_rng(5)
    shared = np.linalg.qr(random.normal(size=(rounds * epochs + 4, rounds * epochs)))[0]
    blocks = [np.tril(random.normal(size=(rounds, rounds))) + 3 * np.eye(rounds) for _ in run]
    blocks = [block / np.linalg.norm(block, axis=0) for block in blocks]
    C = np.hstack([shared[:, e * rounds : (e + 1) * rounds] @ block for e, block in enumerate(blocks)])
    loss = np.linalg.norm(workloads.materialize(momentum(rounds * epochs, beta)) @ np.linalg.pinv(C)) ** 2
    by_epoch = [
        np.trace(np.linalg.solve(block.T @ block, workloads.gram(workload)))
        for workload, block in zip(run, blocks, strict=True)
    ]
    assert loss == pytest.approx(sum(by_epoch), rel=1e-10)
    assert loss >= sum(fixed_point.solve(workload).lower ** 2 for workload in run)


def steps_over_a_run(rounds, epochs, beta, schedule):
    """Solve every epoch of a run, each from the v of the one behind; return the steps, assert gap and poles."""
    eta = None if schedule == "constant" else rates(schedule, rounds * epochs)
    steps, start = [], None
    for workload in reversed(of_run(rounds, epochs, beta, eta)):
        solution = fixed_point.solve(workload, start=start)
        assert solution.upper**2 / solution.lower**2 - 1 <= 1e-6, workload
        assert len(poles(solution.interval, fixed_point.QUADRATURE).shifts) <= 90, workload
        steps.append(solution.iterations)
        start = solution.v
    return steps


RUNS = [(beta, schedule) for beta in (0.0, 0.5, 0.9, 0.99) for schedule in SCHEDULES]
LONG_RUNS = [(beta, schedule) for beta in (0.0, 0.9) for schedule in ("constant", "decay")]
SIZES = {  # rounds and epochs, by the most steps that are allowed
    60: ((1, 4), (2, 16), (8, 4), (64, 1)),
    200: ((8, 16), (64, 4), (64, 16), (512, 1), (512, 4), (512, 16)),
    100: ((2048, 4), (8192, 4)),
}


@pytest.mark.parametrize(
    ("most", "beta", "schedule"),
    [
        *((60, *run) for run in RUNS),
        *(pytest.param(200, *run, marks=pytest.mark.slow) for run in RUNS),
        *(pytest.param(100, *run, marks=pytest.mark.slow) for run in LONG_RUNS),
    ],
)
def test_solver_converges_in_few_steps(most, beta, schedule):
    """Observed, as the documents say: there is no proof that the iteration converges, and `most` has no other ground."""
    for rounds, epochs in SIZES[most]:
        assert max(steps_over_a_run(rounds, epochs, beta, schedule)) <= most

"""The parts of the O(T) optimum against dense twins."""

import logging

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp, mpf

from fedmf.errors import SettingError
from fedmf.mechanisms import compiled, design, momentum, prefix_sum
from fedmf.mechanisms import workload as workloads
from fedmf.mechanisms.compiled import kernels
from fedmf.mechanisms.families import optimal
from fedmf.mechanisms.families.optimal_dense import solve as dense_solve
from fedmf.mechanisms.optimum import fixed_point, smoother
from fedmf.mechanisms.optimum.pole_process import exact_form, innovations, pole_process
from fedmf.mechanisms.optimum.poles import Interval, Poles, poles, spectral_interval
from fedmf.mechanisms.optimum.truncation import observe, reach, truncate
from fedmf.mechanisms.schedules import schedule
from fedmf.mechanisms.streams.recurrence import RecurrentStream, column_norms, strategy_form, tables_of

WORKLOADS = [
    prefix_sum(1),
    prefix_sum(2),
    prefix_sum(50),
    momentum(40, 0.9),
    momentum(40, 0, schedule("linear", 40)),
    momentum(40, 0.95, schedule("cosine", 40, last=1e-3)),
]
every_workload = pytest.mark.parametrize(
    "workload", WORKLOADS, ids=["one", "two", "prefix_sum", "momentum", "rates", "momentum_and_rates"]
)


def precision(workload):
    """P = (A^T A)^-1, dense, from the inverse factor so that it loses nothing."""
    inverse = workloads.solve(workload, np.eye(workload.rounds))
    return inverse @ inverse.T


def some_v(workload):
    return np.random.default_rng(3).uniform(0.5, 2, workload.rounds) / workloads.rates(workload) ** 2


@given(st.floats(-6, 6), st.floats(0, 14), st.floats(0, 1), st.sampled_from([1e-4, 1e-10]))
def test_poles_reach_the_inverse_square_root(log_low, decades, place, tolerance):
    low = 10.0**log_low
    shifts, weights = poles(Interval(low, low * 10**decades), tolerance)
    value = low * 10 ** (place * decades)
    assert (weights / (value + shifts)).sum() * np.sqrt(value) == pytest.approx(1, rel=tolerance)
    assert np.all(shifts > 0)
    assert np.all(weights > 0)


@every_workload
def test_interval_holds_the_whole_spectrum(workload):
    v = some_v(workload)
    values = np.linalg.eigvalsh(precision(workload) / np.sqrt(np.outer(v, v)))
    interval = spectral_interval(v, workload)
    # The dense eigenvalues err by rounding of the largest.
    assert interval.low <= values.min() + 1e-14 * values.max()
    assert values.max() <= interval.high * (1 + 1e-13)
    assert interval.high <= 1.5 * values.max()


@every_workload
def test_filters_give_the_diagonal_of_the_inverse(workload):
    v = some_v(workload)
    expansion = poles(spectral_interval(v, workload), 1e-6)
    P = precision(workload)
    expected = sum(
        weight * np.diag(np.linalg.inv(P + shift * np.diag(v)))
        for shift, weight in zip(*expansion, strict=True)
    )
    for computed in (
        smoother.diagonal(v, workload, expansion),
        smoother.filters(v, workload, expansion)[1],
        smoother.filters_in_numpy(v, workload, expansion)[1],
    ):
        np.testing.assert_allclose(computed, expected, rtol=1e-8)


def test_filters_keep_relative_precision_where_matrices_lose_it():
    """beta .99, n = 1500, tiny shifts: against 40-digit arithmetic
    on the same recursion of exact rationals.
    """
    workload = momentum(30, 0.99, schedule("cosine", 30, last=1e-5))
    v = np.ones(30)
    shift = 1e-30
    with mp.workdps(60):
        A = mp.matrix(workloads.materialize(workload).tolist())
        inverse = A**-1
        exact = (inverse * inverse.T + mpf(shift) * mp.eye(30)) ** -1
        expected = [float(exact[i, i]) for i in range(30)]
    computed = smoother.filters_in_numpy(v, workload, Poles(np.array([shift]), np.array([1.0])))[1]
    np.testing.assert_allclose(computed, expected, rtol=1e-11)


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
    """The left is below and the right above the optimum for every positive v,
    not only for the fixed point.
    """
    workload = momentum(rounds, beta)
    optimum = dense_solve(workloads.materialize(workload), gap=1e-7, max_iterations=3000)
    v = np.exp(np.random.default_rng(seed).normal(size=rounds))
    current = fixed_point._evaluate(v, workload)
    assert current.lower <= optimum.upper**2 * (1 + 1e-9)
    assert current.upper >= optimum.lower**2 * (1 - 1e-9)


@pytest.mark.parametrize("rounds", [5, 40, 100])
def test_bounds_are_charged_the_quadrature_error(rounds, monkeypatch):
    """With poles so few that they err by 1 %, the certificate still holds;
    without the charge it would not.
    """
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
    monkeypatch.setattr(fixed_point, "solve", lambda workload: early)
    with caplog.at_level(logging.WARNING):
        mechanism = design("optimal", prefix_sum(100))
    assert "relative gap of" in caplog.text
    assert mechanism.relative_gap > 0
    assert mechanism.root_loss >= full.lower


def test_a_gap_below_the_quadrature_error_is_refused():
    with pytest.raises(SettingError, match="gap is 1e-12"):
        fixed_point.solve(prefix_sum(10), gap=1e-12)
    with pytest.raises(SettingError, match="gap is nan"):
        fixed_point.solve(prefix_sum(10), gap=float("nan"))


@every_workload
def test_exact_recurrence_factors_the_optimal_gram_matrix(workload):
    """C^T C = H X H with unit diagonal: triangular, unit columns, to rounding and the poles of the stream."""
    solution = fixed_point.solve(workload)
    form = exact_form(pole_process(solution, workload))
    C = _dense_strategy(form)
    np.testing.assert_allclose(column_norms(form, workload.rounds), 1, rtol=1e-12)
    np.testing.assert_allclose(np.linalg.norm(C, axis=0), 1, rtol=1e-12)
    assert not np.triu(C, 1).any()
    expansion = poles(solution.interval, 1e-10)
    P = precision(workload)
    X = sum(
        weight * np.linalg.inv(P + shift * np.diag(solution.v))
        for shift, weight in zip(*expansion, strict=True)
    )
    scale = np.sqrt(np.diag(X))
    np.testing.assert_allclose(C.T @ C, X / np.outer(scale, scale), atol=2e-6)


def _dense_strategy(form):
    n = len(form.c)
    C, sigma = np.zeros((n, n)), np.zeros((form.g.shape[1], n))
    for t in range(n):
        C[t] = form.lam[t] @ sigma
        C[t, t] += form.c[t]
        sigma = form.F[t] @ sigma
        sigma[:, t] += form.g[t]
    return C


@every_workload
def test_truncation_to_many_buffers_changes_nothing(workload):
    process = pole_process(fixed_point.solve(workload), workload)
    inner = innovations(process)
    reduced = truncate(process, inner, 12)
    np.testing.assert_allclose(_dense_strategy(reduced), _dense_strategy(exact_form(process)), atol=1e-5)


def test_truncation_does_not_depend_on_chunks(monkeypatch):
    workload = momentum(50, 0.8)
    process = pole_process(fixed_point.solve(workload), workload)
    inner = innovations(process)
    whole = _dense_strategy(truncate(process, inner, 3))
    monkeypatch.setattr("fedmf.mechanisms.optimum.truncation.CHUNK", 7)
    np.testing.assert_allclose(_dense_strategy(truncate(process, inner, 3)), whole, atol=1e-9)


def test_fewer_buffers_lose_more():
    losses = [design("optimal", prefix_sum(200), buffers=r).root_loss for r in range(1, 6)]
    assert losses == sorted(losses, reverse=True)
    assert losses[0] > 1.01 * losses[-1]


def test_sensitivity_is_that_of_the_rounded_tables():
    """Unit columns in float64, but the float32 tables that are deployed have slightly longer ones."""
    mechanism = design("optimal", prefix_sum(300))
    _, C = mechanism.materialize()
    norms = np.linalg.norm(C, axis=0)
    assert 0 < norms.max() - 1 < 1e-5
    assert mechanism.sensitivity == pytest.approx(norms.max(), rel=1e-13)


def test_no_unit_column_survives_a_changed_table():
    """The control: a table off by a thousandth is seen in the sensitivity."""
    mechanism = design("optimal", prefix_sum(30))
    tables = mechanism.stream.tables.copy()
    tables[10, -1, -1] *= np.float32(0.999)
    changed = column_norms(strategy_form(tables), 30).max()
    assert changed > 1.0005


def test_scaled_strategies_cost_the_same():
    from fedmf.mechanisms.streams.recurrence import StrategyForm, deployed

    workload = momentum(20, 0.5)
    form = strategy_form(design("optimal", workload).stream.tables)
    doubled = StrategyForm(form.F, 2 * form.g, form.lam, 2 * form.c)
    plain, scaled = deployed(tables_of(form), workload), deployed(tables_of(doubled), workload)
    assert scaled["sensitivity"] == pytest.approx(2 * plain["sensitivity"], rel=1e-6)
    np.testing.assert_allclose(scaled["per_round_error"], plain["per_round_error"], rtol=1e-6)
    noises = [
        arrays["sensitivity"] * RecurrentStream(20, arrays["tables"]).materialize_noising()
        for arrays in (plain, scaled)
    ]
    np.testing.assert_allclose(*noises, atol=1e-5)


@pytest.mark.parametrize(("rounds", "buffers"), [(10, 0), (10, -1), (10, 11), (100, 65), (1, 2)])
def test_senseless_numbers_of_buffers_are_refused(rounds, buffers):
    with pytest.raises(SettingError, match=f"buffers is {buffers}"):
        design("optimal", prefix_sum(rounds), buffers=buffers)


def test_missing_the_loss_is_said(monkeypatch, caplog):
    monkeypatch.setattr(optimal, "MOST_BUFFERS", 1)
    with caplog.at_level(logging.WARNING):
        arrays = optimal.fit(prefix_sum(64))
    assert "1 buffers leave the loss" in caplog.text
    assert arrays["tables"].shape == (64, 2, 2)


def test_kernels_do_what_their_twins_do():
    """Run as plain Python where numba has compiled them, so that no compiler is needed."""
    workload = momentum(12, 0.9, schedule("cooldown", 12))
    process = pole_process(fixed_point.solve(workload), workload)
    inner = innovations(process)
    lam, c = plain("innovations")(*vars(process).values())
    np.testing.assert_allclose(lam, inner.lam, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(c, inner.c, rtol=1e-9)
    form = exact_form(process)
    norms = plain("column_norms")(form.F, form.g, form.lam, form.c, 12)
    np.testing.assert_allclose(norms, column_norms(form, 12), rtol=1e-12)
    for name, twin in (("observe", observe), ("reach", reach)):
        arguments = (process.transition, inner.lam, 0 * form.F[0])
        np.testing.assert_allclose(plain(name)(*arguments), twin(*arguments), atol=1e-12)


def plain(name):
    function = getattr(kernels, name)
    return getattr(function, "py_func", function)


@pytest.mark.slow
@pytest.mark.parametrize(
    "workload", [prefix_sum(60), momentum(60, 0.9, schedule("cooldown", 60))], ids=["prefix_sum", "momentum"]
)
def test_results_are_the_same_with_and_without_compiled_code(workload, monkeypatch):
    monkeypatch.setattr(compiled, "WORTHWHILE", dict.fromkeys(compiled.WORTHWHILE, 1))
    solution, arrays = fixed_point.solve(workload), optimal.fit(workload)
    monkeypatch.setattr(compiled, "available", lambda: False)
    assert compiled.kernel("diagonal", 10**6) is None
    plain, plain_arrays = fixed_point.solve(workload), optimal.fit(workload)
    assert solution.upper == pytest.approx(plain.upper, rel=1e-9)
    assert solution.lower == pytest.approx(plain.lower, rel=1e-9)
    assert arrays["sensitivity"] == pytest.approx(plain_arrays["sensitivity"], rel=1e-6)
    np.testing.assert_allclose(arrays["per_round_error"], plain_arrays["per_round_error"], rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("beta", "name"),
    [(beta, name) for beta in (0.0, 0.5, 0.9, 0.99) for name in ("constant", "linear", "cosine", "cooldown")],
)
def test_long_epochs_are_certified_with_few_buffers(beta, name):
    workload = momentum(2000, beta, schedule(name, 2000, last=1e-4))
    mechanism = design("optimal", workload)
    assert fixed_point.certified(workload).upper ** 2 <= fixed_point.certified(workload).lower ** 2 * (
        1 + 1e-6
    )
    assert mechanism.root_loss**2 <= 1.0001 * mechanism.lower_bound**2
    assert mechanism.stream.buffers <= (6 if beta >= 0.9 else 8)


@pytest.mark.slow
def test_the_longest_epochs_take_at_most_eight_buffers():
    mechanism = design("optimal", prefix_sum(65536))
    assert fixed_point.certified(prefix_sum(65536)).upper == pytest.approx(1091.4083, rel=1e-6)
    assert mechanism.root_loss**2 <= 1.0001 * mechanism.lower_bound**2
    assert mechanism.stream.buffers <= 8

"""The smoother against dense inverses and long arithmetic, and the recurrence made of it against dense matrices."""

from dataclasses import astuple, replace

import numpy as np
import pytest
from mpmath import mp, mpf

from fedmf.mechanisms import momentum, of_run, prefix_sum, workload as workloads
from fedmf.mechanisms.optimum import fixed_point, reduction, smoother
from fedmf.mechanisms.optimum.poles import Poles, poles, spectral_interval
from fedmf.mechanisms.optimum.reduction import innovations, inputs, pole_process, transport, truncate
from fedmf.mechanisms.schedules import rates
from fedmf.mechanisms.streams.recurrence import StrategyForm, column_norms
from fedmf.mechanisms.workload import LaterRounds, at_boundaries
from oracles import WORKLOADS, every_workload, falling, needs_numba, precision, some_v, without_numba


@pytest.mark.parametrize(
    "workload",
    [*WORKLOADS, *(of_run(n, 3, beta, rates("decay", 3 * n))[0] for n in (1, 2, 17, 40) for beta in (0.0, 0.9))],
    ids=repr,
)  # fmt: skip
def test_filters_give_the_diagonal_of_the_inverse(workload):
    """Also where rounds follow the epoch: against dense inverses of the whole Gram matrix W = A^T A + R Q R^T."""
    v = some_v(workload)
    expansion = poles(spectral_interval(v, workload), 1e-6)
    P = np.linalg.inv(workloads.gram(workload)) if workload.later.c else precision(workload)
    expected = sum(
        weight * np.diag(np.linalg.inv(P + shift * np.diag(v)))
        for shift, weight in zip(*expansion, strict=True)
    )
    for computed in (
        smoother.diagonal(v, workload, expansion),
        smoother.filters(v, workload, expansion)[1],
        smoother.filters_in_numpy(v, workload, expansion)[1],
    ):
        np.testing.assert_allclose(computed, expected, rtol=1e-7)


def test_filters_keep_relative_precision_where_matrices_lose_it():
    """Beta .99, n = 1500, tiny shifts: against 40-digit arithmetic on the same recursion of exact rationals."""
    workload = momentum(30, 0.99, falling(30, 1e-5))
    v = np.ones(30)
    shift = 1e-30
    with mp.workdps(60):
        A = mp.matrix(workloads.materialize(workload).tolist())
        inverse = A**-1
        exact = (inverse * inverse.T + mpf(shift) * mp.eye(30)) ** -1
        expected = [float(exact[i, i]) for i in range(30)]
    computed = smoother.filters_in_numpy(v, workload, Poles(np.array([shift]), np.array([1.0])))[1]
    np.testing.assert_allclose(computed, expected, rtol=1e-11)


@pytest.mark.parametrize("rounds", [1, 2, 3, 7, 50, 4096, 65536])
@pytest.mark.parametrize("later", [0, 3, 10**6])
def test_prefix_sums_keep_relative_precision_where_pivots_lose_it(rounds, later):
    """Unobserved, round i has the variance of all steps behind it; by LAPACK's pivots it has lost half of its digits."""
    workload = replace(prefix_sum(rounds), later=LaterRounds(later, later, later, 0.0))
    computed = smoother.diagonal(np.ones(rounds), workload, Poles(np.array([1e-40]), np.array([1.0])))
    np.testing.assert_allclose(computed, later + np.arange(rounds, 0, -1.0), rtol=1e-12)


@pytest.mark.parametrize("beta", [0.0, 0.9, 0.99])
def test_rounding_of_the_diagonal_is_far_below_what_is_charged(beta):
    """Against the same filters in long arithmetic of 40 digits: 50 eps, where 8 eps a round are charged."""
    rounds = 512
    workload = replace(momentum(rounds, beta), later=at_boundaries(np.ones(10**5), beta, [0])[0])
    v = 1e-3 / np.sqrt(10**5 + np.arange(rounds, 0, -1.0))
    shifts = (1e-6, 1e-2, 1e3, 1e12)
    for shift in shifts:
        expected = _long(v, workload, shift)
        pole = Poles(np.array([shift]), np.ones(1))
        for computed in (
            smoother.diagonal(v, workload, pole),
            smoother.filters_in_numpy(v, workload, pole)[1],
        ):
            np.testing.assert_allclose(computed, expected, rtol=50 * np.finfo(np.float64).eps)


def _long(v, workload, shift):
    """The two filters of one pole, as in fedmf/mechanisms/optimum/smoother.py, to 40 digits."""
    beta = mpf(workload.momentum)
    with mp.workdps(40):
        a, b, c, D = (mpf(number) for number in astuple(workload.later))
        gathered = []
        for observed in v[::-1]:
            r = mpf(shift) * mpf(observed)
            c, D, a, b = c + 1, beta**2 * (D + a), beta**2 * a + 2 * beta * b + c + 1, beta * b + c + 1
            gathered.append((a, b, c, D))
            q = 1 / (1 + r * a)
            a, b, c, D = a * q, b * q, (c + r * D) * q, D * q
        A = B = C = J = mpf(0)
        variances = []
        for observed, (a, b, c, D) in zip(v, gathered[::-1], strict=True):
            r = mpf(shift) * mpf(observed)
            J, A = J + r * C, A + r
            variances.append(float((D * C + a) / (D * J + A * a + 2 * B * b + C * c + 1)))
            t = A + B
            after = t + B + C
            q = 1 / (1 + after)
            A, B, C, J = beta**2 * (A + J) * q, beta * t * q, after * q, beta**2 * J * q
    return variances


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
        plain = smoother.diagonal(solution.v, workload, expansion)
    monkeypatch.setattr(smoother, "COMPILED_FROM", 1)
    np.testing.assert_allclose(smoother.diagonal(solution.v, workload, expansion), plain, rtol=1e-12)
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
        smoother.filters(solution.v, workload, expansion),
        smoother.filters_in_numpy(solution.v, workload, expansion),
        strict=True,
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-300)


def exact_form(process):
    """C as a recurrence of s K states with dense F, (T, sK, sK): the truncation's twin."""
    lam, c = innovations(process)
    identity = np.broadcast_to(np.eye(process.states), (len(c), process.states, process.states))
    return StrategyForm(transport(process.transition.swapaxes(1, 2), identity), inputs(process), lam, c)


def dense_strategy(form):
    n = len(form.c)
    C, sigma = np.zeros((n, n)), np.zeros((form.g.shape[1], n))
    for t in range(n):
        C[t] = form.lam[t] @ sigma
        C[t, t] += form.c[t]
        sigma = form.F[t] @ sigma
        sigma[:, t] += form.g[t]
    return C


@every_workload
def test_exact_recurrence_factors_the_optimal_gram_matrix(workload, monkeypatch):
    """C^T C = H X H with unit diagonal: triangular, unit columns, to rounding once the poles are fine enough."""
    monkeypatch.setattr(reduction, "QUADRATURE", 1e-10)
    solution = fixed_point.solve(workload)
    form = exact_form(pole_process(solution, workload))
    C = dense_strategy(form)
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


@every_workload
def test_truncation_to_many_buffers_changes_nothing(workload):
    process = pole_process(fixed_point.solve(workload), workload)
    reduced = truncate(process, 12)
    np.testing.assert_allclose(dense_strategy(reduced), dense_strategy(exact_form(process)), atol=1e-5)


def test_truncation_does_not_depend_on_chunks(monkeypatch):
    workload = momentum(50, 0.8)
    process = pole_process(fixed_point.solve(workload), workload)
    whole = dense_strategy(truncate(process, 3))
    monkeypatch.setattr("fedmf.mechanisms.optimum.reduction.CHUNK", 7)
    np.testing.assert_allclose(dense_strategy(truncate(process, 3)), whole, atol=1e-9)

"""The smoother against dense inverses and long arithmetic; its poles against Zolotarev's theorem, their interval against eigenvalues."""

import math
from dataclasses import astuple, replace

import numpy as np
import pytest
from mpmath import mp, mpf

from fedmf.mechanisms import momentum, of_run, prefix_sum, workload as workloads
from fedmf.mechanisms.optimum import fixed_point, reduction, smoother
from fedmf.mechanisms.optimum.poles import Interval, Poles, poles, spectral_interval, zolotarev
from fedmf.mechanisms.optimum.reduction import innovations, inputs, pole_process, transport, truncate
from fedmf.mechanisms.schedules import rates
from fedmf.mechanisms.streams.recurrence import StrategyForm, column_norms
from fedmf.mechanisms.workload import LaterRounds, at_boundaries, gram
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


# poles


CONDITIONS = [1.0, 1.5, 2.0, 10.0, 1e2, 1e4, 1e6, 1e8, 1e10, 1e12, 1e14, 1e18, 1e23, 1e40]
FLOATS = 2e-14  # what float64 adds to a sum of up to a hundred poles


def error_bound(condition, count):
    """4 exp(-2 pi^2 K / log(16 cond)), which the relative error of K = `count` poles stays below."""
    return 4 * math.exp(-2 * math.pi**2 * count / math.log(16 * condition))


def errors(expansion, condition, points=6001):
    """The relative error of the poles on a grid over [1, condition], both ends included."""
    x = np.geomspace(1, condition, points)
    return (expansion.weights / (x[:, None] + expansion.shifts)).sum(1) * np.sqrt(x) - 1


@pytest.mark.parametrize("condition", CONDITIONS)
def test_poles_stay_below_zolotarevs_bound(condition):
    """For every number of poles until float64 ends."""
    count = 1
    while (bound := error_bound(condition, count)) > 1e-15:
        assert np.abs(errors(zolotarev(Interval(1.0, condition), count), condition)).max() <= bound + FLOATS
        count += 1
    assert count > 4


@pytest.mark.parametrize(
    ("condition", "count"),
    [(1.5, 1), (1.5, 2), (1e2, 4), (1e6, 1), (1e6, 5), (1e14, 15), (1e23, 20)],
)
def test_no_rational_function_of_the_degree_does_better(condition, count):
    """The error alternates 2 K + 1 times between its largest values up and down: Chebyshev's sign of the best."""
    error = errors(zolotarev(Interval(1.0, condition), count), condition, 40001)
    largest = np.abs(error).max()
    turns = [0, *(np.flatnonzero(np.diff(np.sign(np.diff(error)))) + 1), len(error) - 1]
    np.testing.assert_allclose(np.abs(error[turns]), largest, rtol=1e-3)
    assert np.all(error[turns][:-1] * error[turns][1:] < 0)
    assert len(turns) == 2 * count + 1


@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("tolerance", [0.5, 1e-3, 1e-8, 1e-10])
def test_number_of_poles_is_the_least_that_the_bound_allows(condition, tolerance):
    count = len(poles(Interval(3.0, 3.0 * condition), tolerance).shifts)
    assert error_bound(condition, count) <= tolerance * (1 + 1e-12)
    assert count == 1 or error_bound(condition, count - 1) > tolerance


@every_workload
def test_interval_holds_the_whole_spectrum(workload):
    v = some_v(workload)
    values = np.linalg.eigvalsh(precision(workload) / np.sqrt(np.outer(v, v)))
    interval = spectral_interval(v, workload)
    # The dense eigenvalues err by rounding of the largest.
    assert interval.low <= values.min() + 1e-14 * values.max()
    assert values.max() <= interval.high * (1 + 1e-13)
    assert interval.high <= 1.5 * values.max()


@pytest.mark.parametrize("beta", [0.0, 0.9])
@pytest.mark.parametrize("epochs", [2, 20])
def test_interval_holds_the_spectrum_of_an_epoch_with_rounds_behind(beta, epochs):
    """The low end knows the rounds that follow; the high end, which does not, still bounds: W >= A^T A, P <= P_0."""
    workload = of_run(40, epochs, beta, rates("cosine", 40 * epochs))[0]
    v = some_v(workload)
    spread = np.sqrt(np.outer(v, v))
    # The low end of V^-1/2 P V^-1/2 is the inverse of the high end of V^1/2 W V^1/2, which is accurate.
    lowest = 1 / np.linalg.eigvalsh(spread * gram(workload)).max()
    highest = np.linalg.eigvalsh(precision(workload) / spread).max()
    interval = spectral_interval(v, workload)
    assert 0.9 * lowest <= interval.low <= lowest * (1 + 1e-13)
    assert np.linalg.eigvalsh(np.linalg.inv(gram(workload)) / spread).max() <= highest * (1 + 1e-9)
    assert highest <= interval.high * (1 + 1e-13)

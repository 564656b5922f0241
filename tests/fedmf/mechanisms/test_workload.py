"""Workloads against dense matrices: of an epoch, with the rounds that follow it, and under learning-rate schedules."""

from itertools import pairwise

import numpy as np
import pytest
import scipy.signal
from hypothesis import given, strategies as st

from fedmf.errors import SettingError
from fedmf.mechanisms import bounds, workload as workloads
from fedmf.mechanisms.optimum.poles import spectral_interval
from fedmf.mechanisms.schedules import rates, share
from fedmf.mechanisms.workload import (
    NONE,
    LaterRounds,
    Workload,
    at_boundaries,
    later_rounds,
    momentum,
    of_run,
    prefix_sum,
    recursion,
)
from fedmf.setting import SCHEDULES

WORKLOADS = [
    prefix_sum(1),
    prefix_sum(9),
    momentum(9, 0.9),
    momentum(9, 0.5, rates("decay", 9)),
    momentum(8, 0, (1, 2, 3, 4, 4, 3, 2, 1)),
]
every_workload = pytest.mark.parametrize("workload", WORKLOADS)


def dense(workload):
    """S diag(eta) M_beta by its definition, entry by entry."""
    n, beta = workload.rounds, workload.momentum
    S = np.tril(np.ones((n, n)))
    M = np.array([[beta ** (i - j) if i >= j else 0.0 for j in range(n)] for i in range(n)])
    return S @ np.diag(workload.learning_rates or (1.0,) * n) @ M


@every_workload
def test_materialize_is_the_product_of_its_factors(workload):
    np.testing.assert_allclose(workloads.materialize(workload), dense(workload), rtol=1e-13)


@every_workload
def test_apply_solve_and_transpose_match_the_matrix(workload):
    x = np.random.default_rng(1).normal(size=(workload.rounds, 3))
    A = dense(workload)
    np.testing.assert_allclose(workloads.apply(workload, x), A @ x, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(workloads.transposed_apply(workload, x), A.T @ x, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(workloads.solve(workload, A @ x), x, rtol=1e-10, atol=1e-12)


@given(st.integers(1, 40), st.floats(0, 0.99))
def test_solve_undoes_apply(rounds, beta):
    x = np.sin(np.arange(1.0, rounds + 1))
    workload = momentum(rounds, beta, rates("cooldown", rounds))
    np.testing.assert_allclose(workloads.solve(workload, workloads.apply(workload, x)), x, atol=1e-8)


@pytest.mark.parametrize("shape", [(1,), (2,), (1000,), (5000,), (1, 4), (200, 7)])
@pytest.mark.parametrize("beta", [0.0, 0.9, 0.81, 1.0])
def test_recursions_are_those_of_scipy_bit_for_bit(shape, beta):
    rows = np.random.default_rng(1).normal(size=shape)
    for given_rows in (rows, rows[::-1]):
        before = given_rows.copy()
        twin = scipy.signal.lfilter([1.0], [1.0, -beta], given_rows, axis=0)
        assert recursion(beta, given_rows).tobytes() == twin.tobytes()
        np.testing.assert_array_equal(given_rows, before)


def test_a_constant_rate_makes_a_toeplitz_matrix():
    assert momentum(3, 0.1, (2, 2, 2)).is_toeplitz
    assert not momentum(3, 0.1, (3, 2, 2)).is_toeplitz


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0,), "rounds is 0"),
        ((2.5,), "rounds is 2.5"),
        ((3, 1.0), "momentum is 1.0"),
        ((3, -0.1), "momentum is -0.1"),
        ((3, float("nan")), "momentum is nan"),
        ((3, 0.5, (1.0, 1.0)), "one a round, 3"),
        ((3, 0.5, (1.0, 0.0, 1.0)), "holds 0.0"),
        ((3, 0.5, (1.0, float("inf"), 1.0)), "holds inf"),
        ((3, 0.5, (1.0, float("nan"), 1.0)), "holds nan"),
        ((3, 0.5, (1.0, 1.0, 1e-7)), "at least 1e-06"),
    ],
)
def test_bad_workloads_are_refused(arguments, message):
    with pytest.raises(SettingError, match=message):
        Workload(*arguments)


RUNS = [(5, 4, 0.0, "constant"), (6, 3, 0.9, "constant"), (4, 5, 0.7, "cooldown"), (1, 6, 0.5, "decay")]
every_run = pytest.mark.parametrize(("rounds", "epochs", "beta", "schedule"), RUNS)


def column_blocks(rounds, epochs, beta, schedule):
    """Return each epoch's workload with its columns (E T, T) of the dense workload of the whole run."""
    eta = rates(schedule, rounds * epochs)
    whole = workloads.materialize(Workload(rounds * epochs, beta, eta))
    parts = np.split(whole, epochs, axis=1)
    return list(zip(of_run(rounds, epochs, beta, eta), parts, strict=True))


def slow_later_rounds(learning_rates, beta):
    """Return a, b, c and the determinant by the definition: the covariance of (x, d) after a walk driven by white w.

    Column j of `state` says how (x, d) depend on w_j.
    """
    n = len(learning_rates)
    state = np.zeros((2, n))
    for j in range(n - 1, -1, -1):
        state[1, j] += 1
        state[0] = beta * state[0] + learning_rates[j] * state[1]
    (a, b), (_, c) = state @ state.T
    return LaterRounds(a, b, c, np.linalg.det(state @ state.T))


@pytest.mark.parametrize("beta", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("schedule", ["constant", "decay", "cooldown", "step"])
def test_three_numbers_are_the_covariance_of_the_chain(beta, schedule):
    eta = rates(schedule, 7)
    expected = slow_later_rounds(eta, beta)
    found = later_rounds(eta, beta)
    assert (found.a, found.b, found.c) == pytest.approx((expected.a, expected.b, expected.c), rel=1e-12)
    assert found.determinant == pytest.approx(expected.determinant, rel=1e-9, abs=1e-12)


def test_the_end_of_a_run_has_no_later_rounds():
    assert later_rounds([], 0.9) == NONE
    assert at_boundaries(np.ones(6), 0.9, [2, 6]) == [later_rounds(np.ones(4), 0.9), NONE]


@every_run
def test_gram_matrix_counts_the_rows_of_all_later_rounds(rounds, epochs, beta, schedule):
    x = np.random.default_rng(0).normal(size=rounds)
    for workload, block in column_blocks(rounds, epochs, beta, schedule):
        expected = block.T @ block
        np.testing.assert_allclose(workloads.gram(workload), expected, rtol=1e-11)
        np.testing.assert_allclose(workloads.gram_apply(workload, x), expected @ x, rtol=1e-9)


@every_run
def test_loss_of_later_rounds_is_the_squared_norm_of_their_rows(rounds, epochs, beta, schedule):
    noise = np.random.default_rng(1).normal(size=(rounds, rounds))
    for (workload, block), epoch in zip(
        column_blocks(rounds, epochs, beta, schedule), range(epochs), strict=True
    ):
        after = workloads.after_last(workload, noise)
        later = block[(epoch + 1) * rounds :] @ noise
        assert workload.later.loss(after @ after.T, beta) == pytest.approx((later**2).sum(), rel=1e-10)


@every_run
def test_interval_holds_the_spectrum_with_later_rounds(rounds, epochs, beta, schedule):
    rng = np.random.default_rng(2)
    for workload, block in column_blocks(rounds, epochs, beta, schedule):
        v = np.exp(rng.normal(size=rounds))
        values = 1 / np.linalg.eigvalsh(np.sqrt(np.outer(v, v)) * (block.T @ block))
        interval = spectral_interval(v, workload)
        assert interval.low <= values.min() * (1 + 1e-9)
        assert interval.high >= values.max() * (1 - 1e-9)
        assert interval.high <= 20 * values.max()  # and is of use


def test_the_bound_of_an_epoch_counts_the_rounds_that_follow():
    first, last = of_run(5, 2)
    assert bounds.lower_bound(first) > 1.2 * bounds.lower_bound(last)
    assert bounds.lower_bound(last) == bounds.lower_bound(prefix_sum(5))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 2), "rounds is 0"),
        ((2, 0), "epochs is 0"),
        ((2, 2, 1.0), "momentum is 1.0"),
        ((2, 2, 0.5, (1.0, 1.0)), "2 numbers; a run of 2 epochs of 2 rounds needs one a round, 4"),
        ((2, 2, 0.5, (1.0, 1.0, 0.0, 1.0)), "learning_rates holds 0.0"),
    ],
)
def test_a_run_that_is_none_is_refused(arguments, message):
    with pytest.raises(SettingError, match=message):
        of_run(*arguments)


ROUNDS = 40


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("rounds", [1, 2, 7, ROUNDS])
def test_rates_begin_whole_never_grow_and_stay_positive(schedule, rounds):
    shares = rates(schedule, rounds)
    assert len(shares) == rounds
    assert shares[0] == 1
    assert all(later <= earlier for earlier, later in pairwise(shares))
    assert shares[-1] > 0


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_longest_runs_stay_within_what_a_workload_takes(schedule):
    assert momentum(100_000, 0.9, rates(schedule, 100_000)).learning_rates is not None


def test_the_cooldown_spends_the_last_quarter_going_down_to_a_twentieth():
    shares = rates("cooldown", ROUNDS)
    assert shares[:31] == (1.0,) * 31
    np.testing.assert_allclose(np.diff(shares[30:]), -0.095, rtol=1e-12)
    assert share("cooldown", 1 - 1e-12) == pytest.approx(0.05)


def test_the_cosine_is_half_way_in_the_middle_and_ends_at_a_twentieth():
    assert share("cosine", 0.5) == pytest.approx((1 + 0.05) / 2)
    assert share("cosine", 1 - 1e-9) == pytest.approx(0.05)


@pytest.mark.parametrize("rounds", [1, 3, 4, 22, 40, 41])
def test_the_step_is_one_of_fifteen_hundredths_at_the_last_quarter_of_the_rounds(rounds):
    before = -(-3 * rounds // 4)  # the rounds of which fewer than three quarters come before
    assert rates("step", rounds) == (1.0,) * before + (0.15,) * (rounds - before)


def test_unknown_schedules_and_runs_without_rounds_are_refused():
    with pytest.raises(SettingError, match="schedule is 'linear'; it must be one of constant, decay, cosine"):
        rates("linear", 3)
    with pytest.raises(SettingError, match="rounds is 0"):
        rates("decay", 0)

"""Workloads against dense matrices: of an epoch, with the rounds that follow it, and under learning-rate schedules."""

from itertools import pairwise

import numpy as np
import pytest
import scipy.signal

from fedmf.errors import SettingError
from fedmf.mechanisms import workload as workloads
from fedmf.mechanisms.schedules import rates, share
from fedmf.mechanisms.workload import (
    NONE,
    Workload,
    at_boundaries,
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
def test_products_and_solutions_are_those_of_the_matrix(workload):
    x, A = np.random.default_rng(1).normal(size=(workload.rounds, 3)), dense(workload)
    np.testing.assert_allclose(workloads.materialize(workload), A, rtol=1e-13)
    np.testing.assert_allclose(workloads.apply(workload, x), A @ x, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(workloads.solve(workload, A @ x), x, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("shape", [(1,), (2,), (1000,), (5000,), (1, 4), (200, 7)])
@pytest.mark.parametrize("beta", [0.0, 0.9, 0.81, 1.0])
def test_recursions_are_those_of_scipy_bit_for_bit(shape, beta):
    rows = np.random.default_rng(1).normal(size=shape)
    for given_rows in (rows, rows[::-1]):
        before = given_rows.copy()
        twin = scipy.signal.lfilter([1.0], [1.0, -beta], given_rows, axis=0)
        assert recursion(beta, given_rows).tobytes() == twin.tobytes()
        np.testing.assert_array_equal(given_rows, before)


@pytest.mark.parametrize(
    ("make", "arguments", "message"),
    [
        (Workload, (2.5,), "rounds is 2.5"),
        (Workload, (3, 1.0), "momentum is 1.0"),
        (Workload, (3, float("nan")), "momentum is nan"),
        (Workload, (3, 0.5, (1.0, 1.0)), "one a round, 3"),
        (Workload, (3, 0.5, (1.0, 0.0, 1.0)), "holds 0.0"),
        (Workload, (3, 0.5, (1.0, float("nan"), 1.0)), "holds nan"),
        (Workload, (3, 0.5, (1.0, 1.0, 1e-7)), "at least 1e-06"),
        (of_run, (2, 0), "epochs is 0"),
        (of_run, (2, 2, 0.5, (1.0, 1.0)), "2 numbers; a run of 2 epochs of 2 rounds needs one a round, 4"),
        (rates, ("linear", 3), "schedule is 'linear'; it must be one of constant, decay, cosine"),
        (rates, ("decay", 0), "rounds is 0"),
    ],
)
def test_bad_workloads_are_refused(make, arguments, message):
    with pytest.raises(SettingError, match=message):
        make(*arguments)


RUNS = [(5, 4, 0.0, "constant"), (6, 3, 0.9, "constant"), (4, 5, 0.7, "cooldown"), (1, 6, 0.5, "decay")]
every_run = pytest.mark.parametrize(("rounds", "epochs", "beta", "schedule"), RUNS)


def column_blocks(rounds, epochs, beta, schedule):
    """Return each epoch's workload with its columns (E T, T) of the dense workload of the whole run."""
    eta = rates(schedule, rounds * epochs)
    whole = workloads.materialize(Workload(rounds * epochs, beta, eta))
    return list(zip(of_run(rounds, epochs, beta, eta), np.split(whole, epochs, axis=1), strict=True))


@pytest.mark.parametrize("beta", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("schedule", ["constant", "decay", "cooldown", "step"])
def test_three_numbers_are_the_covariance_of_the_chain(beta, schedule):
    """By the definition: column j of `state` says how (x, d) depend on w_j after a walk driven by white w."""
    eta = np.array(rates(schedule, 7))
    state = np.zeros((2, 7))
    for j in range(6, -1, -1):
        state[1, j] += 1
        state[0] = beta * state[0] + eta[j] * state[1]
    (a, b), (_, c) = covariance = state @ state.T
    found, last = at_boundaries(eta, beta, [0, 7])
    assert (found.a, found.b, found.c) == pytest.approx((a, b, c), rel=1e-12)
    assert found.determinant == pytest.approx(np.linalg.det(covariance), rel=1e-9, abs=1e-12)
    assert last == NONE
    assert at_boundaries(eta, beta, [2]) == at_boundaries(eta[2:], beta, [0])


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


def test_schedules_have_their_published_shapes():
    """Denisov et al. 2022, section 5: the last quarter falls to a twentieth; the step takes 0.15 there."""
    shares = rates("cooldown", ROUNDS)
    assert shares[:31] == (1.0,) * 31
    np.testing.assert_allclose(np.diff(shares[30:]), -0.095, rtol=1e-12)
    assert share("cooldown", 1 - 1e-12) == pytest.approx(0.05)
    assert share("cosine", 0.5) == pytest.approx((1 + 0.05) / 2)
    assert share("cosine", 1 - 1e-9) == pytest.approx(0.05)
    for rounds in (1, 3, 4, 22, 40, 41):
        before = -(-3 * rounds // 4)  # the rounds of which fewer than three quarters come before
        assert rates("step", rounds) == (1.0,) * before + (0.15,) * (rounds - before)

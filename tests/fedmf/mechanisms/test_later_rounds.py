"""What the rounds after an epoch are for it, against the dense workload of the whole run."""

import numpy as np
import pytest

from fedmf.errors import SettingError
from fedmf.mechanisms import Workload, bounds, of_run, workload as workloads
from fedmf.mechanisms.later_rounds import NONE, LaterRounds, at_boundaries, later_rounds
from fedmf.mechanisms.optimum.poles import spectral_interval
from fedmf.mechanisms.schedules import rates

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


@every_run
def test_nuclear_norm_bound_counts_later_rounds(rounds, epochs, beta, schedule):
    for workload, block in column_blocks(rounds, epochs, beta, schedule):
        expected = np.linalg.svd(block, compute_uv=False).sum() / np.sqrt(rounds)
        if not workload.is_prefix_sum:
            assert bounds.schatten(workload) == pytest.approx(expected, rel=1e-9)


def test_an_epoch_of_a_run_is_no_plain_prefix_sum():
    """Closed forms hold for an epoch alone: with later rounds they would be bounds of another problem."""
    first, last = of_run(5, 2)
    assert not first.is_prefix_sum
    assert last.is_prefix_sum
    assert bounds.lower_bound(first) > 1.2 * bounds.lower_bound(last)


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

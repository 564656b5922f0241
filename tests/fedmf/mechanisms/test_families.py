"""What is particular to one family: published formulas, gradients and fits."""

import logging
from functools import partial

import numpy as np
import pytest
from scipy.optimize import check_grad

from fedmf.mechanisms import (
    Factorization,
    design,
    design_run,
    lower_bound,
    momentum,
    of_run,
    prefix_sum,
    relative_gap,
    workload as workloads,
)
from fedmf.mechanisms.families import banded_low_rank, optimal, optimised_toeplitz, square_roots
from fedmf.mechanisms.families.square_roots import coefficients
from fedmf.mechanisms.optimum import fixed_point
from fedmf.mechanisms.schedules import rates
from fedmf.mechanisms.streams import tree
from fedmf.mechanisms.streams.recurrence import RecurrentStream
from fedmf.mechanisms.streams.toeplitz import ToeplitzStream
from fedmf.setting import SCHEDULES
from oracles import falling

WORKLOADS = (
    prefix_sum(1),
    prefix_sum(2),
    prefix_sum(50),
    momentum(40, 0.9),
    momentum(30, 0.999),
    momentum(24, 0.5, rates("step", 24)),
)


def dense_square_root(of):
    """The square root of A at a constant rate, (T, T), by Newton's iteration on the dense matrix."""
    A = workloads.materialize(momentum(of.rounds, of.momentum))
    root = np.eye(len(A))
    for _ in range(60 + 2 * len(A)):
        root = np.tril(root + np.linalg.solve(root, A)) / 2
    np.testing.assert_allclose(root @ root, A, atol=1e-8 * A.max())
    return root


def test_honaker_weights_are_the_best_from_below():
    """The variance of a node's estimate equals its weight 1/(2 - 2^-h), by least squares on its subtree."""
    for h in range(5):
        C = tree.strategy(2**h)
        assert np.linalg.inv(C.T @ C).sum() == pytest.approx(1 / (2 - 2.0**-h))
    mechanism = design("honaker_online", prefix_sum(32))
    np.testing.assert_allclose(mechanism.stream.tables, [1 / (2 - 2.0**-h) for h in range(6)], rtol=1e-7)


def test_full_honaker_has_the_law_of_its_look_ahead_estimator():
    """B = A C^+ looks ahead; what is deployed is causal, with the same B B^T and the same column norms."""
    mechanism = design("honaker_full", prefix_sum(13))
    C = tree.strategy(13)
    look_ahead = workloads.materialize(prefix_sum(13)) @ np.linalg.pinv(C)
    B, deployed = mechanism.materialize()
    assert np.abs(np.triu(look_ahead[:, :13], 1)).max() > 0.01
    np.testing.assert_allclose(B @ B.T, look_ahead @ look_ahead.T, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(deployed, axis=0), np.linalg.norm(C, axis=0), rtol=1e-6)


def part(objective, which, workload, x):
    """The value (0) or the gradient (1) of an objective at x."""
    return objective(x, workload)[which]


@pytest.mark.parametrize("rounds", [5, 300])
def test_gradients_are_those_of_the_loss(rounds):
    workload = momentum(rounds, 0.6)
    below = coefficients(workload)[1:5]
    point = optimised_toeplitz.blt_start(rounds, 3)
    for objective, at in (
        (optimised_toeplitz.banded_objective, below),
        (optimised_toeplitz.blt_objective, point),
    ):
        error = check_grad(partial(part, objective, 0, workload), partial(part, objective, 1, workload), at)
        assert error < 1e-5


def test_optimised_toeplitz_families_beat_the_square_root_they_start_from():
    workload = prefix_sum(64)
    square_root = design("sqrt_toeplitz", workload).root_loss
    assert design("blt", workload).root_loss < square_root
    assert design("banded_toeplitz", workload, buffers=63).root_loss < square_root
    truncated = Factorization("mine", workload, ToeplitzStream(64, coefficients(workload)[:9]))
    assert design("banded_toeplitz", workload).root_loss < truncated.root_loss


@pytest.mark.parametrize("workload", [prefix_sum(12), momentum(12, 0.8, rates("decay", 12))])
def test_low_rank_stream_multiplies_by_the_approximated_decoder(workload):
    """A times the noise matrix is B' itself: banded part, masked low-rank part, nothing else."""
    rng = np.random.default_rng(5)
    banded, left, right = rng.normal(size=(12, 12)), rng.normal(size=(12, 2)), rng.normal(size=(12, 2))
    banded = np.tril(banded) - np.tril(banded, -3) + 4 * np.eye(12)
    stream = RecurrentStream(12, banded_low_rank.tables(banded, left, right, 3, workload))
    computed = workloads.apply(workload, stream.materialize_noising())
    np.testing.assert_allclose(computed, banded + np.tril(left @ right.T, -3), atol=1e-4)
    assert stream.buffers == (5 if workload.momentum == 0 else 6)


def test_low_rank_is_fitted_where_the_sums_of_a_regression_are_singular():
    assert relative_gap(design_run("banded_low_rank", of_run(9, 3, 0.9, rates("step", 27)))) < 0.01


def test_recomputed_encoder_differs_from_the_optimums():
    """With the optimum's own C the product B' C would not be A: the control for recomputing C."""
    workload = prefix_sum(200)
    mechanism = design("banded_low_rank", workload, bands=2, rank=1)
    B, C = mechanism.materialize()
    _, optimum = design("optimal", workload).materialize()
    A = workloads.materialize(workload)
    np.testing.assert_allclose(B @ C, A, atol=1e-10)
    assert np.abs(B @ optimum - A).max() > 0.05


def test_missing_the_loss_is_logged(monkeypatch, caplog):
    monkeypatch.setattr(optimal, "MOST_BUFFERS", 1)
    with caplog.at_level(logging.WARNING):
        stream = optimal.fit(prefix_sum(64))
    assert "1 buffers leave the loss" in caplog.text
    assert stream.tables.shape == (64, 2, 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("beta", "name"),
    [(beta, name) for beta in (0.0, 0.5, 0.9, 0.99) for name in (*SCHEDULES, "steep")],
)
def test_long_epochs_are_certified_with_few_buffers(beta, name):
    workload = momentum(2000, beta, falling(2000, 1e-4) if name == "steep" else rates(name, 2000))
    mechanism = design("optimal", workload)
    assert fixed_point.certified(workload).upper ** 2 <= fixed_point.certified(workload).lower ** 2 * (
        1 + 1e-6
    )
    assert mechanism.root_loss**2 <= 1.0001 * lower_bound(mechanism.workload) ** 2
    assert mechanism.stream.buffers <= (6 if beta >= 0.9 else 8)


@pytest.mark.parametrize("of", WORKLOADS, ids=str)
def test_the_short_square_root_is_the_dense_one(of):
    root = dense_square_root(of)
    _, C = design("sqrt_blt", of).materialize()
    np.testing.assert_allclose(C, root, atol=1.1 * square_roots.TOLERANCE * root.max())
    assert design("sqrt_blt", of).root_loss == pytest.approx(design("sqrt_toeplitz", of).root_loss, rel=2e-4)


@pytest.mark.parametrize("of", WORKLOADS, ids=str)
def test_the_normalized_square_root_is_the_dense_one_with_its_columns_divided_by_their_norms(of):
    root = dense_square_root(of)
    expected = root / np.linalg.norm(root, axis=0)
    mechanism = design("normalized_sqrt", of)
    B, C = mechanism.materialize()
    np.testing.assert_allclose(C, expected, atol=2 * square_roots.TOLERANCE)
    # 1e-5: the tables are rounded to float32 after their columns were made unit.
    np.testing.assert_allclose(np.linalg.norm(C, axis=0), 1, atol=1e-5)
    decoder = workloads.materialize(of) @ np.linalg.inv(expected)
    assert mechanism.root_loss == pytest.approx(np.linalg.norm(decoder), rel=2e-4)
    assert np.linalg.norm(B) == pytest.approx(np.linalg.norm(decoder), rel=2e-4)


@pytest.mark.parametrize("of", [prefix_sum(300), momentum(300, 0.9), momentum(300, 0.995)], ids=str)
def test_the_fewest_buffers_within_the_tolerance_are_taken(of):
    wanted = square_roots.coefficients(of)
    taken = design("sqrt_blt", of).stream.buffers

    def error(count):
        theta, weights = square_roots.nodes(of, count)
        return float(np.abs(square_roots.sum_of_powers(theta, weights, 300) / wanted - 1).max())

    assert error(taken) <= square_roots.TOLERANCE < error(taken - 1)

"""What is particular to one family: published formulas, gradients and fits."""

from functools import partial

import numpy as np
import pytest
from scipy.optimize import check_grad

from fedmf.mechanisms import design, momentum, prefix_sum, workload as workloads
from fedmf.mechanisms.families import banded_low_rank, banded_toeplitz, blt
from fedmf.mechanisms.families.sqrt_toeplitz import coefficients
from fedmf.mechanisms.schedules import rates
from fedmf.mechanisms.streams import toeplitz, tree
from fedmf.mechanisms.streams.dense import DenseStream
from fedmf.mechanisms.streams.recurrence import RecurrentStream


def test_square_root_squares_to_the_workload():
    for workload in (prefix_sum(20), momentum(20, 0.9), momentum(300, 0.5)):
        root = toeplitz.materialize(coefficients(workload), workload.rounds)
        np.testing.assert_allclose(root @ root, workloads.materialize(workload), atol=1e-12)


def test_honaker_weights_are_the_best_from_below():
    """The variance of a node's estimate equals its weight 1/(2 - 2^-h), by least squares on its subtree."""
    for h in range(5):
        C = tree.strategy(2**h)
        variance = np.linalg.inv(C.T @ C).sum()
        assert variance == pytest.approx(1 / (2 - 2.0**-h))
    mechanism = design("honaker_online", prefix_sum(32))
    np.testing.assert_allclose(mechanism.stream.weights, [1 / (2 - 2.0**-h) for h in range(6)], rtol=1e-7)


def test_full_honaker_has_the_law_of_its_look_ahead_estimator():
    """B = A C^+ looks ahead; what is deployed is causal, with the same B B^T and the same column norms."""
    mechanism = design("honaker_full", prefix_sum(13))
    C = tree.strategy(13)
    look_ahead = workloads.materialize(prefix_sum(13)) @ np.linalg.pinv(C)
    B, deployed = mechanism.materialize()
    assert np.abs(np.triu(look_ahead[:, :13], 1)).max() > 0.01
    np.testing.assert_allclose(B @ B.T, look_ahead @ look_ahead.T, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(deployed, axis=0), np.linalg.norm(C, axis=0), rtol=1e-6)


def test_without_the_reduction_honaker_costs_what_was_published():
    """LQ would lower its sensitivity from 3 to 2.789 at 256 rounds; it is reported without."""
    mechanism = design("honaker_online", prefix_sum(256))
    B, C = mechanism.materialize()
    Q = np.linalg.qr(B.T)[0].T
    assert mechanism.sensitivity == pytest.approx(3)
    assert np.linalg.norm(Q @ C, axis=0).max() == pytest.approx(2.7890042514923126, rel=1e-6)


def part(objective, which, workload, x):
    """The value (0) or the gradient (1) of an objective at x."""
    return objective(x, workload)[which]


@pytest.mark.parametrize("rounds", [5, 300])
def test_gradients_are_those_of_the_loss(rounds):
    workload = momentum(rounds, 0.6)
    below = coefficients(workload)[1:5]
    point = np.concatenate(blt._start(rounds, 3))
    for objective, at in ((banded_toeplitz._objective, below), (blt._objective, point)):
        error = check_grad(partial(part, objective, 0, workload), partial(part, objective, 1, workload), at)
        assert error < 1e-5


def test_optimised_toeplitz_families_beat_the_square_root_they_start_from():
    workload = prefix_sum(64)
    square_root = design("sqrt_toeplitz", workload).root_loss
    assert design("blt", workload).root_loss < square_root
    assert design("banded_toeplitz", workload, buffers=63).root_loss < square_root
    truncated = toeplitz.rounded_with_cost(coefficients(workload)[:9], workload)
    assert design("banded_toeplitz", workload).root_loss < np.linalg.norm(truncated.per_round_error)


def test_blt_inverse_is_closed_under_the_recurrence():
    theta, omega = np.array([0.9, 0.5]), np.array([0.2, 0.3])
    coefs = blt.coefficients(theta, omega, 30)
    np.testing.assert_allclose(
        blt.inverse_coefficients(theta, omega, 30), toeplitz.inverse(coefs, 30), atol=1e-14
    )


def test_alternating_least_squares_only_gets_better():
    B = banded_low_rank._optimal_decoder(prefix_sum(60), None)
    target = np.tril(B, -3)
    residuals = []
    for sweeps in (1, 2, 5, 20, 60):
        left, right = banded_low_rank.alternating_least_squares(B, 3, 3, sweeps)
        residuals.append(np.linalg.norm(target - np.tril(left @ right.T, -3)))
    assert residuals == sorted(residuals, reverse=True)
    assert residuals[-1] < 0.1 * np.linalg.norm(target)


@pytest.mark.parametrize("workload", [prefix_sum(12), momentum(12, 0.8, rates("decay", 12))])
def test_low_rank_stream_multiplies_by_the_approximated_decoder(workload):
    """A times the noise matrix is B' itself: banded part, masked low-rank part, nothing else."""
    rng = np.random.default_rng(5)
    bands, left, right = rng.normal(size=(12, 3)), rng.normal(size=(12, 2)), rng.normal(size=(12, 2))
    bands[:, 0] += 4
    expected = np.tril(left @ right.T, -3)
    for k in range(3):
        bands[:k, k] = 0
        expected += np.diag(bands[k:, k], -k)
    stream = RecurrentStream(12, banded_low_rank.tables(bands, left, right, workload))
    computed = workloads.apply(workload, stream.materialize_noising())
    np.testing.assert_allclose(computed, expected, atol=1e-4)
    assert stream.buffers == (5 if workload.momentum == 0 else 6)


def test_recomputed_encoder_differs_from_the_optimums():
    """With the optimum's own C the product B' C would not be A: the control for recomputing C."""
    workload = prefix_sum(200)
    mechanism = design("banded_low_rank", workload, bands=2, rank=1)
    B, C = mechanism.materialize()
    _, optimum = design("optimal", workload).materialize()
    A = workloads.materialize(workload)
    np.testing.assert_allclose(B @ C, A, atol=1e-10)
    assert np.abs(B @ optimum - A).max() > 0.05


def test_only_dense_families_hold_square_arrays():
    """At 300 rounds only the dense streams, and the square root's history, hold T rows of T numbers."""
    for family in ("optimal", "sqrt_toeplitz", "binary_tree", "honaker_online", "banded_toeplitz", "blt",
                   "banded_low_rank", "independent"):  # fmt: skip
        stream = design(family, prefix_sum(300)).stream
        largest = max(np.asarray(value).size for value in vars(stream).values())
        assert largest < 300 * 110, family
    assert isinstance(design("honaker_full", prefix_sum(30)).stream, DenseStream)

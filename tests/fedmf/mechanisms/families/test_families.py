"""What is particular to one family: published formulas, gradients, fits, refusals;
bounds and post-processing.
"""

from functools import partial

import numpy as np
import pytest
from scipy.optimize import check_grad

from fedmf.errors import SettingError
from fedmf.mechanisms import bounds, design, momentum, prefix_sum
from fedmf.mechanisms import workload as workloads
from fedmf.mechanisms.families import banded_low_rank, banded_toeplitz, blt
from fedmf.mechanisms.families.sqrt_toeplitz import coefficients
from fedmf.mechanisms.family import settings_of, suits
from fedmf.mechanisms.post_processing import post_process
from fedmf.mechanisms.schedules import schedule
from fedmf.mechanisms.streams import toeplitz, tree
from fedmf.mechanisms.streams.dense import DenseStream
from fedmf.mechanisms.streams.protocol import StreamState


def test_square_root_squares_to_the_workload():
    for workload in (prefix_sum(20), momentum(20, 0.9), momentum(300, 0.5)):
        root = toeplitz.materialize(coefficients(workload), workload.rounds)
        np.testing.assert_allclose(root @ root, workloads.materialize(workload), atol=1e-12)


def test_square_root_is_above_the_published_bound_up_to_six_rounds():
    """Henzinger et al., Theorem 2, fails for T <= 6 and holds from 7 on."""
    for rounds in range(1, 40):
        loss = design("sqrt_toeplitz", prefix_sum(rounds)).root_loss
        assert (loss <= bounds.henzinger_upper(rounds)) == (rounds > 6)


def test_schatten_closed_form_is_the_nuclear_norm():
    for rounds in (1, 2, 7, 50):
        A = workloads.materialize(prefix_sum(rounds))
        nuclear = np.linalg.svd(A, compute_uv=False).sum() / np.sqrt(rounds)
        assert bounds.prefix_sum_schatten(rounds) == pytest.approx(nuclear, rel=1e-12)
    assert bounds.schatten(momentum(20, 0.9)) < design("optimal", momentum(20, 0.9)).root_loss
    assert bounds.schatten(momentum(1025, 0.9)) is None
    assert bounds.schatten(prefix_sum(5000)) == bounds.prefix_sum_schatten(5000)


def test_closed_form_bounds_are_below_the_certificate():
    for rounds in (2, 16, 300):
        certified = bounds.lower_bound(prefix_sum(rounds))
        assert bounds.henzinger_lower(rounds) < certified
        assert bounds.prefix_sum_schatten(rounds) < certified


@pytest.mark.parametrize("rounds", [1, 5, 8, 13])
def test_tree_rows_are_complete_dyadic_blocks(rounds):
    C = tree.strategy(rounds)
    blocks = {tuple(np.flatnonzero(row)) for row in C}
    expected = {
        tuple(range(start, start + 2**h))
        for h in range(5)
        for start in range(0, rounds, 2**h)
        if start + 2**h <= rounds
    }
    assert blocks == expected
    assert len(C) == len(expected)


def test_honaker_weights_are_the_best_from_below():
    """The variance of a node's estimate equals its weight 1/(2 - 2^-h):
    recomputed by least squares on its subtree.
    """
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


def test_toeplitz_inverse_and_rows_match_the_matrix():
    coefs = np.array([1.0, 0.4, 0.2])
    C = toeplitz.materialize(coefs, 9)
    np.testing.assert_allclose(toeplitz.materialize(toeplitz.inverse(coefs, 9), 9) @ C, np.eye(9), atol=1e-14)
    for workload in (momentum(9, 0.5), momentum(9, 0.5, schedule("linear", 9))):
        B = workloads.materialize(workload) @ np.linalg.inv(C)
        computed = toeplitz.row_norms(toeplitz.inverse(coefs, 9), workload)
        np.testing.assert_allclose(computed, np.linalg.norm(B, axis=1), rtol=1e-12)
    long = np.arange(1.0, 101)
    np.testing.assert_allclose(toeplitz.multiply(long, long, 100), np.convolve(long, long)[:100], rtol=1e-9)


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
    truncated = toeplitz.deployed(coefficients(workload)[:9], workload)
    assert design("banded_toeplitz", workload).root_loss < np.linalg.norm(truncated["per_round_error"])


def test_blt_inverse_is_closed_under_the_recurrence():
    theta, omega = np.array([0.9, 0.5]), np.array([0.2, 0.3])
    coefs = blt.coefficients(theta, omega, 30)
    np.testing.assert_allclose(
        blt.inverse_coefficients(theta, omega, 30), toeplitz.inverse(coefs, 30), atol=1e-14
    )


def test_alternating_least_squares_only_gets_better():
    B = banded_low_rank._optimal_decoder(prefix_sum(60))
    target = np.tril(B, -3)
    residuals = []
    for sweeps in (1, 2, 5, 20, 60):
        left, right = banded_low_rank.alternating_least_squares(B, 3, 3, sweeps)
        residuals.append(np.linalg.norm(target - np.tril(left @ right.T, -3)))
    assert residuals == sorted(residuals, reverse=True)
    assert residuals[-1] < 0.1 * np.linalg.norm(target)


@pytest.mark.parametrize("workload", [prefix_sum(12), momentum(12, 0.8, schedule("linear", 12))])
def test_low_rank_stream_multiplies_by_the_approximated_decoder(workload):
    """A times the noise matrix is B' itself: banded part, masked low-rank part, nothing else."""
    rng = np.random.default_rng(5)
    bands, left, right = rng.normal(size=(12, 3)), rng.normal(size=(12, 2)), rng.normal(size=(12, 2))
    bands[:, 0] += 4
    expected = np.tril(left @ right.T, -3)
    for k in range(3):
        bands[:k, k] = 0
        expected += np.diag(bands[k:, k], -k)
    from fedmf.mechanisms.streams.recurrence import RecurrentStream

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


def test_post_processing_changes_the_cost_and_not_the_stream():
    mechanism = design("optimal", prefix_sum(30))
    other = momentum(30, 0.8, schedule("cosine", 30))
    processed = post_process(mechanism, other)
    assert processed.stream is mechanism.stream
    assert processed.sensitivity == mechanism.sensitivity
    B, C = processed.materialize()
    np.testing.assert_allclose(B @ C, workloads.materialize(other), atol=1e-10)
    np.testing.assert_allclose(
        processed.per_round_error, mechanism.sensitivity * np.linalg.norm(B, axis=1), rtol=1e-10
    )
    with pytest.raises(SettingError, match="31 rounds"):
        post_process(mechanism, prefix_sum(31))
    with pytest.raises(SettingError, match="not streamed by a recurrence"):
        post_process(design("binary_tree", prefix_sum(30)), other)


@pytest.mark.parametrize(
    ("family", "settings", "message"),
    [
        ("optimum", {}, "family is 'optimum'"),
        ("independent", {"buffers": 2}, "independent has no setting buffers; it has none"),
        ("optimal", {"rank": 2}, "optimal has no setting rank; it has buffers"),
        ("banded_toeplitz", {"buffers": -1}, "buffers is -1"),
        ("banded_toeplitz", {"buffers": 5}, "buffers is 5"),
        ("blt", {"buffers": 0}, "buffers is 0"),
        ("blt", {"buffers": 17}, "buffers is 17"),
        ("banded_low_rank", {"bands": 0}, "bands is 0"),
        ("banded_low_rank", {"rank": 6}, "rank is 6"),
        ("optimal", {"buffers": 2.5}, "buffers is 2.5"),
    ],
)
def test_settings_out_of_range_are_refused(family, settings, message):
    with pytest.raises(SettingError, match=message):
        design(family, prefix_sum(5), **settings)


@pytest.mark.parametrize("family", ["optimal_dense", "honaker_full", "banded_low_rank"])
def test_dense_families_refuse_long_epochs(family):
    workload = prefix_sum(5000)
    assert not suits(family, workload)
    assert suits("optimal", workload)
    with pytest.raises(SettingError, match="rounds is 5000"):
        design(family, workload)


def test_settings_are_known_by_name():
    assert settings_of("banded_low_rank") == ("bands", "rank")
    assert settings_of("independent") == ()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format_version": np.array(2)}, "format version 2"),
        ({"buffers": np.zeros((2, 3))}, "float64"),
        ({"buffers": np.zeros(3, np.float32)}, "shape"),
        ({"step": None}, "lacks step"),
    ],
)
def test_states_of_another_format_are_refused(change, message):
    arrays = StreamState(1, np.zeros((2, 3), np.float32)).to_arrays() | change
    arrays = {name: value for name, value in arrays.items() if value is not None}
    with pytest.raises(SettingError, match=message):
        StreamState.from_arrays(arrays)


def test_only_dense_families_hold_square_arrays():
    """At 300 rounds no stream but the two dense ones, and the history of the square root,
    holds T rows of T numbers.
    """
    for family in ("optimal", "sqrt_toeplitz", "binary_tree", "honaker_online", "banded_toeplitz", "blt",
                   "banded_low_rank", "independent"):  # fmt: skip
        stream = design(family, prefix_sum(300)).stream
        largest = max(np.asarray(value).size for value in vars(stream).values())
        assert largest < 300 * 110, family
    assert isinstance(design("honaker_full", prefix_sum(30)).stream, DenseStream)

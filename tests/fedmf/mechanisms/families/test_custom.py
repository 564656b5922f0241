"""Families of one's own: what is computed about them, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest

from fedmf.errors import SettingError
from fedmf.mechanisms import (
    FAMILIES,
    Family,
    cache,
    design,
    family as registry,
    momentum,
    noising_family,
    prefix_sum,
    strategy_family,
    workload as workloads,
)
from fedmf.mechanisms.streams import toeplitz
from fedmf.mechanisms.streams.protocol import feed
from fedmf.mechanisms.streams.toeplitz import ToeplitzStream
from workloads import fading

# Column norms sqrt(1 + 9 + 4), 2, 1; row norms 1, sqrt(13), sqrt(5): the largest differ.
ASYMMETRIC = np.array([[1.0, 0.0, 0.0], [3.0, 2.0, 0.0], [2.0, 0.0, 1.0]])
SENSITIVITY = np.sqrt(14)


def test_the_sensitivity_is_the_largest_column_norm_and_not_a_row_norm():
    mechanism = design(strategy_family("mine", ASYMMETRIC), prefix_sum(3))
    assert mechanism.sensitivity == pytest.approx(SENSITIVITY, rel=1e-6)
    assert np.linalg.norm(ASYMMETRIC, axis=1).max() < 0.99 * SENSITIVITY
    transposed = design(strategy_family("mine", ASYMMETRIC[::-1, ::-1].T), prefix_sum(3))
    assert transposed.sensitivity == pytest.approx(np.sqrt(13), rel=1e-6)


@pytest.mark.parametrize("workload", [prefix_sum(1), prefix_sum(20), momentum(20, 0.8)], ids=str)
def test_costs_are_those_of_the_dense_factorization(workload):
    mechanism = design(strategy_family("mine", fading), workload)
    C = fading(workload)
    B = workloads.materialize(workload) @ np.linalg.inv(C)
    sensitivity = np.linalg.norm(C, axis=0).max()
    # 1e-6: C^-1 is rounded to float32.
    assert mechanism.sensitivity == pytest.approx(sensitivity, rel=1e-6)
    np.testing.assert_allclose(mechanism.per_round_error, sensitivity * np.linalg.norm(B, axis=1), rtol=1e-5)
    decoder, encoder = mechanism.materialize()
    np.testing.assert_allclose(decoder @ encoder, workloads.materialize(workload), atol=1e-9)


def test_costs_are_those_of_the_numbers_that_are_streamed_to_the_last_digit():
    """Of the float32 C^-1, not of the C that was given."""
    mechanism = design(strategy_family("mine", fading), prefix_sum(20))
    emitted = feed(mechanism.stream, np.eye(20))
    sensitivity = np.linalg.norm(np.linalg.inv(emitted), axis=0).max()
    assert mechanism.sensitivity == pytest.approx(sensitivity, rel=1e-13)
    assert mechanism.sensitivity != pytest.approx(
        np.linalg.norm(fading(prefix_sum(20)), axis=0).max(), rel=1e-13
    )


def test_a_matrix_is_taken_as_the_strategy_or_as_the_noising_one_as_said():
    C = fading(prefix_sum(9))
    by_strategy = design(strategy_family("mine", C), prefix_sum(9))
    by_noising = design(noising_family("mine", np.linalg.inv(C)), prefix_sum(9))
    np.testing.assert_allclose(by_strategy.stream.noising, by_noising.stream.noising, atol=1e-6)
    mistaken = design(noising_family("mine", C), prefix_sum(9))
    np.testing.assert_allclose(mistaken.stream.noising, C.astype("f4"))


@pytest.mark.parametrize("given", [ASYMMETRIC.tolist(), ASYMMETRIC.astype(int), ASYMMETRIC.astype("f4")])
def test_real_numbers_of_any_type_are_taken(given):
    assert design(strategy_family("mine", given), prefix_sum(3)).sensitivity == pytest.approx(SENSITIVITY)


@pytest.mark.parametrize("family", [strategy_family, noising_family])
@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (np.ones(3), r"has shape \(3,\); it must be a square"),
        (np.ones((3, 2)), r"has shape \(3, 2\); it must be a square"),
        (np.eye(4), "has 4 rows; an epoch has 3 rounds"),
        (np.diag([1, np.nan, 1]), "not finite"),
        (np.diag([1, np.inf, 1]), "not finite"),
        (np.ones((3, 3)), "lower triangular"),
        (np.diag([1.0, 0.0, 1.0]), "zero on its diagonal"),
        (np.eye(3) + 1e6 * np.eye(3, k=-1), "condition number"),
        (1e45 * np.eye(3), "range of float32"),
        (1e-46 * np.eye(3), "range of float32"),
        (1j * np.eye(3), "complex128; it must hold real numbers"),
        ([["a"]], "it must hold real numbers"),
    ],
)
def test_matrices_that_are_no_strategy_are_refused(family, matrix, message):
    for source in (matrix, lambda workload: matrix):
        with pytest.raises(SettingError, match=message):
            design(family("mine", source), prefix_sum(3))


def test_a_matrix_is_checked_for_every_number_of_rounds():
    mine = strategy_family("mine", ASYMMETRIC)
    with pytest.raises(SettingError, match="has 3 rows; an epoch has 64 rounds"):
        design(mine, prefix_sum(64))
    with pytest.raises(SettingError, match="rounds is 5000"):
        design(mine, prefix_sum(5000))
    with pytest.raises(SettingError, match="mine has no setting buffers"):
        design(mine, prefix_sum(3), buffers=2)


@pytest.mark.parametrize("name", sorted(set(FAMILIES) - {"binary_tree", "honaker_online"}))
def test_families_of_the_package_pass_the_same_check(name):
    """And cost, by the matrix that their streams deploy, what they cost by their tables."""
    for workload in (prefix_sum(60), momentum(60, 0.9)):
        own = design(replace(registry._OWN[name], name="mine"), workload)
        assert own.sensitivity == pytest.approx(design(name, workload).sensitivity, rel=1e-9)
        np.testing.assert_allclose(own.per_round_error, design(name, workload).per_round_error, rtol=1e-9)


@pytest.mark.parametrize("rounds", [512, pytest.param(2048, marks=pytest.mark.slow)])
def test_long_epochs_of_an_honest_stream_are_not_refused(rounds):
    for workload in (prefix_sum(rounds), momentum(rounds, 0.95)):
        mechanism = design(replace(registry._OWN["optimal"], name="mine"), workload)
        assert mechanism.sensitivity == pytest.approx(1, rel=1e-6)


def test_a_stream_of_the_package_keeps_fewer_rows_than_a_matrix():
    """The example of docs/mechanisms.md."""
    three_bands = Family("three_bands", fit_three_bands, ToeplitzStream)
    mechanism = design(three_bands, prefix_sum(50))
    assert mechanism.stream.buffers == 2
    assert mechanism.sensitivity == pytest.approx(np.sqrt(1 + 1 / 4 + 1 / 16))
    assert design(three_bands, prefix_sum(1)).sensitivity == 1


def fit_three_bands(workload):
    return toeplitz.rounded_with_cost(np.array([1.0, 0.5, 0.25])[: workload.rounds], workload)


def test_ill_conditioned_matrices_are_refused():
    """Condition 1.8e5 in one order of the two matrices or the other, and 1.8e4, which is taken."""
    for size, refused in ((300.0, True), (95.0, False)):
        lower = np.array([[1.0, 0.0, 0.0], [size, 1.0, 0.0], [0.0, size, 1.0]])
        for family in (strategy_family("mine", lower), noising_family("mine", lower)):
            if refused:
                with pytest.raises(SettingError, match="condition number"):
                    design(family, prefix_sum(3))
            else:
                design(family, prefix_sum(3))


@pytest.mark.parametrize("given", [[[1.0], [1.0, 2.0]], [["a"]]])
def test_what_is_no_array_of_numbers_is_refused_with_a_sentence(given):
    with pytest.raises(SettingError, match="the matrix of mine"):
        design(strategy_family("mine", given), prefix_sum(len(given)))


def test_a_name_that_is_no_text_is_refused():
    with pytest.raises(SettingError, match="the name of the family is 3"):
        strategy_family(3, np.eye(2))


def test_nothing_of_ones_own_is_kept_on_disk(tmp_path, monkeypatch):
    """The code behind a name can change; with a cache by name the second design would be the first."""
    monkeypatch.setenv("FEDMF_CACHE", str(tmp_path / "results"))
    first = design(strategy_family("mine", np.eye(3)), prefix_sum(3))
    second = design(strategy_family("mine", ASYMMETRIC), prefix_sum(3))
    assert (first.sensitivity, second.sensitivity) == (1.0, pytest.approx(SENSITIVITY))
    assert not cache.directory().exists()

"""Custom families: what is derived from their matrices and streams, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest

from fedmf.errors import SettingError
from fedmf.mechanisms import (
    FAMILIES,
    Family,
    design,
    family as registry,
    momentum,
    noising_family,
    prefix_sum,
    strategy_family,
)
from fedmf.mechanisms.streams.dense import DenseStream
from fedmf.mechanisms.streams.protocol import feed
from fedmf.mechanisms.streams.recurrence import RecurrentStream
from fedmf.mechanisms.streams.toeplitz import ToeplitzStream

# Column norms sqrt(1 + 9 + 4), 2, 1; row norms 1, sqrt(13), sqrt(5): the largest differ.
ASYMMETRIC = np.array([[1.0, 0.0, 0.0], [3.0, 2.0, 0.0], [2.0, 0.0, 1.0]])
SENSITIVITY = np.sqrt(14)


def fading(workload):
    """C_ts = 0.7^(t - s), below the diagonal half of it on odd columns: no Toeplitz matrix."""
    ages = np.subtract.outer(np.arange(workload.rounds), np.arange(workload.rounds))
    C = np.tril(0.7 ** np.maximum(ages, 0))
    C[:, 1::2] *= np.where(ages[:, 1::2] > 0, 0.5, 1)
    return C


def mine(stream, tables):
    """A family that streams by `stream` from these tables, whatever it is asked for."""
    return Family("mine", lambda workload: stream(workload.rounds, tables))


def test_the_sensitivity_is_the_largest_column_norm_and_not_a_row_norm():
    mechanism = design(strategy_family("mine", ASYMMETRIC), prefix_sum(3))
    assert mechanism.sensitivity == pytest.approx(SENSITIVITY, rel=1e-6)
    assert np.linalg.norm(ASYMMETRIC, axis=1).max() < 0.99 * SENSITIVITY
    for given in (ASYMMETRIC.tolist(), ASYMMETRIC.astype(int), ASYMMETRIC.astype("f4")):
        assert design(strategy_family("mine", given), prefix_sum(3)).sensitivity == mechanism.sensitivity
    design(strategy_family("mine", np.eye(3) + 95 * np.eye(3, k=-1)), prefix_sum(3))  # condition 1.8e4
    transposed = design(strategy_family("mine", ASYMMETRIC[::-1, ::-1].T), prefix_sum(3))
    assert transposed.sensitivity == pytest.approx(np.sqrt(13), rel=1e-6)


def test_costs_are_those_of_the_numbers_that_are_streamed_to_the_last_digit():
    """Of the float32 C^-1, not of the C that was given."""
    mechanism = design(strategy_family("mine", fading), prefix_sum(20))
    sensitivity = np.linalg.norm(np.linalg.inv(feed(mechanism.stream, np.eye(20))), axis=0).max()
    assert mechanism.sensitivity == pytest.approx(sensitivity, rel=1e-13)
    given = np.linalg.norm(fading(prefix_sum(20)), axis=0).max()
    assert mechanism.sensitivity != pytest.approx(given, rel=1e-13)


def test_a_matrix_is_the_strategy_or_the_noising_one_as_its_family_says():
    C = fading(prefix_sum(9))
    by_strategy = design(strategy_family("mine", C), prefix_sum(9))
    by_noising = design(noising_family("mine", np.linalg.inv(C)), prefix_sum(9))
    np.testing.assert_allclose(by_strategy.stream.tables, by_noising.stream.tables, atol=1e-6)
    np.testing.assert_allclose(design(noising_family("mine", C), prefix_sum(9)).stream.tables, C.astype("f4"))


@pytest.mark.parametrize("family", [strategy_family, noising_family])
@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (np.ones((3, 2)), r"shape \(3, 2\) of float64; it must have shape \(3, 3\)"),
        (np.eye(4), r"shape \(4, 4\) of float64; it must have shape \(3, 3\)"),
        (np.diag([1, np.nan, 1]), "finite"),
        (np.ones((3, 3)), "0 above the diagonal"),
        (np.diag([1.0, 0.0, 1.0]), "not 0 on it"),
        (np.eye(3) + 300 * np.eye(3, k=-1), "condition number"),  # 1.8e5 in one order of the two or the other
        (1e45 * np.eye(3), "range of float32"),
        (1e-46 * np.eye(3), "range of float32"),
        (1j * np.eye(3), "of complex128; it must have .* and hold real"),
        ([[1.0], [1.0, 2.0]], "the matrix of mine cannot be made.*: ValueError: "),
    ],
)
def test_matrices_that_are_no_strategy_are_refused(family, matrix, message):
    for source in (matrix, lambda workload: matrix):
        with pytest.raises(SettingError, match=message):
            design(family("mine", source), prefix_sum(3))


def test_a_matrix_is_checked_for_every_number_of_rounds():
    family = strategy_family("mine", ASYMMETRIC)
    for given, rounds, settings, said in (
        (family, 64, {}, r"it must have shape \(64, 64\), for the rounds of an epoch"),
        (family, 5000, {}, "rounds is 5000"),
        (mine(ToeplitzStream, np.ones(1)), 5000, {}, "has 5000 rounds; it must have .* at most 4096"),
        (family, 3, {"buffers": 2}, "mine has no setting buffers"),
        (Family("mine", lambda workload: ToeplitzStream(9, np.ones(1))), 8, {}, "has 9 rounds; it must have those of an epoch, 8"),
    ):  # fmt: skip
        with pytest.raises(SettingError, match=said):
            design(given, prefix_sum(rounds), **settings)


@pytest.mark.parametrize("name", sorted(set(FAMILIES) - {"binary_tree", "honaker_online"}))
def test_families_of_the_package_pass_the_same_check(name):
    for workload in (prefix_sum(60), momentum(60, 0.9)):
        custom, own = design(replace(registry._OWN[name], name="mine"), workload), design(name, workload)
        np.testing.assert_array_equal(custom.stream.tables, own.stream.tables)
        assert custom.sensitivity == own.sensitivity


def test_a_stream_of_the_package_keeps_fewer_rows_than_a_matrix():
    """The example of docs/mechanisms.md."""
    bands = np.array([1.0, 0.5, 0.25])
    three_bands = Family("three_bands", lambda workload: ToeplitzStream(workload.rounds, bands))
    mechanism = design(three_bands, prefix_sum(50))
    assert mechanism.stream.buffers == 2
    assert mechanism.sensitivity == pytest.approx(np.sqrt(1 + 1 / 4 + 1 / 16))
    assert design(three_bands, prefix_sum(1)).sensitivity == 1


class OwnStep(DenseStream):
    """Emits half the noise that its matrices claim."""

    def next(self, draw, state, *, donate=False):
        mean, fresh, state = super().next(draw, state, donate=donate)
        return mean / 2, fresh / 2, state


@pytest.mark.parametrize(
    ("family", "kind"),
    [
        (mine(OwnStep, np.eye(8)), "OwnStep"),
        (Family("mine", lambda workload: np.eye(8)), "ndarray"),
        (replace(registry._OWN["binary_tree"], name="mine"), "TreeStream"),
    ],
    ids=["a class made of ours", "an array", "a tree"],
)
def test_a_stream_with_a_step_of_its_own_is_refused(family, kind):
    message = f"mine streams by an object of type {kind}; it must be one of DenseStream, RecurrentStream, ToeplitzStream"
    with pytest.raises(SettingError, match=message):
        design(family, prefix_sum(8))


@pytest.mark.parametrize(
    ("stream", "tables", "message"),
    [
        (
            ToeplitzStream,
            np.array([0.5, 0.25]),
            "do not fit a ToeplitzStream of 8 rounds; .* the first of them 1",
        ),
        (ToeplitzStream, np.array([2.0, 0.25]), "the first of them 1"),
        (ToeplitzStream, np.eye(2), r"shape \(2, 2\) do not fit a ToeplitzStream"),
        (ToeplitzStream, np.empty(0), r"shape \(0,\) do not"),
        (RecurrentStream, np.eye(2), r"shape \(2, 2\) do not fit a RecurrentStream"),
        (RecurrentStream, np.ones((1, 2, 3)), r"shape \(1, 2, 3\) do not"),
        (RecurrentStream, np.ones((2, 2, 2)), r"shape \(2, 2, 2\) do not"),
        (RecurrentStream, np.zeros((1, 2, 2)), "no last entry of a matrix 0"),
        (RecurrentStream, 1e5 * np.ones((1, 2, 2)), "condition number"),
        (DenseStream, np.ones(8), r"shape \(8,\) do not fit a DenseStream"),
        (DenseStream, np.eye(7), r"shape \(7, 7\) do not fit"),
        (DenseStream, np.eye(8) + np.eye(8, k=1), "lower triangular"),
        (DenseStream, np.diag([1.0] * 7 + [0.0]), "no zero on the diagonal"),
        (DenseStream, np.eye(8) * np.nan, "finite"),
    ],
)
def test_tables_that_a_stream_would_emit_otherwise_than_costed_are_refused(stream, tables, message):
    """Half of a first coefficient would be half of the noise: the step of a Toeplitz stream takes it for 1."""
    with pytest.raises(SettingError, match=message):
        design(mine(stream, tables), prefix_sum(8))

"""Families of one's own that bring a stream of the package: what is claimed of it is held against what it deploys."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from fedmf.errors import SettingError
from fedmf.mechanisms import Family, Fitted, design, family as registry, prefix_sum
from fedmf.mechanisms.streams.dense import DenseStream
from fedmf.mechanisms.streams.protocol import feed
from fedmf.mechanisms.streams.recurrence import RecurrentStream
from fedmf.mechanisms.streams.toeplitz import ToeplitzStream
from workloads import fading


def fit_dense(workload, claimed=None):
    noising = np.linalg.inv(fading(workload))
    sensitivity = np.linalg.norm(fading(workload), axis=0).max() if claimed is None else claimed
    return Fitted(sensitivity, np.zeros(workload.rounds), noising.astype("f4"))


def mine(stream=DenseStream, fit=fit_dense):
    return Family("mine", fit, stream)


class OwnStep(DenseStream):
    """Emits half the noise that its matrices claim."""

    def next(self, draw, state, *, donate=False):
        mean, fresh, state = super().next(draw, state, donate=donate)
        return mean / 2, fresh / 2, state


@dataclass(frozen=True)
class Elsewhere:
    """Made of none of the package's streams."""

    rounds: int
    tables: np.ndarray


@pytest.mark.parametrize(
    ("family", "kind"),
    [
        (mine(OwnStep), "OwnStep"),
        (mine(Elsewhere), "Elsewhere"),
        (mine(lambda rounds, tables: tables), "ndarray"),
        (replace(registry._OWN["binary_tree"], name="mine"), "TreeStream"),
    ],
    ids=["a class made of ours", "a class from elsewhere", "an array", "a tree"],
)
def test_a_stream_with_a_step_of_its_own_is_refused(family, kind):
    message = f"mine streams by an object of type {kind}; it must be one of DenseStream, RecurrentStream, ToeplitzStream"
    with pytest.raises(SettingError, match=message):
        design(family, prefix_sum(8))


@pytest.mark.parametrize("claimed", [1.0, 1.23, 4.0, float("nan")])
def test_a_sensitivity_that_is_not_that_of_the_stream_is_refused(claimed):
    with pytest.raises(SettingError, match=r"says that its sensitivity is .*; the largest column norm"):
        design(mine(fit=lambda workload: fit_dense(workload, claimed)), prefix_sum(8))


def test_errors_and_sensitivity_come_from_the_stream_whatever_the_fit_says():
    stated = design(mine(), prefix_sum(8))
    mechanism = design(
        mine(fit=lambda workload: fit_dense(workload, 1.001 * stated.sensitivity)), prefix_sum(8)
    )
    assert mechanism.sensitivity == stated.sensitivity
    noising = np.linalg.inv(fading(prefix_sum(8)))
    expected = stated.sensitivity * np.linalg.norm(np.cumsum(noising, axis=0), axis=1)
    np.testing.assert_allclose(mechanism.per_round_error, expected, rtol=1e-6)
    assert mechanism.fingerprint == stated.fingerprint
    assert mechanism.fingerprint != design(mine(), prefix_sum(9)).fingerprint


@pytest.mark.parametrize(
    ("stream", "tables", "message"),
    [
        (
            ToeplitzStream,
            np.array([0.5, 0.25]),
            "first coefficient of mine is 0.5; a ToeplitzStream takes it to be 1",
        ),
        (ToeplitzStream, np.array([2.0, 0.25]), "first coefficient of mine is 2"),
        (ToeplitzStream, np.eye(2), r"have shape \(2, 2\), which a ToeplitzStream cannot have"),
        (ToeplitzStream, np.empty(0), r"have shape \(0,\), which"),
        (RecurrentStream, np.eye(2), r"have shape \(2, 2\), which a RecurrentStream cannot have"),
        (RecurrentStream, np.ones((1, 2, 3)), r"have shape \(1, 2, 3\), which"),
        (DenseStream, np.ones(8), r"have shape \(8,\), which a DenseStream cannot have"),
    ],
)
def test_tables_that_a_stream_would_emit_otherwise_than_costed_are_refused(stream, tables, message):
    """Half of a first coefficient would be half of the noise: the step of a Toeplitz stream takes it for 1."""
    fit = lambda workload: Fitted(1.0, np.zeros(8), tables.astype("f4"))  # noqa: E731
    with pytest.raises(SettingError, match=message):
        design(mine(stream, fit), prefix_sum(8))


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        (np.eye(7), "there are 7 rows; the workload has 8 rounds"),
        (np.eye(8) + np.eye(8, k=1), "entries above its diagonal"),
        (np.diag([1.0] * 7 + [0.0]), "zero on its diagonal"),
        (np.eye(8) * np.nan, "not finite"),
    ],
)
def test_tables_that_deploy_no_noising_matrix_are_refused(tables, message):
    with pytest.raises(SettingError, match=message):
        design(mine(fit=lambda workload: Fitted(1.0, np.zeros(8), tables.astype("f4"))), prefix_sum(8))


@pytest.mark.parametrize(
    ("fit", "message"),
    [
        (lambda workload: {"sensitivity": 1.0}, "of type dict; it must return a fedmf.mechanisms.Fitted"),
        (lambda workload: Fitted(1.0, np.ones(8), np.eye(8)), "must be a float32 array"),
    ],
)
def test_fits_that_are_none_are_refused(fit, message):
    with pytest.raises(SettingError, match=message):
        design(mine(fit=fit), prefix_sum(8))


def test_a_stream_that_holds_other_numbers_than_float32_is_refused():
    with pytest.raises(SettingError, match="the stream of mine must hold its tables as a float32 array"):
        design(mine(lambda rounds, tables: DenseStream(rounds, tables.astype("f8"))), prefix_sum(8))


def test_who_keeps_the_fitted_tables_cannot_change_the_stream():
    kept = []

    def fit(workload):
        kept.append(fit_dense(workload))
        return kept[0]

    mechanism = design(mine(fit=fit), prefix_sum(5))
    before = feed(mechanism.stream, np.eye(5))
    kept[0].tables[:] *= np.float32(1e-3)
    np.testing.assert_array_equal(feed(mechanism.stream, np.eye(5)), before)

"""What is stated: the whitening map, and what no statement can be."""

import numpy as np
import pytest

from fedmf.audit import Stated, StatedEpoch
from fedmf.errors import SettingError
from oracles import banded, banded_statement, noise, tree_statement
from plans import small_plan


def test_whitening_is_a_triangular_strategy_matrix_and_of_a_tree_it_has_orthonormal_rows_on_its_noise():
    np.testing.assert_allclose(banded_statement().epochs[0].whitening, banded(), atol=1e-14)
    stated, strategy = tree_statement(8)
    epoch = stated.epochs[0]
    whitened = epoch.whitening @ epoch.noising
    np.testing.assert_allclose(whitened @ whitened.T, np.eye(8), atol=1e-12)
    assert np.all(np.diag(epoch.whitening) > 0)
    own, accounted = np.linalg.norm(epoch.whitening, axis=0), np.linalg.norm(strategy, axis=0)
    assert np.all(own <= accounted * (1 + 1e-12))  # no longer columns
    assert np.any(own < 0.9 * accounted)


def test_whitened_noise_has_the_identity_for_its_covariance():
    stated = Stated.of_strategy(banded(3).T, sigma=2.5, l2_norm=1.0, epochs=2)
    values = stated.whitened(noise(stated, np.random.default_rng(0), runs=2, dimension=20_000))
    flat = values.transpose(1, 2, 0, 3).reshape(6, -1)
    np.testing.assert_allclose(flat @ flat.T / flat.shape[1], np.eye(6), atol=0.03)


@pytest.mark.parametrize("family", ["optimal", "binary_tree"])
def test_a_plan_states_its_deployed_matrices_its_sigma_and_its_bounds(family):
    plan = small_plan(
        dimension=6, clients=8, cohort_size=2, epochs=3, rotation="identity", value_type="int8",
        l2_norm=2.0, linf_norm=1.0, noise_multiplier=0.7, family=family, momentum=0.5,
    )  # fmt: skip
    stated = Stated.of_plan(plan)
    assert (stated.l2_norm, stated.linf_norm) == (2.004, 1.0)
    for number, factorization in enumerate(plan.factorization.epochs):
        epoch = stated.epochs[number]
        np.testing.assert_array_equal(epoch.noising, factorization.stream.materialize_noising())
        assert epoch.sigma == pytest.approx(plan.sigma_in(number), rel=1e-12)
        assert epoch.sensitivity == pytest.approx(factorization.sensitivity, rel=1e-12)


def test_a_statement_that_cannot_be_one_is_an_error():
    for matrix in (np.ones((3, 2)), np.zeros((2, 2)), np.ones((2, 2))):
        with pytest.raises(np.linalg.LinAlgError):
            Stated.of_strategy(matrix, sigma=1, l2_norm=1)
    for noising in (np.ones((2, 2)), np.eye(3)[:, :2], np.array([[np.nan]])):
        with pytest.raises(SettingError, match="noising matrix"):
            StatedEpoch(noising, 1.0, 1.0)
    epochs = (StatedEpoch(np.eye(2), 1.0, 1.0), StatedEpoch(np.eye(3), 1.0, 1.0))
    for given in ((epochs, 1.0), ((), 1.0), (epochs[:1], 0)):
        with pytest.raises(SettingError):
            Stated(*given)
    with pytest.raises(SettingError, match="sigma"):
        StatedEpoch(np.eye(2), 1.0, -1.0)
    with pytest.raises(SettingError, match="nothing is stated"):
        banded_statement(sigma=0.0).whitened(np.zeros((1, 2, 4, 3)))

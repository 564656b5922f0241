"""Coupled streams: exactly what one client may change, and nothing more, on streams made by hand."""

import numpy as np
import pytest

from audited_laws import banded, banded_statement, named, noise, refuted, tree_statement
from fedmf.audit import Stated, coupled, whole_vector
from fedmf.audit.coupling import L2, LINF, OWN_ROUND
from fedmf.errors import SettingError
from fedmf.updates.rotation import hadamard

RNG = np.random.default_rng(0)


def streams(stated, vector, own_rounds, noise_of=noise):
    """Releases with the same noise, with and without `vector` in the client's rounds, and others' sums in all."""
    base = noise_of(stated, RNG, runs=1, dimension=len(vector))[0] + RNG.normal(size=len(vector))
    inside = base.copy()
    for epoch, step in enumerate(own_rounds):
        if step is not None:
            inside[epoch, step] += vector
    return inside, base


def test_a_vector_at_both_bounds_in_its_own_round_is_exactly_what_is_accounted():
    stated = banded_statement(linf_norm=0.25)
    found = coupled(*streams(stated, np.full(16, 0.25), [0, 2]), stated, own_rounds=[0, 2], tolerance=1e-12)
    assert refuted(found) == set()
    assert named(found, L2).observed == pytest.approx(1, rel=1e-9)
    assert named(found, LINF).observed == pytest.approx(1, rel=1e-9)
    assert named(found, OWN_ROUND).observed < 1e-12


def test_the_sensitivity_is_that_of_the_column_of_the_round():
    """Two bands: all columns but the last have the norm sqrt(1 + 1/4), which is accounted for every round."""
    stated = banded_statement(epochs=1)
    last = coupled(*streams(stated, np.array([1.0]), [3]), stated, own_rounds=[3], tolerance=1e-12)
    assert named(last, L2).observed == pytest.approx(1 / np.sqrt(1.25), rel=1e-9)


@pytest.mark.parametrize(
    ("vector", "tests"),
    [
        (np.array([1.001, 0, 0, 0]), {L2, LINF}),
        (np.array([0.6, 0.6, 0.6, 0.6]), {L2, LINF}),
        (np.array([0.501, 0, 0, 0]), {LINF}),
        (np.full(4, 0.5), set()),
        (np.array([np.nan, 0, 0, 0]), {L2, LINF, OWN_ROUND}),
    ],
)
def test_what_exceeds_a_bound_is_refuted_by_the_row_of_that_bound(vector, tests):
    stated = banded_statement(linf_norm=0.5)
    assert (
        refuted(coupled(*streams(stated, vector, [0, 1]), stated, own_rounds=[0, 1], tolerance=1e-12))
        == tests
    )


def test_an_influence_on_another_round_is_refuted_before_and_after_the_clients_own():
    stated = banded_statement()
    for step in (0, 2):
        inside, base = streams(stated, np.full(4, 0.1), [1, 1])
        inside[1, step, 3] += 1e-9
        found = coupled(inside, base, stated, own_rounds=[1, 1], tolerance=1e-12)
        assert refuted(found) == {OWN_ROUND}
        assert named(found, OWN_ROUND).where == f"epoch 2, round {step + 1}, coordinate 3"


def test_a_client_heard_twice_in_an_epoch_exceeds_the_sensitivity():
    stated = banded_statement(epochs=1)
    inside, base = streams(stated, np.array([1.0, 0.0]), [0])
    inside[0, 1, 0] += 1.0
    found = coupled(inside, base, stated, own_rounds=[0], tolerance=1e-12)
    expected = np.linalg.norm(banded() @ [1, 1, 0, 0]) / np.sqrt(1.25)
    assert named(found, L2).observed == pytest.approx(expected)
    assert refuted(found) == {L2, LINF, OWN_ROUND}


def test_a_client_that_takes_part_in_no_round_of_an_epoch_may_change_nothing_in_it():
    stated = banded_statement()
    inside, base = streams(stated, np.full(4, 0.1), [1, 1])
    assert refuted(coupled(inside, base, stated, own_rounds=[1, None], tolerance=1e-12)) == {OWN_ROUND}


def test_noise_that_is_not_the_same_is_an_influence_too():
    stated = banded_statement()
    inside, base = (noise(stated, RNG, runs=1, dimension=8)[0] for _ in range(2))
    assert refuted(coupled(inside, base, stated, own_rounds=[0, 0], tolerance=1e-6)) == {L2, LINF, OWN_ROUND}


def test_an_accounted_sensitivity_that_is_too_small_is_refuted():
    """Row norms in place of column norms: 1 for the first row of an asymmetric C, while its first column is longer."""
    honest = banded_statement(epochs=1)
    epoch = honest.epochs[0]
    wrong = Stated((type(epoch)(epoch.noising, 1.0, epoch.sigma),), 1.0)
    pair = streams(honest, np.array([1.0, 0.0]), [0])
    assert refuted(coupled(*pair, honest, own_rounds=[0], tolerance=1e-12)) == set()
    assert L2 in refuted(coupled(*pair, wrong, own_rounds=[0], tolerance=1e-12))


def test_replacement_allows_twice_the_bounds_and_no_more():
    stated = banded_statement(epochs=1)
    pair = streams(stated, np.array([2.0, 0.0]), [0])
    assert refuted(coupled(*pair, stated, own_rounds=[0], tolerance=1e-12, adjacency="replace")) == set()
    assert L2 in refuted(coupled(*pair, stated, own_rounds=[0], tolerance=1e-12))
    pair = streams(stated, np.array([2.01, 0.0]), [0])
    assert L2 in refuted(coupled(*pair, stated, own_rounds=[0], tolerance=1e-12, adjacency="replace"))


def test_the_l_infinity_bound_speaks_of_sent_coordinates():
    stated = banded_statement(epochs=1, linf_norm=0.25)
    sent = np.full(16, 0.25)
    pair = streams(stated, hadamard(sent), [0])
    assert refuted(coupled(*pair, stated, own_rounds=[0], tolerance=1e-12, rotate=hadamard)) == set()
    assert refuted(coupled(*pair, stated, own_rounds=[0], tolerance=1e-12)) == {LINF}


def test_a_tree_is_measured_through_the_noise_that_it_adds():
    stated, strategy = tree_statement(4)
    pair = streams(stated, np.array([1.0, 0.0]), [0])
    found = coupled(*pair, stated, own_rounds=[0], tolerance=1e-12)
    assert refuted(found) == set()
    # the twin: generalised least squares of the client's part from noise of covariance N N^T
    covariance = stated.epochs[0].noising @ stated.epochs[0].noising.T
    length = np.sqrt(np.linalg.inv(covariance)[0, 0])
    assert named(found, L2).observed == pytest.approx(length / np.linalg.norm(strategy, axis=0).max())


def test_an_error_within_the_tolerance_is_no_influence_and_one_beyond_is():
    stated = banded_statement()
    inside, base = streams(stated, np.zeros(4), [0, 0])
    inside[0, 3, 1] += 1e-6
    for tolerance, tests in ((1.1e-6, set()), (0.9e-6, {OWN_ROUND})):
        assert refuted(coupled(inside, base, stated, own_rounds=[0, 0], tolerance=tolerance)) == tests


def test_a_whole_vector_is_put_together_from_many_masks():
    """Each part is within the bound; only together are they too long."""
    stated = banded_statement(keep_probability=0.5)
    vector = np.full(100, 0.13)  # norm 1.3
    parts = vector * (np.random.default_rng(1).random((12, 100)) < 0.5)
    assert np.linalg.norm(parts, axis=1).max() < 1.05
    assert whole_vector(parts, stated, tolerance=1e-9).refutes
    assert not whole_vector(parts / 1.3001, stated, tolerance=1e-9).refutes
    assert whole_vector(parts / 1.3001, stated, tolerance=1e-9).observed > 0.99
    assert not whole_vector(parts / 1.29, stated, tolerance=1e-9, step=0.001).refutes
    assert whole_vector(np.full((1, 2), np.inf), stated).refutes


def test_streams_that_do_not_fit_are_refused():
    stated = banded_statement()
    zeros = np.zeros((2, 4, 3))
    with pytest.raises(SettingError, match="both must be"):
        coupled(zeros, np.zeros((2, 4, 2)), stated, own_rounds=[0, 0])
    with pytest.raises(SettingError, match="one for each"):
        coupled(zeros, zeros, stated, own_rounds=[0])
    with pytest.raises(SettingError, match="own_rounds holds 4"):
        coupled(zeros, zeros, stated, own_rounds=[0, 4])
    with pytest.raises(SettingError, match="adjacency is 'swap'"):
        coupled(zeros, zeros, stated, own_rounds=[0, 0], adjacency="swap")

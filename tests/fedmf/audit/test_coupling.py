"""What is stated, and coupled streams: exactly what one client may change, on streams made by hand; and a mechanism of one's own, as docs/audit.md shows it."""

import re
from pathlib import Path

import numpy as np
import pytest

from fedmf.audit import Stated, StatedEpoch, coupled, residuals
from fedmf.audit.coupling import L2, LINF, OWN_ROUND
from fedmf.audit.residual import CORRELATION
from fedmf.errors import SettingError
from fedmf.updates.rotation import hadamard
from oracles import banded, banded_statement, named, noise, refuted, tree_statement
from plans import small_plan

RNG = np.random.default_rng(0)
ONE = banded_statement(epochs=1)


def streams(stated, vector, own_rounds):
    """Releases with the same noise, with and without `vector` in the client's rounds, and others' sums in all."""
    vector = np.asarray(vector, float)
    base = noise(stated, RNG, runs=1, dimension=len(vector))[0] + RNG.normal(size=len(vector))
    inside = base.copy()
    for epoch, step in enumerate(own_rounds):
        inside[epoch, step] += vector
    return inside, base


def found_of(pair, stated, own_rounds, tolerance=1e-12, **more):
    return coupled(*pair, stated, own_rounds=own_rounds, tolerance=tolerance, **more)


def test_a_vector_at_both_bounds_in_its_own_round_is_exactly_what_is_accounted():
    stated = banded_statement(linf_norm=0.25)
    found = found_of(streams(stated, np.full(16, 0.25), [0, 2]), stated, [0, 2])
    assert refuted(found) == set()
    assert [named(found, test).observed for test in (L2, LINF)] == pytest.approx([1, 1], rel=1e-9)
    assert named(found, OWN_ROUND).observed < 1e-12
    # All columns of two bands but the last have the norm sqrt(1 + 1/4), which is accounted for every round.
    last = found_of(streams(ONE, [1.0], [3]), ONE, [3])
    assert named(last, L2).observed == pytest.approx(1 / np.sqrt(1.25), rel=1e-9)


@pytest.mark.parametrize(
    ("vector", "tests"),
    [
        ([1.001, 0, 0, 0], {L2, LINF}),
        ([0.6, 0.6, 0.6, 0.6], {L2, LINF}),
        ([0.501, 0, 0, 0], {LINF}),
        ([0.5, 0.5, 0.5, 0.5], set()),
        ([np.nan, 0, 0, 0], {L2, LINF, OWN_ROUND}),
    ],
)
def test_what_exceeds_a_bound_is_refuted_by_the_row_of_that_bound(vector, tests):
    stated = banded_statement(linf_norm=0.5)
    assert refuted(found_of(streams(stated, vector, [0, 1]), stated, [0, 1])) == tests


def test_an_influence_on_another_round_is_refuted_before_and_after_the_clients_own():
    stated = banded_statement()
    pair = streams(stated, np.full(4, 0.1), [1, 1])
    assert refuted(found_of(pair, stated, [1, None])) == {OWN_ROUND}  # it takes no part in the second epoch
    for step, tolerance, tests in ((0, 1e-12, {OWN_ROUND}), (2, 1e-12, {OWN_ROUND}), (2, 1e-8, set())):
        inside = pair[0].copy()
        inside[1, step, 3] += 1e-9
        found = found_of((inside, pair[1]), stated, [1, 1], tolerance)
        assert refuted(found) == tests
        assert not tests or named(found, OWN_ROUND).where == f"epoch, round, coordinate [1, {step}, 3]"


def test_a_client_heard_twice_in_an_epoch_and_noise_that_is_not_the_same_exceed_the_sensitivity():
    inside, base = streams(ONE, [1.0, 0.0], [0])
    inside[0, 1, 0] += 1.0
    found = found_of((inside, base), ONE, [0])
    assert named(found, L2).observed == pytest.approx(np.linalg.norm(banded() @ [1, 1, 0, 0]) / np.sqrt(1.25))
    others = [noise(ONE, RNG, runs=1, dimension=8)[0] for _ in range(2)]
    for both in (found, found_of(others, ONE, [0], 1e-6)):
        assert refuted(both) == {L2, LINF, OWN_ROUND}


def test_an_accounted_sensitivity_that_is_too_small_is_refuted():
    """Row norms in place of column norms: 1 for the first row of an asymmetric C, while its first column is longer."""
    (epoch,) = ONE.epochs
    wrong = Stated((type(epoch)(epoch.noising, 1.0, epoch.sigma),), 1.0)
    pair = streams(ONE, [1.0, 0.0], [0])
    assert refuted(found_of(pair, ONE, [0])) == set()
    assert L2 in refuted(found_of(pair, wrong, [0]))


def test_the_l_infinity_bound_speaks_of_sent_coordinates():
    stated = banded_statement(epochs=1, linf_norm=0.25)
    pair = streams(stated, hadamard(np.full(16, 0.25)), [0])
    assert refuted(found_of(pair, stated, [0], rotate=hadamard)) == set()
    assert refuted(found_of(pair, stated, [0])) == {LINF}


def test_a_tree_is_measured_through_the_noise_that_it_adds():
    stated, strategy = tree_statement(4)
    found = found_of(streams(stated, [1.0, 0.0], [0]), stated, [0])
    assert refuted(found) == set()
    # the twin: generalised least squares of the client's part from noise of covariance N N^T
    length = np.sqrt(np.linalg.inv(stated.epochs[0].noising @ stated.epochs[0].noising.T)[0, 0])
    assert named(found, L2).observed == pytest.approx(length / np.linalg.norm(strategy, axis=0).max())


def test_a_client_that_moved_nothing_leaves_the_pair_inconclusive():
    zeros = np.zeros((2, 4, 3))
    found = found_of((zeros + 0.1, zeros), banded_statement(), [0, 0], 0.2)
    assert {(finding.is_inconclusive, finding.refutes) for finding in found} == {(True, False)}
    assert found[0].sentence.endswith("inconclusive")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"without_client": np.zeros((2, 4, 2))}, "both must have"),
        ({"own_rounds": [0, 4]}, "own_rounds"),
        ({"tolerance": np.nan}, "tolerance"),
        ({"rotate": lambda row: 2 * row}, "rotate changes the length"),
    ],
)
def test_streams_that_do_not_fit_are_an_error(given, words):
    given = {"without_client": np.zeros((2, 4, 3)), "own_rounds": [0, 0], "tolerance": 0.0} | given
    with pytest.raises(SettingError, match=words):
        coupled(np.ones((2, 4, 3)), stated=banded_statement(), **given)


# what is stated


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
    epochs = (StatedEpoch(np.eye(2), 1.0, 1.0), StatedEpoch(np.eye(3), 1.0, 1.0))
    for matrix in (np.ones((3, 2)), np.zeros((2, 2)), np.ones((2, 2))):
        with pytest.raises(np.linalg.LinAlgError):
            Stated.of_strategy(matrix, sigma=1, l2_norm=1)
    for make, *given, said in (
        (StatedEpoch, np.ones((2, 2)), 1.0, 1.0, "noising matrix"),
        (StatedEpoch, np.eye(3)[:, :2], 1.0, 1.0, "noising matrix"),
        (StatedEpoch, np.array([[np.nan]]), 1.0, 1.0, "noising matrix"),
        (StatedEpoch, np.eye(2), 1.0, -1.0, "sigma"),
        (Stated, epochs, 1.0, "epochs must hold"),
        (Stated, (), 1.0, "epochs must hold"),
        (Stated, epochs[:1], 0, "l2_norm"),
        (banded_statement(sigma=0.0).whitened, np.zeros((1, 2, 4, 3)), "nothing is stated"),
    ):
        with pytest.raises(SettingError, match=said):
            make(*given)


# a mechanism of one's own: any stream whose matrix is known


ROOT = Path(__file__).resolve().parents[3]

# The example begins.
C = np.eye(6) + 0.5 * np.eye(6, k=-1)  # a banded strategy matrix; its largest column norm is accounted


def my_server(sums, rng, sigma=2.0, forgets=False):
    """Release the sums (T, d) of an epoch under the noise sigma C^-1 Z, round by round."""
    noise = np.zeros(sums.shape[1])
    for step, total in enumerate(sums):
        noise = sigma * rng.normal(size=len(noise)) - (0.0 if forgets and step == 3 else 0.5) * noise
        yield total + noise


stated = Stated.of_strategy(C, sigma=2.0, l2_norm=1.0)
sums = np.zeros((6, 64))
releases = np.array([[list(my_server(sums, np.random.default_rng(run)))] for run in range(50)])
findings = residuals(releases, stated)  # runs, epochs, rounds, coordinates

sums[2, :4] = 0.5  # one client's vector, of norm 1, in round 3
inside, outside = (np.array([list(my_server(s, np.random.default_rng(0)))]) for s in (sums, 0 * sums))
findings += coupled(inside, outside, stated, own_rounds=[2], tolerance=1e-12)
# The example ends.


def test_an_honest_mechanism_of_ones_own_is_not_refuted():
    assert refuted(findings) == set()


def test_one_that_forgets_a_row_of_its_noise_is_found_by_the_correlation_of_its_rounds():
    broken = np.array(
        [[list(my_server(0 * sums, np.random.default_rng(run), forgets=True))] for run in range(50)]
    )
    found = residuals(broken, stated)
    assert CORRELATION in refuted(found)
    assert named(found, CORRELATION).where.startswith("rounds 2")


def test_the_example_is_the_one_of_the_document():
    source = Path(__file__).read_text()
    example = re.search(r"# The example begins\.\n(.*?)# The example ends\.", source, re.DOTALL)
    assert example is not None
    page = (ROOT / "docs" / "audit.md").read_text()
    lines = [line.strip() for line in example[1].splitlines() if line.strip()]
    shown = [line.strip() for line in page.splitlines()]
    assert [line for line in lines if line not in shown] == []

"""Numbers near the ends of float64: no overflow makes a limit infinite or a ratio undefined, so that all would pass."""

import numpy as np
import pytest

from audited_laws import banded, banded_statement, noise, refuted
from fedmf.audit import Stated, StatedEpoch, coupled, residual, residuals, whole_vector
from fedmf.audit.coupling import L2, LINF, OWN_ROUND
from fedmf.errors import SettingError
from fedmf.updates.rotation import hadamard

STATED = banded_statement(3, 2)
HUGE = (1e150, 1e155, 1e200, 1e300, 1.7e308)


def pair(size, *places):
    inside = np.zeros((2, 3, 4))
    for place in places or ((0, 0, 0), (1, 0, 0)):
        inside[place] = size
    return inside, np.zeros((2, 3, 4))


@pytest.mark.parametrize("size", HUGE)
@pytest.mark.parametrize("rotate", [None, hadamard, lambda row: hadamard(row.astype(np.float32))])
def test_a_client_that_is_not_clipped_is_refuted_however_large_it_is(size, rotate):
    found = coupled(*pair(size), STATED, own_rounds=[0, 0], rotate=rotate)
    assert {L2, LINF} <= refuted(found)
    assert all(np.isfinite(finding.limit) for finding in found)
    assert "refuted" in found[0].sentence


def test_influences_that_overflow_with_both_signs_are_refuted():
    inside, base = pair(1.7e308, (0, 0, 0), (0, 0, 1))
    inside[0, 1] = -1.7e308
    assert refuted(coupled(inside, base, STATED, own_rounds=[0, 0])) == {L2, LINF, OWN_ROUND}
    assert refuted(coupled(inside, -inside, STATED, own_rounds=[0, 0])) == {L2, LINF, OWN_ROUND}


@pytest.mark.parametrize("size", [1e-300, 1e-150, 1e150, 1e300])
def test_what_is_accounted_is_the_limit_at_every_scale_of_the_bounds(size):
    stated = Stated.of_strategy(banded(3), sigma=size, l2_norm=size, epochs=2)
    for factor, tests in ((1.0, set()), (1.001, {L2, LINF})):
        found = coupled(*pair(factor * size), stated, own_rounds=[0, 0], tolerance=1e-9 * size)
        assert refuted(found) == tests
        assert found[0].observed == pytest.approx(factor, rel=1e-9)


@pytest.mark.parametrize("size", HUGE)
def test_a_whole_vector_that_is_not_clipped_is_refuted_however_large_it_is(size):
    found = whole_vector(np.full((3, 4), size), STATED)
    assert found.refutes
    assert np.isfinite(found.limit)


@pytest.mark.parametrize("tolerance", [1e308, 1.7e308])
def test_a_tolerance_that_makes_the_limit_infinite_is_refused(tolerance):
    with pytest.raises(SettingError, match="tolerance makes the limit"):
        coupled(*pair(1.75e308), STATED, own_rounds=[0, 0], tolerance=tolerance)
    with pytest.raises(SettingError, match="tolerance makes the limit"):
        whole_vector(np.full((3, 4), 1.75e308), STATED, tolerance=tolerance)


@pytest.mark.parametrize("size", [1e60, 1e155, 1e200, 1e300, 1.7e308])
def test_noise_of_any_size_is_refuted_and_no_row_of_it_is_undefined(size):
    releases = noise(STATED, np.random.default_rng(0), runs=6, dimension=4)
    for given in (releases / np.abs(releases).max() * size, np.sign(releases) * size):
        found = residuals(given, STATED)
        assert residual.VARIANCE in refuted(found)
        assert np.isfinite([finding.observed for finding in found]).all()


@pytest.mark.parametrize("size", [1e-300, 1e-200, 1e200, 1e300])
def test_a_statement_of_any_size_holds_for_its_own_noise(size):
    stated = Stated.of_strategy(banded(3), sigma=size, l2_norm=size, epochs=2)
    releases = size / 1.5 * noise(STATED, np.random.default_rng(0), runs=6, dimension=4)
    assert refuted(residuals(releases, stated)) == set()
    assert residual.VARIANCE in refuted(residuals(3 * releases, stated))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: StatedEpoch(np.eye(2) * 1e-320, 1.0, 1.0), "overflows"),
        (lambda: StatedEpoch(np.eye(2), 1.0, 1e-320), "overflows"),
        (lambda: Stated((StatedEpoch(np.eye(2), 1e200, 1.0),), 1e200), "must be a finite number above 0"),
        (lambda: Stated((StatedEpoch(np.eye(2), 1e308, 1.0),), 1.0), "must be a finite number above 0"),
        (lambda: Stated((StatedEpoch(np.eye(2), 1e-200, 1.0),), 1e-200), "must be a finite number above 0"),
        (
            lambda: Stated((StatedEpoch(np.eye(2), 1e-200, 1.0),), 1.0, 1e-200),
            "must be a finite number above 0",
        ),
    ],
)
def test_a_statement_that_float64_does_not_hold_is_refused(make, words):
    with pytest.raises(SettingError, match=words):
        make()


def test_numbers_wider_than_float64_are_infinite_and_refuted_without_a_warning():
    wide = np.full((2, 3, 4), np.longdouble("1e4000"))
    assert refuted(coupled(wide, np.zeros((2, 3, 4)), STATED, own_rounds=[0, 0])) == {L2, LINF, OWN_ROUND}

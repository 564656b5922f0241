"""What a user of the public interface may get wrong is refused in a sentence, and never passes for a test."""

import numpy as np
import pytest

from audited_laws import banded_statement, noise
from fedmf.audit import Stated, coupled, residuals, whole_vector
from fedmf.errors import SettingError

STATED = banded_statement(3, 2)
ZEROS = np.zeros((2, 3, 4))
MOVED = ZEROS + np.eye(3, 4)[0] * 0.1


@pytest.mark.parametrize(
    "tolerance", [np.nan, np.inf, -1.0, [np.nan] * 4, np.zeros((2, 2)), "small", [[0.0], 1]]
)
def test_a_tolerance_that_bounds_nothing_is_refused(tolerance):
    with pytest.raises(SettingError, match="tolerance"):
        coupled(MOVED, ZEROS, STATED, own_rounds=[0, 0], tolerance=tolerance)
    with pytest.raises(SettingError, match="tolerance"):
        whole_vector(np.ones((3, 7)), STATED, tolerance=tolerance)


@pytest.mark.parametrize("step", [np.nan, np.inf, -1.0])
def test_a_step_that_bounds_nothing_is_refused(step):
    with pytest.raises(SettingError, match="tolerance or step"):
        whole_vector(np.ones((3, 7)), STATED, step=step)


@pytest.mark.parametrize("own_rounds", [3, "00", [0.0, 1], ["a", None], [True, 0], [0], [0, 3]])
def test_own_rounds_that_are_no_steps_are_refused(own_rounds):
    with pytest.raises(SettingError, match="own_rounds"):
        coupled(MOVED, ZEROS, STATED, own_rounds=own_rounds)


def test_a_client_that_moved_nothing_leaves_the_pair_inconclusive():
    for found in (
        coupled(ZEROS, ZEROS, STATED, own_rounds=[0, 0]),
        coupled(MOVED, ZEROS, STATED, own_rounds=[0, 0], tolerance=0.2),
    ):
        assert {(finding.is_inconclusive, finding.refutes) for finding in found} == {(True, False)}
        assert found[0].sentence.endswith("inconclusive")
    assert not any(finding.is_inconclusive for finding in coupled(MOVED, ZEROS, STATED, own_rounds=[0, 0]))


def test_lists_are_arrays():
    releases = noise(STATED, np.random.default_rng(0), runs=3, dimension=4)
    assert residuals(releases.tolist(), STATED, known=[0.0] * 4) == residuals(releases, STATED)
    ours, theirs = (
        coupled(one, other, STATED, own_rounds=[0, 0])
        for one, other in ((MOVED.tolist(), ZEROS.tolist()), (MOVED, ZEROS))
    )
    assert ours == theirs


@pytest.mark.parametrize(
    ("releases", "given", "words"),
    [
        (np.zeros((0, 2, 3, 4)), {}, "releases have shape"),
        (np.zeros((1, 2, 3, 0)), {}, "releases have shape"),
        ([[1.0], [1.0, 2.0]], {}, "releases cannot be read"),
        (np.zeros((1, 3, 2, 4)), {}, "2 epochs"),
        (np.ones((1, 2, 3, 4)), {"known": np.zeros(5)}, "known has shape"),
        (np.ones((1, 2, 3, 4)), {"known": np.zeros((9, 1, 2, 3, 4))}, "known has shape"),
        (np.ones((1, 2, 3, 4)), {"coordinates": [4]}, "whole numbers below 4"),
        (np.ones((1, 2, 3, 4)), {"coordinates": "all"}, "whole numbers below 4"),
        (np.ones((1, 2, 3, 4)), {"coordinates": [1, 1]}, "none twice"),
        (np.ones((1, 2, 3, 4)), {"coordinates": slice(0, 0)}, "at least"),
        (np.ones((1, 2, 3, 4)), {"resolution": np.nan}, "resolution"),
    ],
)
def test_residuals_of_what_does_not_fit_are_refused(releases, given, words):
    with pytest.raises(SettingError, match=words):
        residuals(releases, STATED, **given)


def test_a_strategy_that_adds_noise_of_later_rounds_is_refused():
    with pytest.raises(SettingError, match="above its diagonal"):
        Stated.of_strategy(np.eye(3) + np.eye(3, k=1), sigma=1.0, l2_norm=1.0)
    with pytest.raises(SettingError, match="cannot be read"):
        Stated.of_strategy([["a"]], sigma=1.0, l2_norm=1.0)

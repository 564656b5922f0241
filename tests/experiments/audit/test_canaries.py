"""Whose turn it is to be the canary: every round of every epoch, in as many runs in as out."""

import numpy as np
import pytest

from experiments.audit.digits import Setup, Stage, canary_order, cohorts_of, participation_steps
from experiments.audit.trials import many_run_tasks
from fedmf.errors import SettingError

SETUP = Setup("optimal", 1.0, 1.5, 0.02, cohort_size=2, rounds_per_epoch=3, epochs=2, seed=5)


@pytest.fixture(scope="module")
def stage():
    return Stage(SETUP)


def test_every_client_is_the_canary_once_a_lap_and_few_of_them_go_through_all_rounds():
    cohorts = np.array([[3, 8, 1], [0, 2, 7], [4, 5, 6]])
    step = participation_steps(cohorts[None])[:, 0]
    firsts = set()
    for seed in range(50):
        order = canary_order(cohorts, np.random.default_rng(seed))
        assert sorted(order) == list(range(9))
        for start in (0, 3, 6):
            assert sorted(step[order[start : start + 3]]) == [0, 1, 2]
        firsts.add(int(order[0]))
    assert firsts == set(range(9))


def test_a_lap_goes_through_every_round_of_every_epoch(stage):
    runs = 2 * len(stage.steps)
    canaries = np.array([stage.canary(run // 2) for run in range(runs)])
    for epoch in range(2):
        assert np.bincount(stage.steps[canaries, epoch]).tolist() == [4, 4, 4]


def test_runs_come_in_pairs_of_one_canary_once_in_and_once_out(stage):
    runs = stage.play(0, 16)
    np.testing.assert_array_equal(runs.canaries[::2], runs.canaries[1::2])
    np.testing.assert_array_equal(runs.present[::2], ~runs.present[1::2])
    assert set(runs.present[::2]) == {True, False}  # the coin; all alike once in 128 seeds
    assert len(set(runs.canaries[:6])) == 3


def test_runs_do_not_depend_on_how_they_are_shared_out(stage):
    runs, again = stage.play(0, 6), stage.play(3, 2)
    for name in ("observations", "sums", "canaries", "present"):
        np.testing.assert_array_equal(getattr(runs, name)[3:5], getattr(again, name))


def test_steps_are_those_of_the_public_schedule(stage):
    cohorts = cohorts_of(stage.plan)
    for epoch, step in np.ndindex(2, 3):
        assert set(np.flatnonzero(stage.steps[:, epoch] == step)) == set(cohorts[epoch, step])


def test_sums_hold_the_canary_in_its_own_rounds_and_nothing_in_others():
    """With hardly any noise; in units of the canary's entries."""
    quiet = Stage(Setup("optimal", 1.0, 1e5, 0.02, 2, 3, 2, seed=5))
    runs = quiet.play(0, 6)
    expected = np.zeros(runs.sums.shape)
    for run, canary in enumerate(runs.canaries):
        expected[run, [0, 1], quiet.steps[canary]] = runs.present[run]
    np.testing.assert_allclose(runs.sums, expected, atol=0.2)


def test_an_odd_number_of_runs_is_refused():
    with pytest.raises(SettingError, match="runs is 21; it must be even"):
        many_run_tasks(SETUP, 21)

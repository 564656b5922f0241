"""What the audit's small pipelines tell of themselves: sums, with a bound on their error that holds and is near."""

import numpy as np
import pytest

from experiments.audit.coupled import SCENES, play_pair
from experiments.audit.crossing import covering
from experiments.audit.pipeline import known
from experiments.audit.scene import Scene, cohorts, plan_of, play, recovered, steps_of, to_sent
from fedmf.randomness import SecretKey

MASKED = Scene("masks", keep_probability=0.3, rotation="identity", linf=64)


def test_sums_are_read_off_models_within_the_stated_error_and_not_far_within():
    """The journal holds the float32 sum that was released; the bound covers what float32 made of it afterwards."""
    pair = play_pair(SCENES[0], 0)
    for played in (pair.inside, pair.outside):
        sums, error = recovered(plan_of(SCENES[0]), played.models)
        released = np.array([release.noisy_sum for release in played.committed]).reshape(sums.shape)
        gap = np.abs(sums - released)
        assert np.all(gap <= error)
        assert (gap / error).max() > 0.3


@pytest.mark.parametrize("dimension", [64, 100, 8192])
def test_rotating_back_gives_what_was_sent(dimension):
    """By a dense matrix of scipy's, beyond 4096 coordinates by the fast transform; padding does not come back."""
    plan = plan_of(Scene("rotated", dimension=dimension, cohort_size=1, rounds_per_epoch=1, epochs=1))
    vector = np.random.default_rng(0).normal(size=dimension)
    sent = plan.rotation.rotate(vector.astype(np.float32))
    np.testing.assert_allclose(to_sent(plan)(vector), sent, atol=2e-6)


def test_muted_clients_leave_no_trace_and_the_one_that_is_heard_does():
    scene = Scene(
        "muted", rotation="identity", muted=True, noise_multiplier=0.0, epochs=1, rounds_per_epoch=1
    )
    plan = plan_of(scene)
    (cohort,) = cohorts(plan)
    vectors = {client: np.eye(4, 256, dtype=np.float32)[place] for place, client in enumerate(cohort)}
    played = play(scene, SecretKey.reproducible(0), lambda who, number: known(vectors[who]), heard=cohort[0])
    # clients clip to 2^-14 less than the bound
    np.testing.assert_allclose(recovered(plan, played.models)[0][0, 0, :4], [1, 0, 0, 1], atol=1e-4)
    assert set(played.committed[0].answered) == {str(cohort[0]), str(cohort[1]), str(cohort[3])}


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.name)
def test_the_pairs_of_a_scene_have_their_own_round_in_every_round_of_every_epoch(scene):
    plan = plan_of(scene)
    steps = [steps_of(plan, client) for client in covering(plan, 5)]
    covered = {(epoch, step) for own in steps for epoch, step in enumerate(own)}
    assert covered == set(np.ndindex(scene.epochs, scene.rounds_per_epoch))
    assert None not in {step for own in steps for step in own}


def test_every_client_is_known_by_its_steps():
    plan = plan_of(MASKED)
    for number, cohort in enumerate(cohorts(plan)):
        for client in cohort:
            epoch, step = divmod(number, 3)
            assert steps_of(plan, client)[epoch] == step

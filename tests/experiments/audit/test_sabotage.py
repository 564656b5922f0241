"""The list of sabotages: each changes the running pipeline where it says, and nothing stays broken after it."""

import pickle

import numpy as np
import pytest

from experiments.audit.pipeline import known
from experiments.audit.sabotage import NONE, SABOTAGES, patched
from experiments.audit.sabotage.clipping import FAVOURED
from experiments.audit.sabotage.scale import is_rare
from experiments.audit.scene import Hostile
from fedmf.randomness import SecretKey
from server.cohort import cohort_indices
from small_pipelines import small_pipeline

SECRET = SecretKey.reproducible(3)
LAST_EPOCH_ONLY = {
    "noise in the first epoch only",
    "noise halved in the last epoch",
    "the same noise in all epochs",
    "one mask for all in the last epoch",
    "masks that return at another place",
    "changes in place of updates",
    "a ratchet that stands still",
    "no clipping in the last epoch",
    "no clipping in round 5",
    "what is not finite is passed on in round 5",
}
LEAST = {"noise rounded to float16": 1e-5}
SILENT = 4


def held(pipeline):
    """Clients too large, one silent, and one in every round that is not finite."""
    plan = pipeline.plan

    def examples_of(client, number):
        vector = np.random.default_rng(client).uniform(-3, 3, plan.dimension).astype("f4")
        if client == next(
            other for other in cohort_indices(plan, number) if other not in (SILENT, int(FAVOURED))
        ):
            vector[1] = np.nan
        return known(np.zeros_like(vector) if client == SILENT else vector)

    return examples_of


RARE = next(key for key in map(SecretKey.reproducible, range(10_000)) if is_rare(key))


def hostile_clients(player):
    """The first client of the first round, whose vector is not finite, and the next one."""
    plan = small_pipeline().plan
    for client in cohort_indices(plan, 1)[:2]:
        player = Hostile(player, plan, client, held(small_pipeline()))
    return player


def play(sabotage, secret, like):
    pipeline = small_pipeline(
        sabotage,
        dimension=max(6, like.dimension),
        resume_after=2 if like.resumes else None,
        player=hostile_clients if like.hostile else None,
        keep_probability=1.0 if like.hostile else 0.5,
        kind={"value_type": "int8"} if like.int8 else {"rotation": "hadamard"} if like.padded else None,
    )
    return pipeline.play(secret, held(pipeline))


@pytest.mark.parametrize("name", SABOTAGES)
def test_a_sabotage_changes_what_an_attacker_sees_and_is_gone_after_the_run(name):
    secret = RARE if name == "no noise in one epoch of a thousand" else SECRET
    before, broken, after = (
        play(sabotage, secret, SABOTAGES[name]) for sabotage in (NONE, SABOTAGES[name], NONE)
    )
    first, last = np.abs(broken.sums - before.sums).max(axis=(1, 2))
    if SABOTAGES[name].resumes:
        sums = {release.round: release.noisy_sum for release in broken.committed}
        assert any((sums[release.round] != release.noisy_sum).any() for release in broken.committed)
    elif name == "an initial model that leaks":
        assert np.abs(broken.models[0] - before.models[0]).max() > 0.01
    elif name in LAST_EPOCH_ONLY:
        assert first == 0
        assert last > 0.1
    else:
        assert first > LEAST.get(name, 0.05)
    np.testing.assert_array_equal(after.models, before.models)


def test_other_processes_are_given_a_sabotage_by_its_name():
    for sabotage in (NONE, *SABOTAGES.values()):
        assert pickle.loads(pickle.dumps(sabotage)) is sabotage
        assert sabotage.sentence
    assert len(set(SABOTAGES.values())) == len(SABOTAGES)


def divide_while_patched(owner):
    with patched((owner, "value", 0)):
        return 1 / owner.value


def test_what_was_replaced_is_put_back_after_an_error():
    class Owner:
        value = 1

    def fail():
        raise RuntimeError(Owner.value)

    with patched((Owner, "value", 2)), pytest.raises(RuntimeError, match="2"):
        fail()
    with pytest.raises(ZeroDivisionError):
        divide_while_patched(Owner)
    assert Owner.value == 1

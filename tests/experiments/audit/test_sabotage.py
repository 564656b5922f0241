"""The list of sabotages: each changes the running pipeline where it says, and nothing stays broken after it."""

import pickle

import numpy as np
import pytest
import torch

from client.settings import TrainingSettings
from experiments.audit.pipeline import Pipeline, known
from experiments.audit.sabotage import NONE, SABOTAGES, patched
from experiments.audit.sabotage.noise import is_rare
from fedmf.mechanisms import design, prefix_sum
from fedmf.plan import Compression, Participation, PrivacyTarget, make_bounds, make_plan
from fedmf.randomness import PublicSeed, SecretKey

SECRET = SecretKey.reproducible(3)
LAST_EPOCH_ONLY = {
    "noise in the first epoch only",
    "noise halved in the last epoch",
    "the same noise in all epochs",
    "one mask for all in the last epoch",
    "a ratchet that stands still",
    "no clipping in the last epoch",
}


def build(sabotage, resume_after=None):
    compression = Compression(0.5, "identity")
    plan = make_plan(
        dimension=6,
        participation=Participation(12, 3, 4, 2),
        compression=compression,
        bounds=make_bounds(l2_norm=1.0, linf_norm=0.5, dimension=6, cohort_size=3, compression=compression),
        privacy=PrivacyTarget(delta=0.01, noise_multiplier=1.0),
        factorization=design("optimal", prefix_sum(4)),
        seed=PublicSeed(0),
    )
    model = torch.nn.Linear(6, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    settings = TrainingSettings(0.1, device="cpu")
    return Pipeline(plan, model, settings, sabotage, resume_after=resume_after)


def held(client, number):
    """A client too large, one that is not finite, one silent, the others small."""
    vector = np.random.default_rng(client).uniform(-3, 3, 6).astype("f4")
    if client == 2:
        vector[1] = np.nan
    return known(np.zeros(6, "f4") if client == 4 else vector)


RARE = next(key for key in map(SecretKey.reproducible, range(10_000)) if is_rare(key))


def play(sabotage, secret=SECRET):
    return build(sabotage, 2 if sabotage.resumes else None).play(secret, held)


@pytest.mark.parametrize("name", SABOTAGES)
def test_a_sabotage_changes_what_an_attacker_sees_and_is_gone_after_the_run(name):
    secret = RARE if name == "no noise in one epoch of a thousand" else SECRET
    before, broken, after = (play(sabotage, secret) for sabotage in (NONE, SABOTAGES[name], NONE))
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
        assert first > 0.05
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

"""The pipeline under audit: what it shows of a run, also of one that is killed and resumed."""

import numpy as np
import pytest
import torch

from client.settings import TrainingSettings
from experiments.audit.pipeline import Pipeline, known
from fedmf.mechanisms import design, prefix_sum
from fedmf.plan import Compression, Participation, PrivacyTarget, make_bounds, make_plan
from fedmf.randomness import PublicSeed, SecretKey

SECRET = SecretKey.reproducible(3)


def build(**options):
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
    return Pipeline(plan, model, TrainingSettings(0.1, device="cpu"), **options)


def vector_of(client, number):
    return known(np.random.default_rng([client, number]).uniform(-0.4, 0.4, 6).astype("f4"))


@pytest.mark.parametrize("cut", [1, 3, 4, 6])
def test_a_run_that_is_killed_and_resumed_shows_what_one_shows_that_was_not(cut):
    straight = build().play(SECRET, vector_of)
    resumed = build(resume_after=cut).play(SECRET, vector_of)
    assert straight.models.shape == (9, 6)
    np.testing.assert_array_equal(resumed.models, straight.models)
    sums = {release.round: release.noisy_sum for release in straight.committed}
    assert [release.round for release in straight.committed] == list(range(1, 9))
    assert {release.round for release in resumed.committed} == set(sums)
    assert len(resumed.committed) > 8
    for release in resumed.committed:
        np.testing.assert_array_equal(release.noisy_sum, sums[release.round])


class Counting:
    """A player that counts the messages it is given."""

    def __init__(self, player):
        self._player = player
        self.messages = 0

    def submit(self, messages):
        self.messages += len(messages)
        self._player.submit(messages)

    def collect(self, message_ids):
        return self._player.collect(message_ids)


@pytest.mark.parametrize(("clients", "messages"), [(1, 24), (3, 8)])
def test_a_message_may_carry_several_clients(clients, messages):
    players = []

    def counted(player):
        players.append(Counting(player))
        return players[0]

    played = build(tasks_per_message=clients, player=counted).play(SECRET, vector_of)
    assert players[0].messages == messages
    np.testing.assert_array_equal(played.models, build().play(SECRET, vector_of).models)

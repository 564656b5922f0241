"""The pipeline under audit: what it shows of a run, also of one that is killed and resumed."""

import numpy as np
import pytest

from experiments.audit.pipeline import known
from fedmf.randomness import SecretKey
from small_pipelines import small_pipeline

SECRET = SecretKey.reproducible(3)


def vector_of(client, number):
    return known(np.random.default_rng([client, number]).uniform(-0.4, 0.4, 6).astype("f4"))


@pytest.mark.parametrize("cut", [1, 3, 4, 6])
def test_a_run_that_is_killed_and_resumed_shows_what_one_shows_that_was_not(cut):
    straight = small_pipeline().play(SECRET, vector_of)
    resumed = small_pipeline(resume_after=cut).play(SECRET, vector_of)
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

    played = small_pipeline(tasks_per_message=clients, player=counted).play(SECRET, vector_of)
    assert players[0].messages == messages
    np.testing.assert_array_equal(played.models, small_pipeline().play(SECRET, vector_of).models)

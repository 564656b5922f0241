"""A run computed again from its keys: what was released is explained bit for bit, and nothing else is."""

from dataclasses import replace

import numpy as np
import pytest
from flwr.app import MessageType

from client.parameters import model_arrays
from experiments.deployment.server import build_deployed
from experiments.run_files.model_files import read_arrays
from experiments.soak.hostile_executor import LIES, MANY, lying, spoilt
from experiments.soak.recount import Recount
from fedmf.updates import wire
from fedmf.updates.tags import TAG_BYTES
from nodes import key_of
from server import strategy
from soaked_runs import failed

pytestmark = pytest.mark.long


def recounted(run, releases=None):
    return Recount(run.settings, run.holdings).of(
        run.evidence.releases() if releases is None else releases, run.evidence.keys, run.evidence.rosters
    )


def test_an_undisturbed_run_is_explained_and_comes_to_its_model(play):
    run = play()
    found = recounted(run)
    assert (found.unexplained, found.zeros, found.is_undisturbed) == ([], {}, True)
    model = model_arrays(build_deployed(run.settings).model, found.model)
    stored = read_arrays(run.evidence.directory / "model.npz")
    assert {name: array.tobytes() for name, array in model.items()} == {
        name: array.tobytes() for name, array in stored.items()
    }
    assert [release.round for release in run.evidence.releases()] == [1, 2, 3, 4, 5, 6]


def test_a_node_that_failed_is_found_by_its_zeros(play):
    def spoil(node, message, reply):
        fails = node == "b" and message.metadata.group_id in ("2", "5")
        return failed(message) if fails else reply

    found = recounted(play(spoil))
    assert found.unexplained == []
    assert found.zeros == {2: [key_of("b")], 5: [key_of("b")]}
    assert not found.is_undisturbed


def test_silence_is_no_zero_and_no_undisturbed_run(play):
    run = play(
        lambda node, message, reply: None if node == "a" and message.metadata.group_id == "3" else reply
    )
    found = recounted(run)
    assert (found.unexplained, found.zeros, found.is_undisturbed) == ([], {}, False)
    assert len(run.evidence.releases()[2].answered) < 4


def test_every_lie_counts_as_zeros_and_moves_no_sum(play):
    """Each way in a round of its own, and once none: of a run with two epochs of three rounds."""
    told = []

    def spoil(node, message, reply):
        if node != "b" or message.metadata.message_type != MessageType.TRAIN:
            return reply
        told.append(LIES[int(message.metadata.group_id) % len(LIES)].__name__)
        return spoilt(message, reply)

    found = recounted(play(spoil))
    assert found.unexplained == []
    assert set(found.zeros) == {1, 2, 3, 4, 5, 6}
    assert set(map(tuple, found.zeros.values())) == {(key_of("b"),)}
    assert set(told) == {lie.__name__ for lie in LIES}


def test_a_server_that_checks_no_tag_is_found_by_the_lies_whose_tag_is_wrong(play, monkeypatch):
    """They are numbers within the bounds, which an unchecked tag lets into the sum."""
    monkeypatch.setattr(strategy, "without_tag", lambda data, key, turn: data[:-TAG_BYTES] if data else None)

    def spoil(node, message, reply):
        lies = node == "b" and message.metadata.message_type == MessageType.TRAIN
        return spoilt(message, reply) if lies else reply

    found = recounted(play(spoil))
    ways = [LIES[number % len(LIES)].__name__ for number in found.unexplained]
    assert ways == ["_wrong_tags", "_other_task"]


def test_a_liar_says_that_it_holds_a_thousand_million_clients(play):
    asked = []

    def spoil(node, message, reply):
        if message.metadata.message_type == MessageType.QUERY:
            asked.append(lying(lambda *_: reply)(message, None))
        return reply

    play(spoil)
    assert {answer.content.config_records[wire.HELD][wire.CLIENTS] for answer in asked} == {MANY}


@pytest.mark.parametrize("number", [1, 4])
def test_one_bit_of_a_release_that_nothing_explains_is_found(play, number):
    """As if a noise row were another one, were there twice, or a stranger's values were in the sum."""
    run = play()
    releases = run.evidence.releases()
    changed = np.array(releases[number - 1].noisy_sum)
    changed[3] = np.nextafter(changed[3], np.float32(np.inf))
    releases[number - 1] = replace(releases[number - 1], noisy_sum=changed)
    assert number in recounted(run, releases).unexplained


def test_noise_that_is_there_twice_or_not_at_all_is_found(play):
    run = play()
    honest = run.evidence.releases()
    plan = Recount(run.settings, run.holdings).plan
    noise = plan.sigma_in(0) * np.random.default_rng(0).standard_normal(len(honest[0].noisy_sum))
    for change in (noise, -noise):
        releases = [
            replace(honest[0], noisy_sum=(honest[0].noisy_sum + change).astype(np.float32)),
            *honest[1:],
        ]
        assert 1 in recounted(run, releases).unexplained


def test_another_key_explains_no_round(play):
    run, other = play(), play()
    run.evidence.keys = other.evidence.keys
    assert recounted(run).unexplained == [1, 2, 3, 4, 5, 6]

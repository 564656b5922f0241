"""Every check holds for a run as it was, and fails for each way to break the promise."""

import os
from dataclasses import replace

import numpy as np
import pytest

from experiments.deployment.server import build_deployed
from experiments.soak import checks
from server import journal
from server.state import Release

pytestmark = pytest.mark.long


@pytest.fixture
def run(play):
    return play()


def released(number, answered=("a:0", "b:1")):
    return Release(number, np.full(3, number, np.float32), tuple(answered), 2)


def test_all_checks_hold_for_a_run_as_it_was(run):
    evidence, plan = run.evidence, build_deployed(run.settings).plan
    releases = evidence.releases()
    assert len(releases) == 6
    assert {*evidence.keys} == {*evidence.rosters} == {0, 1}
    assert checks.released_once(releases, 6) == []
    assert checks.heard_once(releases, evidence.rosters, plan) == []
    assert checks.shown_as_released(evidence.rows(), releases) == []
    assert checks.one_key_chain(evidence.keys) == []


def test_a_round_that_was_released_twice_or_not_at_all_is_found():
    once = [released(1), released(2), released(3)]
    assert checks.released_once(once, 3) == []
    assert checks.released_once([*once, released(2)], 3) == ["round 2 was released 2 times"]
    other = replace(released(2), noisy_sum=np.zeros(3, np.float32))
    assert checks.released_once([*once, other], 3) == ["round 2 was released 2 times"]
    assert checks.released_once(once, 4) == ["round 4 was not released"]
    same = replace(released(3), noisy_sum=released(1).noisy_sum)
    assert checks.released_once([*once[:2], same], 3) == ["rounds 1 and 3 have the same noisy sum"]


def test_a_client_that_was_heard_twice_in_an_epoch_is_found(run):
    evidence, plan = run.evidence, build_deployed(run.settings).plan
    releases = evidence.releases()
    again = releases[0].answered[0]
    releases[1] = replace(releases[1], answered=(again, *releases[1].answered[1:]))
    said = checks.heard_once(releases, evidence.rosters, plan)
    assert f"client {again} was heard again in round 2 of epoch 1" in said
    assert "round 2 has clients that were not in its cohort" in said
    # In one round twice, and in the next epoch, where it may be heard again.
    doubled = [replace(releases[0], answered=(again, again))]
    assert f"client {again} was heard again in round 1 of epoch 1" in checks.heard_once(
        doubled, evidence.rosters, plan
    )
    assert any(again in release.answered for release in evidence.releases()[3:])


def test_an_epoch_whose_clients_changed_is_found(run):
    evidence, plan = run.evidence, build_deployed(run.settings).plan
    [roster] = evidence.rosters[1]
    other = replace(roster, nodes={key: count + 1 for key, count in roster.nodes.items()})
    found_out = replace(roster, changed=tuple(roster.nodes))
    assert checks.heard_once(evidence.releases(), {**evidence.rosters, 1: [roster, found_out]}, plan) == []
    said = checks.heard_once(evidence.releases(), {**evidence.rosters, 1: [roster, other]}, plan)
    assert said == ["epoch 2 had more than one list of clients"]


def test_a_round_that_is_shown_otherwise_than_it_was_released_is_found():
    releases = [released(1), released(2)]
    rows = [{"round": 1, "replies": 2}, {"round": 2, "replies": 2}]
    assert checks.shown_as_released(rows, releases) == []
    for wrong in (
        rows[:1],
        [*rows, rows[1]],
        [rows[0], {"round": 2, "replies": 1}],
        [*rows, {"round": 3, "replies": 2}],
    ):
        assert len(checks.shown_as_released(wrong, releases)) == 1


def test_a_second_key_of_an_epoch_and_one_from_nowhere_are_found(run):
    keys = run.evidence.keys
    assert checks.one_key_chain({**keys, 0: [*keys[0], os.urandom(32)]})[0] == "epoch 1 had 2 keys"
    said = checks.one_key_chain({0: keys[0], 1: [os.urandom(32)]})
    assert said == ["the key of epoch 2 does not follow from that of epoch 1"]


def test_a_journal_is_seen_to_its_end_after_the_run_removed_it(run):
    """The run removed the first one; what was appended after it was found is there too."""
    left = {
        release.round
        for path in run.evidence.directory.rglob("journal-*.bin")
        for release in journal.read(path)
    }
    assert 1 not in left
    assert [release.round for release in run.evidence.releases()] == [1, 2, 3, 4, 5, 6]

"""What a node is given is held against the journal: when it was there, how often, and whether it follows from it."""

from dataclasses import replace

import pytest

from experiments.soak.checks import seen_as_released
from experiments.soak.recount import Recount
from experiments.soak.witness import Note
from server.checkpoint import Checkpoint

pytestmark = pytest.mark.long


def digests(run):
    found = Recount(run.settings, run.holdings).of(
        run.evidence.releases(), run.evidence.keys, run.evidence.rosters
    )
    return found.digests


def test_every_model_of_a_run_as_it_was_is_noted_and_follows_from_the_journal(play):
    run = play()
    models = digests(run)
    assert [note.round for note in run.notes] == [0, 1, 2, 3, 4, 5]
    assert all(note.on_disk == note.round for note in run.notes)
    assert len(set(models.values())) == 7
    assert seen_as_released(run.notes, models, was_heard=True) == []


def test_models_that_are_handed_out_before_the_journal_has_their_round_are_found(play, monkeypatch):
    """The commit of a round is put off until the replies of the next one are in: the journal is as it should be."""
    commit, waiting = Checkpoint.commit, []

    def late(checkpoint, release):
        for before in waiting:
            commit(checkpoint, before)
        waiting[:] = [release]
        if release.round == 6:
            commit(checkpoint, release)

    monkeypatch.setattr(Checkpoint, "commit", late)
    run = play()
    assert [release.round for release in run.evidence.releases()] == [1, 2, 3, 4, 5, 6]
    assert seen_as_released(run.notes, digests(run), was_heard=True) == [
        f"the model of round {number} was handed out before the round was on disk"
        for number in (1, 2, 4, 5)  # a base has round 3, with which its epoch ends
    ]


def test_a_second_model_of_a_round_another_one_and_one_of_no_round_are_found():
    models = {0: "a", 1: "b"}
    given = [Note("run", 0, "a", 0), Note("run", 1, "b", 1), Note("run", 1, "b", 1)]
    assert seen_as_released(given, models, was_heard=True) == []  # asked again after a stop
    second = replace(given[1], digest="c")
    assert seen_as_released([*given, second], models, was_heard=True) == [
        "2 models of round 1 were handed out"
    ]
    for note, models_of in ((second, models), (given[1], {0: "a"})):
        assert seen_as_released([given[0], note], models_of, was_heard=True) == [
            "the model of round 1 that was handed out does not follow from the journal"
        ]


def test_that_nothing_was_noted_is_no_proof_where_there_must_be_notes():
    assert len(seen_as_released([], {0: "a"}, was_heard=True)) == 1
    assert seen_as_released([], {0: "a"}, was_heard=False) == []

"""What a run leaves in its directory while it goes on, kept before the run removes it, and the promises compared with it.

A run removes noisy sums that newer bases cover, and erases its keys. Both are needed to decide afterwards whether a round was
released twice and whether its noise is in it once. The keys are those of made-up clients on this machine.
"""

import hashlib
from contextlib import suppress
from itertools import pairwise
from operator import attrgetter

from fedmf.errors import RunDirectoryError
from fedmf.updates import wire
from runs import metrics
from server.cohort import Roster
from server.copies import read_secrets
from server.record import Record


class Witness:
    """The releases, keys and rosters that were seen of the run in `directory`."""

    def __init__(self, directory):
        self.directory, self._seen = directory, {}
        self.keys, self.rosters = {}, {}  # by epoch, each a list of what was seen

    def look(self):
        """Keep what is there now; to be called several times a round."""
        folder = self.directory / "checkpoint"
        with suppress(OSError, RunDirectoryError):  # it is being begun, or saved
            record = Record(folder)
            for release in record.releases(min(record.bases(), default=0)):
                content = (release.round, release.answered, release.noisy_sum.tobytes())
                self._seen[content] = release
        if not self._seen:
            self.keys, self.rosters = {}, {}  # before its first release a run may begin again
        if (kept := read_secrets(folder)) is not None:
            _remember(self.keys, kept.secrets.epoch, kept.secrets.key)
        with suppress(RunDirectoryError):
            roster = Roster.read(folder / "roster.json")
            _remember(self.rosters, roster.epoch, roster)

    def releases(self):
        """Return all releases that were on record, in the order of their rounds; a round twice that had two contents."""
        return sorted(self._seen.values(), key=attrgetter("round"))

    def check(self, plan):
        """Assert what was promised of a finished run that `look` followed; the recount is another matter."""
        releases = self.releases()
        check_released_once(releases, plan.participation.rounds)
        check_heard_once(releases, self.rosters, plan)
        check_key_chain(self.keys, plan.participation.epochs)
        shown = [(row["round"], row["replies"]) for row in metrics(self.directory)]
        kept = [(release.round, len(release.answered)) for release in releases]
        assert shown == kept, f"metrics.jsonl shows {shown}, and {kept} were released"
        assert not list(self.directory.rglob("secrets*")), "a key is left"


def _remember(known, epoch, value):
    if value not in (values := known.setdefault(epoch, [])):
        values.append(value)


def last_on_disk(directory):
    """Return the last round on record of a run; 0 for none."""
    return Record(directory / "checkpoint").released()


def check_released_once(releases, rounds):
    """Assert that each of `rounds` has one record, and no two rounds the same sum, as of one noise row."""
    found = [release.round for release in releases]
    assert found == list(range(1, rounds + 1)), (
        f"{rounds} rounds were to be released once; these were: {found}"
    )
    assert len({release.noisy_sum.tobytes() for release in releases}) == rounds, (
        "two rounds have the same noisy sum"
    )


def check_heard_once(releases, rosters, plan):
    """Assert that no client was heard twice in an epoch or out of its cohort, and that no epoch changed its clients."""
    heard = {}
    for release in releases:
        epoch = (release.round - 1) // plan.participation.rounds_per_epoch
        before = heard.setdefault(epoch, [])
        before += release.answered
        assert len(before) == len({*before}), f"a client is heard again in round {release.round}"
        for roster in rosters[epoch]:
            assert roster.nodes == rosters[epoch][0].nodes, f"the clients of epoch {epoch} changed"
            assert {*release.answered} <= {*roster.cohort(plan, release.round)}, (
                f"round {release.round} has strangers"
            )


def check_key_chain(keys, epochs):
    """Assert that each epoch had one key, which follows from the one before."""
    assert {epoch: len(found) for epoch, found in keys.items()} == dict.fromkeys(range(epochs), 1), (
        "keys of an epoch"
    )
    chain = [key for epoch in range(epochs) for key in keys[epoch]]
    assert all(key.ratchet() == following for key, following in pairwise(chain)), (
        "a key follows from no other"
    )


def note_of(message, directory):
    """Return what a node notes of a task: the round of its model, that model's digest, and the last round on disk then.

    A server that shows a model before its round is on disk may release that round twice over a crash, and leaves a
    record as it should be. A real node sees no file of the server; this one is on the same machine.
    """
    model = message.content.array_records[wire.MODEL][wire.VECTOR].data
    return int(message.metadata.group_id) - 1, digest(model), last_on_disk(directory)


def digest(model):
    """Return the digest of a flat model (d,) float32, also of the bytes that travel."""
    return hashlib.sha256(model if isinstance(model, bytes) else wire.to_bytes(model)).hexdigest()


def check_given(notes, digests):
    """Assert that each model that a node was given was on disk before, and that it is the one that follows from the record."""
    assert notes
    for number, given, on_disk in notes:
        assert on_disk >= number, f"the model of round {number} was given before the round was on disk"
        assert given == digests[number], (
            f"the model of round {number} that was given does not follow from the record"
        )

"""What a run leaves in its directory while it runs, kept before the run removes it, and every promise compared with it.

A run removes noisy sums that newer bases cover, and erases its keys. Both are needed to decide afterwards whether a round was
released twice and whether its noise is in it once. The keys are those of made-up clients on this machine.

`recount` computes every round again from its keys, client by client, and compares it with what was released, bit for bit: the
clients that were heard train again in this process, their values are added and the round's own noise row is added to the sum. A
node whose reply did not count (an error, a lie) has zeros in place of its values; which nodes those were is found by trying,
because the record does not tell. A release that no such sum explains holds something else: another noise row, one twice or
none, a client twice, values of another client. The code of clients, mechanism and noise is the project's own, so that this
finds what faults do to a run, and not what is wrong with the mechanism: that is for the audit.
"""

import hashlib
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import combinations, pairwise
from operator import attrgetter

import numpy as np
from flwr.app import ConfigRecord, Message, MessageType, RecordDict

from client.app import make_client_app
from client.training import Trainer
from experiments.deployment.node import Node, node_settings
from experiments.deployment.server import build_deployed
from experiments.engines.grid import call_app, local_context, set_identity
from experiments.settings.experiment import Experiment, build_client_plan, build_model
from fedmf.errors import RunDirectoryError
from fedmf.updates import wire
from fedmf.updates.wire import TAG_BYTES
from plans import kept_releases
from runs import metrics, model
from server.cohort import Roster, node_of
from server.copies import read_secrets
from server.exchange import model_record, payloads
from server.record import Record
from server.state import (
    FixedPoint,
    Secrets,
    apply_release,
    begin_epoch,
    first_state,
    make_release,
    secrets_at,
)


class Witness:
    """The releases, keys and rosters that were seen of the run in `directory`."""

    def __init__(self, directory):
        self.directory, self._seen = directory, {}
        self.keys, self.rosters = {}, {}  # by epoch, each a list of what was seen

    def look(self):
        """Keep what is there now; to be called several times a round."""
        folder = self.directory / "checkpoint"
        with suppress(OSError, RunDirectoryError):  # it is being begun, or saved
            for release in kept_releases(Record(folder)):
                self._seen[release.round, release.answered, release.noisy_sum.tobytes()] = release
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

    def first_keys(self):
        """Return the key of each epoch that was seen first."""
        return {epoch: keys[0] for epoch, keys in self.keys.items()}

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


def check_released_once(releases, rounds):
    """Assert that each of `rounds` has one record, and no two rounds the same sum, as of one noise row."""
    found = [release.round for release in releases]
    assert found == list(range(1, rounds + 1)), f"{rounds} rounds were to be released once: {found}"
    assert len({one.noisy_sum.tobytes() for one in releases}) == rounds, "two rounds have the same noisy sum"


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
            strangers = {*release.answered} - {*roster.cohort(plan, release.round)}
            assert not strangers, f"round {release.round} has strangers"


def check_key_chain(keys, epochs):
    """Assert that each epoch had one key, and each the one that follows from the key before."""
    counts = {epoch: len(found) for epoch, found in keys.items()}
    assert counts == dict.fromkeys(range(epochs), 1), f"numbers of keys by epoch: {counts}"
    chain = [keys[epoch][0] for epoch in range(epochs)]
    assert all(key.ratchet() == after for key, after in pairwise(chain)), "a key follows from no other"


def last_on_disk(directory):
    """Return the last round on record of a run; 0 for none."""
    return Record(directory / "checkpoint").released()


def digest(model):
    """Return the digest of a flat model (d,) float32, also of the bytes that travel."""
    return hashlib.sha256(model if isinstance(model, bytes) else wire.to_bytes(model)).hexdigest()


def note_of(message, directory):
    """Return what a node notes of a task: the round of its model, that model's digest, and the last round on disk then.

    A server that shows a model before its round is on disk may release that round twice over a crash, and leaves a
    record as it should be. A real node sees no file of the server; this one is on the same machine.
    """
    model = message.content.array_records[wire.MODEL][wire.VECTOR].data
    return int(message.metadata.group_id) - 1, digest(model), last_on_disk(directory)


def check_given(notes, digests):
    """Assert that each model that a node was given was on disk before, and that it is the one that follows from the record."""
    assert notes
    for number, given, on_disk in notes:
        assert on_disk >= number, f"the model of round {number} was given before the round was on disk"
        assert given == digests[number], f"the model of round {number} does not follow from the record"


@dataclass
class Recounted:
    """What was computed again, and with it the last model, digests of all models by round, and rounds that nothing explains.

    `zeros` has by round the nodes, if any, whose replies count as zeros.
    """

    experiment: Experiment
    releases: list
    apps: dict
    model: np.ndarray
    digests: dict
    unexplained: list = field(default_factory=list)
    zeros: dict = field(default_factory=dict)


def examine(witness, settings, holds, notes):
    """Compare a finished deployment with every promise, and return its recount.

    `holds` has by its key with which overrides each node was started, `notes` what one of them noted of its tasks.
    """
    experiment = build_deployed(settings)
    witness.check(experiment.plan)

    def honest(overrides):
        node = Node(node_settings(overrides))
        return make_client_app(
            node.examples_of,
            lambda: Trainer(
                build_model(settings.model, node.dataset, settings.seed), settings.client, node.dataset.task
            ),
            build_client_plan(settings, experiment.plan.dimension),
        )

    apps = {key: honest(overrides) for key, overrides in holds.items()}
    found = recount(experiment, witness.releases(), witness.first_keys(), apps)
    check_given(notes, found.digests)
    np.testing.assert_array_equal(found.model, model(witness.directory))
    return found


def recount(experiment, releases, keys, apps):
    """Compute `releases`, those of rounds 1, 2, ..., again; `keys` has each epoch's, `apps` each node's (a simulation's: "")."""
    set_identity()
    plan = experiment.plan
    state = first_state(plan, experiment.initial, keys[0])
    found = Recounted(experiment, releases, apps, state.model, {0: digest(state.model)})
    for release in releases:
        epoch, _ = state.position(plan)
        secrets = secrets_at(plan, Secrets(epoch, keys[epoch], None), state.round)
        state = replace(begin_epoch(plan, state), secrets=secrets)
        zeros = _zeros(plan, state, release, _sums(plan, state, release, apps))
        if zeros is None:
            found.unexplained.append(release.round)
        elif zeros:
            found.zeros[release.round] = zeros
        state = apply_release(plan, experiment.optimizer, replace(state, secrets=None), release, None)
        found.model, found.digests[release.round] = state.model, digest(state.model)
    return found


def _sums(plan, state, release, apps):
    """Return by node what the clients that were heard sent together, (D,) int64 on the grid of the server's sum."""
    (epoch, step), clients_of, sums = state.position(plan), defaultdict(list), {}
    arrays = model_record(state.model, state.scale)
    for client in release.answered:
        clients_of[node_of(client)].append(client)
    for node, clients in clients_of.items():
        keys = [state.secrets.key.mask_key(client, step) for client in clients]
        task = {wire.EPOCH: epoch, wire.STEP: step, wire.CLIENT: clients}
        task[wire.MASK_KEY] = [key.reveal() for key in keys]
        content = RecordDict({wire.MODEL: arrays, wire.TASK: ConfigRecord(task)})
        message = Message(content, 1, MessageType.TRAIN, group_id=str(release.round))
        message.metadata.__dict__["_message_id"] = "recounted"
        sent = payloads(call_app(apps[node], message, local_context()), len(clients))
        grid = FixedPoint.fit(plan.bounds.linf_norm, plan.participation.cohort_size)
        sums[node] = np.zeros(plan.rotation.padded, np.int64)
        for key, data in zip(keys, sent, strict=True):
            where = wire.coordinates(key, plan.rotation.padded, plan.compression.keep_probability)
            grid.add(sums[node], where, wire.decode(data and data[:-TAG_BYTES], plan.bounds, kept=len(where)))
    return sums


def _zeros(plan, state, release, sums):
    """Return the nodes, heard in a round, whose values must be zeros for its sum, the fewest first; None where no such sum is released."""
    grid = FixedPoint.fit(plan.bounds.linf_norm, plan.participation.cohort_size)
    for size in range(len(sums) + 1):
        for zeros in combinations(sorted(sums), size):
            total = sum(
                [sums[node] for node in sums if node not in zeros], np.zeros(plan.rotation.padded, np.int64)
            )
            made, _ = make_release(plan, state, grid.value(total), list(release.answered))
            if made.noisy_sum.tobytes() == release.noisy_sum.tobytes():
                return zeros
    return None

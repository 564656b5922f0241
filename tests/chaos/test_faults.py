"""Nodes that lie, are late, answer twice or not at all, in one process; and simulations that are killed at random instants or meet a full disk."""

import json
import shlex
import subprocess
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from flwr.app import MessageType

from experiments.deployment import apps
from experiments.deployment.apps import run_settings
from experiments.deployment.server import deploy
from experiments.engines.engine import resident_client_app
from experiments.settings.experiment import build
from fedmf.errors import ReleaseOrderError
from fedmf.randomness import SecretKey
from fedmf.updates.wire import TAG_BYTES
from kills import FAULTS
from nodes import DATA, TWO, Nodes, key_of, playing, program
from revealed import in_files
from runs import assert_equal, composed, model
from server import strategy
from server.record import Record
from server.state import Release
from unreliable import LIES, lying
from witness import (
    Witness,
    check_heard_once,
    check_key_chain,
    check_released_once,
    examine,
    note_of,
    recount,
)

pytestmark = pytest.mark.slow

RUN = (
    f"{DATA} population.min_available=12 population.cohort_size=4 population.epochs=2 engine.node_timeout=0.05 "
    "privacy.epsilon=null privacy.noise_multiplier=1 compression.keep_probability=0.5 run.evaluations=1"
)
ROUNDS = range(1, 7)


@pytest.fixture
def play(tmp_path, in_this_process):
    """Return what plays a run of nodes a and b and computes it again; `reply(node, round, honest)` changes what is collected."""

    def played(change=lambda node, number, replies: replies):
        directory, notes = tmp_path / "run", []
        run = f"{RUN} run.directory={directory}"

        def look(message):
            witness.look()
            if message.metadata.message_type == MessageType.TRAIN:
                notes.append(note_of(message, directory))

        answers = {node: playing(run, TWO[node], look) for node in TWO}
        witness, settings = Witness(directory), run_settings(run)
        deploy(settings, Changing(answers, change))
        witness.look()
        return examine(witness, settings, {key_of(node): text for node, text in TWO.items()}, notes), witness

    return played


class Changing(Nodes):
    """Nodes whose replies to tasks `change(node, round, replies)` changes."""

    def __init__(self, answers, change):
        super().__init__(answers, answers)
        self._change = change

    def collect(self, message_ids):
        message, replies = self.waiting.get(message_ids[0]), super().collect(message_ids)
        if message is None or message.metadata.message_type != MessageType.TRAIN:
            return replies
        node = next(name for name, number in self.ids.items() if number == message.metadata.dst_node_id)
        return self._change(node, int(message.metadata.group_id), replies)


def lie(monkeypatch):
    """Let node b lie and return the list of its lies."""
    told, honest = [], apps.reply_to
    spoilt = lying(honest, told.append)

    def reply_to(message, context):
        is_liar = context.node_config["overrides"] == TWO["b"]
        return spoilt(message, context) if is_liar else honest(message, context)

    monkeypatch.setattr(apps, "reply_to", reply_to)
    return told


def test_every_lie_counts_as_zeros_and_moves_no_sum(play, monkeypatch):
    told = lie(monkeypatch)
    found, _ = play()
    assert found.unexplained == []
    assert found.zeros == {number: (key_of("b"),) for number in ROUNDS}
    assert {*told} == {one.__name__ for one in LIES}
    assert all(len(release.answered) == 4 for release in found.releases)


def test_a_server_that_checks_no_tag_is_found_by_the_recount(play, monkeypatch):
    unchecked = lambda sent, *_: [data[:-TAG_BYTES] if data else None for data in sent]  # noqa: E731
    monkeypatch.setattr(strategy, "without_tags", unchecked)
    lie(monkeypatch)
    found, _ = play()
    told = [LIES[number % len(LIES)].__name__ for number in found.unexplained]
    assert told == ["wrong_tags", "another_round", "other_clients"]


def test_a_reply_that_comes_twice_or_a_round_late_counts_once_or_not_at_all(play):
    """Node a answers twice; node b is silent in round 2 and answers it in round 3 as well, and in round 5 never."""
    late = []

    def change(node, number, replies):
        if node == "a":
            return replies * 2
        if number in (2, 5):
            late[:] = replies
            return []
        return [*late, *replies] if number == 3 else replies

    found, _ = play(change)
    assert (found.unexplained, found.zeros) == ([], {})
    heard = {one.round: {client.rpartition(":")[0] for client in one.answered} for one in found.releases}
    assert [number for number in ROUNDS if key_of("b") not in heard[number]] == [2, 5]


def test_the_witness_finds_one_bit_another_key_a_client_heard_twice_and_a_changed_roster(play):
    found, witness = play()
    first, second, *others = found.releases
    changed = np.array(second.noisy_sum)
    changed[3] = np.nextafter(changed[3], np.float32(np.inf))
    releases, keys = [first, replace(second, noisy_sum=changed), *others], witness.first_keys()
    assert 2 in recount(found.experiment, releases, keys, found.apps).unexplained
    other = {epoch: key.ratchet() for epoch, key in keys.items()}
    assert recount(found.experiment, found.releases, other, found.apps).unexplained == [*ROUNDS]
    plan, keys, rosters = found.experiment.plan, witness.keys, witness.rosters
    roster = rosters[1][0]
    other = replace(roster, nodes={node: count + 1 for node, count in roster.nodes.items()})
    for answered, clients, said in (
        (first.answered, rosters, "heard again in round 2"),
        (("stranger:0",), rosters, "round 2 has strangers"),
        (second.answered, {**rosters, 1: [roster, other]}, "the clients of epoch 1 changed"),
    ):
        with pytest.raises(AssertionError, match=said):
            check_heard_once([first, replace(second, answered=answered), *others], clients, plan)
    for wrong, said in (([SecretKey.generate()], "no other"), (2 * keys[1], "numbers of keys")):
        with pytest.raises(AssertionError, match=said):
            check_key_chain({**keys, 1: wrong}, 2)


def twice(append, record, release):
    for _ in range(1 + (release.round == 3)):
        append(record, release)


def lost(append, record, release):
    if release.round != 2:
        append(record, release)


def late(append, record, release, waiting=[]):  # noqa: B006
    waiting.append(release)
    while waiting and release.round % 3 == 0:  # the rounds of an epoch together
        append(record, waiting.pop(0))


@pytest.mark.parametrize(
    ("write", "error", "said"),
    [
        (twice, ReleaseOrderError, "round 3 is not released: UNIQUE"),
        (lost, AssertionError, "before the round was on disk|rounds were to be"),
        (late, AssertionError, "before the round was on disk"),
    ],
)
def test_a_round_that_is_released_twice_lost_or_shown_early_is_found(play, monkeypatch, write, error, said):
    append = Record.append
    monkeypatch.setattr(Record, "append", lambda record, release: write(append, record, release))
    with pytest.raises(error, match=said):
        play()


# killed simulations


KILLS, LAST = 40, 12
KILLED = shlex.split(
    "dataset=synthetic dataset.clients=30 dataset.features=5 dataset.classes=3 seed=7 population.cohort_size=6 "
    "population.rounds_per_epoch=4 population.epochs=3 run.checkpoint_every=2 optimizer.momentum=0.9 "
    "compression.keep_probability=0.5 run.evaluations=3"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of a run that nothing disturbed, called 0, and of those that were killed."""
    return tmp_path_factory.mktemp("kills")


@pytest.fixture(scope="module")
def lives(folder):
    """What the lives of each run have left, by its name."""
    command = program("kills", "runs", folder, str(KILLS), "1", *KILLED)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    logs = "".join(log.read_text()[-2000:] for log in folder.glob("*.log"))
    assert done.returncode == 0, done.stderr + logs
    runs = defaultdict(list)
    for life in map(json.loads, done.stdout.splitlines()):
        runs[str(life["run"])].append(life)
    return runs


def commits(folder, run):
    """Return what was noted of a run's commits, in order."""
    return [json.loads(line) for line in (folder / f"{run}.commits").read_text().splitlines()]


def releases(folder, run):
    """Return a run's releases by round: every form in which one was committed."""
    forms = defaultdict(set)
    for row in commits(folder, run):
        if "round" in row:
            forms[row["round"]].add((row["sum"], tuple(row["answered"])))
    return forms


def test_lives_end_in_every_way_and_leave_runs_that_equal_the_undisturbed_one(folder, lives):
    ended = [life["fault"] for run in lives.values() for life in run if life["status"]]
    assert {kind: ended.count(kind) for kind in FAULTS} == dict.fromkeys(FAULTS, KILLS // len(FAULTS))
    assert len(lives) > 2
    for run in map(folder.joinpath, lives):
        assert_equal(run, folder / "0")


def test_a_life_goes_on_with_the_round_after_the_last_on_disk_and_commits_each_once(folder, lives):
    """What a commit returned from is on disk, whatever ended the life then; what was not is committed as before, bit for bit."""
    for run, its_lives in lives.items():
        assert its_lives[-1]["after"] == LAST
        for life in its_lives:
            rows = [row for row in commits(folder, run) if row["process"] == life["process"]]
            asked = [row["round"] for row in rows if "round" in row]
            assert asked == list(range(life["before"] + 1, life["before"] + 1 + len(asked)))
            done = [row["done"] for row in rows if "done" in row]
            assert max([life["before"], *done]) <= life["after"] <= max([life["before"], *asked])
        counts = {number: len(forms) for number, forms in releases(folder, run).items()}
        assert counts == dict.fromkeys(range(1, LAST + 1), 1)
        assert releases(folder, run) == releases(folder, "0")


def test_each_release_is_the_sum_of_its_clients_with_its_own_noise_row_once_and_no_key_is_left(folder, lives):
    settings = composed("run.reproducible=true", *KILLED)
    first = SecretKey.reproducible(settings.seed)
    keys = [first, first.ratchet(), first.ratchet().ratchet()]
    released = [
        Release(number, np.frombuffer(bytes.fromhex(noisy), "<f4"), answered)
        for number, ((noisy, answered),) in releases(folder, "0").items()
    ]
    check_released_once(released, LAST)
    experiment = build(settings)
    app = resident_client_app(settings, experiment.dataset.public)
    found = recount(experiment, released, keys, {"": app})
    assert (found.unexplained, found.zeros) == ([], {})
    np.testing.assert_array_equal(found.model, model(folder / "0"))
    for run in lives:
        assert in_files(folder / run, dict(enumerate(keys))) == {}

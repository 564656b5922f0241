"""Nodes in the middle of an epoch: away, lost, with other code, with other clients, and ahead of a server that was set back."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

from client.data.clients import Fingerprint
from experiments.deployment.apps import count_answer
from fedmf.errors import RunDirectoryError, RunStoppedError
from fedmf.randomness import SecretKey
from fedmf.updates import wire
from nodes import KEYS, Signed, answer, answer_other_code, deployed, roster_in, start, tasks_in
from plans import replying, small_plan, spent_in
from poison import values_in
from server import membership
from server.cohort import ROSTER

SIX = {"a": 6, "b": 6}


@pytest.fixture(autouse=True)
def _impatient(monkeypatch, tmp_path):
    monkeypatch.setattr(membership, "PAUSE", 0.01)
    monkeypatch.setenv("FEDMF_STATE", str(tmp_path / "node"))


def clients_of(name, clients):
    return {client for client in clients if client.startswith(KEYS[name])}


def spent_of(strategy, name):
    return clients_of(name, spent_in(strategy.state.register))


# away


def test_a_node_that_is_away_is_silent_and_its_clients_stay_unspent(tmp_path, caplog):
    strategy, grid, releases = deployed(tmp_path, SIX)
    start(strategy, grid)
    grid.away.add("b")
    start(strategy, grid, 2)
    grid.away.clear()
    start(strategy, grid)
    assert not any(clients_of("b", release.answered) for release in releases[1:3])
    assert any(len(release.answered) < 3 for release in releases[1:3])
    assert len(releases[3].answered) == 3
    assert f"node {KEYS['b']} is not connected" in caplog.text


def test_a_lost_nodes_clients_are_spent_and_it_takes_part_in_the_next_epoch(tmp_path):
    strategy, grid, releases = deployed(tmp_path, SIX)
    start(strategy, grid)
    grid.lost.add("b")
    start(strategy, grid, 3)
    grid.lost.clear()
    start(strategy, grid, 4)
    assert [len(release.answered) for release in releases] == [3] * 8
    assert len({client for release in releases[4:] for client in release.answered}) == 12


def test_while_every_node_is_away_nothing_is_released(tmp_path):
    strategy, grid, releases = deployed(tmp_path, {"a": 12})
    start(strategy, grid)
    grid.away.add("a")
    with pytest.raises(RunStoppedError, match="no node is connected for round 2"):
        start(strategy, grid)
    assert len(releases) == 1


def test_a_round_waits_for_the_first_of_its_nodes_to_come_back_and_says_so_once(
    tmp_path, monkeypatch, caplog
):
    strategy, grid, releases = deployed(tmp_path, {"a": 12}, timeout=60)
    start(strategy, grid)
    grid.away.add("a")
    looks = iter([list, list, grid.away.clear])
    monkeypatch.setattr(membership.time, "sleep", lambda seconds: next(looks)())
    start(strategy, grid)
    assert [len(release.answered) for release in releases] == [3, 3]
    assert caplog.text.count("waiting: no node of this round is connected") == 1


# other code


NOISY = small_plan(noise_multiplier=0.5, keep_probability=0.5)
ONE_EACH = {"tasks_per_message": 1}


def test_other_code_is_what_silence_is_bit_for_bit_until_it_is_mended_and_logged_once_a_round(
    tmp_path, caplog
):
    states = {}
    for kind, reply in (("silence", lambda message: None), ("other code", answer_other_code)):
        (tmp_path / kind).mkdir()
        strategy, grid, _ = deployed(tmp_path / kind, SIX, plan=NOISY, options=ONE_EACH)
        start(strategy, grid)
        before, grid.train["b"] = spent_of(strategy, "b"), reply
        start(strategy, grid, 2)
        assert spent_of(strategy, "b") == before
        grid.train["b"] = answer
        start(strategy, grid)
        assert before < spent_of(strategy, "b")
        assert len(spent_of(strategy, "a")) == 6
        states[kind] = strategy.state
    np.testing.assert_array_equal(states["silence"].model, states["other code"].model)
    assert spent_in(states["silence"].register) == spent_in(states["other code"].register)
    assert states["silence"].ledger == states["other code"].ledger
    asked = [
        message.content.config_records[wire.TASK][wire.STEP]
        for message in tasks_in(grid)
        if message.metadata.dst_node_id == grid.ids["b"]
    ]
    rounds = {step for step in asked if step in (1, 2)}
    said = f"node {KEYS['b']} has other code than the run; its clients are silent"
    assert caplog.text.count(said) == len(rounds) > 0


def with_values(message):
    reply = answer(message)
    reply.content[wire.HELD] = ConfigRecord({wire.OTHER_CODE: True})
    return reply


def saying(**records):
    return lambda message: Message(RecordDict(records), reply_to=message)


OTHER = ConfigRecord({wire.OTHER_CODE: True})
MIXED = {
    "with values": with_values,
    "with an array": saying(held=OTHER, model=ArrayRecord({"vector": Array("float32", (1,), "x", bytes(4))})),
    "with a number": saying(held=OTHER, loss=MetricRecord({"loss": 1.0})),
    "with clients": saying(held=ConfigRecord({wire.OTHER_CODE: True, wire.CLIENTS: 6})),
    "in another record": saying(task=OTHER),
    "as a measure": saying(held=MetricRecord({wire.OTHER_CODE: 1})),
    "not true": saying(held=ConfigRecord({wire.OTHER_CODE: False})),
    "a number": saying(held=ConfigRecord({wire.OTHER_CODE: 1})),
    "a text": saying(held=ConfigRecord({wire.OTHER_CODE: "True"})),
    "nothing": saying(),
    "an error": lambda message: Message(Error(2, "<class 'OtherCodeError'>:<'x'>"), reply_to=message),
}


@pytest.mark.parametrize("said", MIXED)
def test_only_a_reply_that_says_this_and_nothing_else_makes_clients_silent(tmp_path, said):
    """What is made of a client's data cannot: an error, or values in any company, are of clients that were heard."""
    strategy, grid, _ = deployed(tmp_path, SIX)
    grid.train["b"] = MIXED[said]
    start(strategy, grid, 4)
    assert len(spent_of(strategy, "b")) == 6


def test_values_that_one_client_lacks_leave_the_others_of_its_message_theirs(tmp_path):
    """Or one client would decide whether others take part."""
    sent = {}
    strategy, grid, _ = deployed(tmp_path, {"a": 12}, options={"on_reply": sent.__setitem__})
    grid.train["a"] = lambda message: replying(message, wire.NO_VALUES, *values_in(answer(message))[1:])
    start(strategy, grid)
    assert [data is not None for data in sent.values()] == [False, True, True]


# other clients


class People:
    """A node that holds `people`, who answer as themselves: a vector is a person's, whatever number it is asked under."""

    def __init__(self, people):
        self.people = list(people)

    def said(self, message):
        """The digest of the node's people in order, under the key of the question."""
        key = SecretKey(bytes(message.content.config_records[wire.HELD][wire.DIGEST_KEY]))
        fingerprint = Fingerprint(key)
        fingerprint.text(" ".join(self.people))
        return ConfigRecord({wire.DIGEST: fingerprint.hexdigest()})

    def query(self, message):
        found = self.said(message)
        found[wire.CLIENTS] = len(self.people)
        return Message(RecordDict({wire.HELD: found}), reply_to=message)

    def train(self, message):
        reply = answer(message)
        reply.content[wire.HELD] = self.said(message)
        return reply


def declaring(folder, nodes):
    """Run a round with nodes that declare who their clients are; returns strategy, grid and releases."""
    strategy, _, releases = deployed(folder, {"a": 1})
    grid = Signed(
        {name: node.query for name, node in nodes.items()}, {name: node.train for name, node in nodes.items()}
    )
    start(strategy, grid)
    return strategy, grid, releases


def heard(strategy, grid):
    """Whether the model moved in the next round."""
    before = strategy.state.model.copy()
    start(strategy, grid)
    return bool((strategy.state.model != before).any())


def test_a_node_that_renumbers_its_clients_in_mid_epoch_counts_as_zeros_until_the_next(tmp_path, caplog):
    node = People("abcdefghijkl")
    strategy, grid, releases = declaring(tmp_path, {"a": node})
    assert heard(strategy, grid)
    node.people.reverse()
    assert not heard(strategy, grid)
    assert roster_in(tmp_path).changed == (KEYS["a"],)
    node.people.reverse()
    strategy.population = deployed(tmp_path, {"a": 1})[0].population  # a restarted server
    assert not heard(strategy, grid)  # for the rest of the epoch
    assert caplog.text.count(f"node {KEYS['a']} no longer holds the clients that it declared") == 1
    assert [len(release.answered) for release in releases] == [3] * 4  # asked, spent and counted nevertheless
    node.people.reverse()
    assert heard(strategy, grid)


def test_no_two_nodes_and_no_two_epochs_have_one_digest_of_the_same_people(tmp_path):
    """So the public roster says nothing to an observer with data of his own to compare."""
    strategy, grid, _ = declaring(tmp_path, {"a": People("abcdef"), "b": People("abcdef")})
    first = roster_in(tmp_path).digests
    start(strategy, grid, 4)
    assert len({*first.values(), *roster_in(tmp_path).digests.values()}) == 4


@pytest.mark.parametrize("said", ["", "x" * 64, "0" * 63, "0" * 100_000, b"0" * 64, 3])
def test_values_without_the_digest_that_was_declared_count_as_zeros(tmp_path, said):
    node = People("abcdefghijkl")
    strategy, grid, releases = declaring(tmp_path, {"a": node})
    honest_answer, node.said = node.said, lambda message: ConfigRecord({wire.DIGEST: said})
    assert not heard(strategy, grid)
    node.said = honest_answer
    assert heard(strategy, grid)  # nothing was said that differs
    assert len(releases) == 3


# an older state of the server


def remembering(message):
    """The reply of a real node's answer, which keeps count of its rounds."""
    reply = answer(message)
    reply.content[wire.HELD] = ConfigRecord({wire.ANSWERED: count_answer(message)})
    return reply


@pytest.mark.parametrize(("released", "answered"), [(2, 2), (3, 3), (5, 4)])
def test_a_server_behind_its_nodes_stops_before_it_releases_anything(tmp_path, caplog, released, answered):
    """Its whole state was restored, the count of its rounds as well: nothing on its machine tells. Epochs have 4 rounds."""
    strategy, grid, releases = deployed(tmp_path, SIX, train=remembering)
    start(strategy, grid, min(released, 3))
    backup = (tmp_path / ROSTER).read_bytes()
    if released > 3:
        start(strategy, grid, released - 3)  # the next epoch is not taken for the first
    assert len(releases) == released
    (tmp_path / ROSTER).write_bytes(backup)
    restored, _, again = deployed(tmp_path, SIX)
    with pytest.raises(
        RunDirectoryError, match=f"answered round {answered} .* asks for its round 1: it holds an older"
    ):
        start(restored, grid)
    assert again == []
    assert restored.state.round == 0
    accepting, _, again = deployed(tmp_path, SIX, accept_copy=True)
    start(accepting, grid)
    assert len(again) == 1
    assert "It continues nevertheless" in caplog.text


@pytest.mark.parametrize("said", [1, "7", 5, 10**15, -1, True])
def test_a_round_that_was_not_released_is_asked_again_and_what_is_no_round_of_an_epoch_stops_nothing(
    tmp_path, said
):
    def malformed(message):
        reply = answer(message)
        reply.content[wire.HELD] = ConfigRecord({wire.ANSWERED: said})
        return reply

    strategy, grid, releases = deployed(tmp_path, {"a": 12}, train=malformed)
    start(strategy, grid)
    assert len(releases) == 1

"""Nodes whose data could not be loaded when they started: an epoch waits for them, or begins without, and says who."""

import logging

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from fedmf.errors import RunStoppedError
from fedmf.updates import wire
from nodes import Nodes, holding, key_of, unready
from plans import KEY, random_vector, small_plan
from server import gathering
from server.attendance import ROSTER, DeployedPopulation
from server.cohort import Roster, UnreadyNodes
from server.gathering import Attendance
from server.optimizer import Sgd
from server.state import first_state
from server.strategy import FedMF
from tasks import values_in
from workers import fields_of, honest, replying

PLAN = small_plan(noise_multiplier=0, keep_probability=0.5)  # 12 clients, 4 rounds of 3, 2 epochs


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    monkeypatch.setattr(gathering, "PAUSE", 0.01)


def answer(message):
    vectors = (random_vector(50, 0.5, 1) for _ in fields_of(message))
    replies = [
        honest(fields, message, vector, PLAN)
        for fields, vector in zip(fields_of(message), vectors, strict=True)
    ]
    return replying(message, *(values for reply in replies for values in values_in(reply)))


def started(folder, grid, policy, rounds, timeout=0.2):
    limits = Attendance(12, timeout=timeout, query_timeout=1.0, unready=policy)
    strategy = FedMF(
        PLAN,
        Sgd(1.0),
        DeployedPopulation(limits, folder),
        first_state(PLAN, np.zeros(PLAN.dimension, "f4"), KEY),
    )
    strategy.start(grid, num_rounds=rounds, timeout=0.1)
    return strategy


def nodes_in(folder):
    return {*Roster.from_json((folder / ROSTER).read_text()).nodes}


def grid_with(broken):
    return Nodes({"a": holding(12), "b": broken}, {"a": answer, "b": answer})


def test_an_epoch_waits_for_a_node_that_is_not_ready_and_says_which(tmp_path, caplog):
    """Also where the others hold enough clients; nothing is begun, so nothing is spent."""
    grid = grid_with(unready(6))
    with (
        caplog.at_level(logging.INFO, logger="server"),
        pytest.raises(RunStoppedError, match=rf"not ready: {key_of('b')}.*unready_nodes=without"),
    ):
        started(tmp_path, grid, UnreadyNodes.wait, 1)
    assert f"not ready: {key_of('b')}" in caplog.text
    assert not (tmp_path / ROSTER).exists()
    assert [message for message in grid.asked if message.metadata.message_type == "train"] == []


def test_waiting_is_the_policy_where_none_is_given():
    assert Attendance(1).unready is UnreadyNodes.wait


def test_a_node_that_becomes_ready_while_an_epoch_waits_takes_part(tmp_path):
    asked = []

    def mended(message):
        asked.append(message)
        return (unready(6) if len(asked) < 3 else holding(6))(message)

    started(tmp_path, grid_with(mended), UnreadyNodes.wait, 1, timeout=5)
    assert nodes_in(tmp_path) == {key_of("a"), key_of("b")}


def test_a_node_that_leaves_is_not_waited_for(tmp_path):
    grid = grid_with(unready(6))
    say = grid.query["b"]

    def leaving(message):
        grid.away.add("b")
        return say(message)

    grid.query["b"] = leaving
    started(tmp_path, grid, UnreadyNodes.wait, 1, timeout=5)
    assert nodes_in(tmp_path) == {key_of("a")}


def saying(*answers):
    """Return a node that gives these answers one after another, the last one again and again, and a list of its questions."""
    asked, left = [], list(answers)

    def say(message):
        asked.append(message)
        return (left.pop(0) if len(left) > 1 else left[0])(message)

    return say, asked


def test_a_node_that_comes_back_while_an_epoch_waits_is_asked_again(tmp_path):
    """It was started again with data that do not load; what it said before counts no longer."""
    first, asked = saying(holding(12), unready(5))
    passes = []

    def waited_for(message):
        passes.append(message)
        if len(passes) == 2:
            grid.away.add("a")
        if len(passes) == 4:
            grid.away.discard("a")
        return (unready(6) if len(passes) < 8 else holding(12))(message)

    grid = Nodes({"a": first, "b": waited_for}, {"a": answer, "b": answer})
    with pytest.raises(RunStoppedError, match=f"not ready: {key_of('a')}"):
        started(tmp_path, grid, UnreadyNodes.wait, 1, timeout=1.5)
    assert len(asked) > 2


def test_a_node_that_comes_back_under_another_id_is_asked_again(tmp_path):
    first, asked = saying(holding(12), unready(5))

    def waited_for(message):
        grid.ids["a"] = 500  # between two looks at who is connected
        return unready(6)(message)

    grid = Nodes({"a": first, "b": waited_for}, {"a": answer, "b": answer})
    both = ", ".join(sorted([key_of("a"), key_of("b")]))
    with pytest.raises(RunStoppedError, match=f"not ready: {both}"):
        started(tmp_path, grid, UnreadyNodes.wait, 1, timeout=0.5)
    assert [message.metadata.dst_node_id for message in asked][:2] == [100, 500]


def test_who_was_there_before_others_is_asked_once_more_when_all_are(tmp_path):
    """Its file was exchanged meanwhile, which no disconnection shows: the digest of the epoch is the new one's."""
    first, asked = saying(holding(12), holding(9))
    second, _ = saying(unready(6), unready(6), holding(6))
    started(
        tmp_path,
        Nodes({"a": first, "b": second}, {"a": answer, "b": answer}),
        UnreadyNodes.wait,
        1,
        timeout=5,
    )
    roster = Roster.from_json((tmp_path / ROSTER).read_text())
    assert roster.nodes == {key_of("a"): 9, key_of("b"): 6}
    assert len(asked) == 2


def test_where_nobody_is_waited_for_each_node_is_asked_once(tmp_path):
    (first, asked), (second, too) = saying(holding(12)), saying(holding(6))
    started(
        tmp_path,
        Nodes({"a": first, "b": second}, {"a": answer, "b": answer}),
        UnreadyNodes.wait,
        1,
        timeout=5,
    )
    assert (len(asked), len(too)) == (1, 1)


def test_a_silent_node_that_was_not_ready_is_still_waited_for(tmp_path):
    answers = iter([unready(6)])

    def once(message):
        say = next(answers, None)
        return None if say is None else say(message)

    with pytest.raises(RunStoppedError, match="not ready"):
        started(tmp_path, grid_with(once), UnreadyNodes.wait, 1, timeout=1.5)


def test_by_policy_an_epoch_begins_without_it_and_the_next_one_with_it(tmp_path, caplog):
    grid = grid_with(unready(6))
    strategy = started(tmp_path, grid, UnreadyNodes.without, 1)
    assert nodes_in(tmp_path) == {key_of("a")}
    assert f"node {key_of('b')} is not ready: the epoch begins without it" in caplog.text
    grid.query["b"] = holding(6)
    strategy.start(grid, num_rounds=3, timeout=0.1)
    assert nodes_in(tmp_path) == {key_of("a")}  # the epoch under way is as it began
    strategy.start(grid, num_rounds=1, timeout=0.1)
    assert nodes_in(tmp_path) == {key_of("a"), key_of("b")}


def test_a_node_that_is_not_ready_counts_for_no_available_client(tmp_path):
    grid = Nodes({"a": holding(11), "b": unready(6)}, {"a": answer, "b": answer})
    with pytest.raises(RunStoppedError, match=r"11 clients behind 1 .*Start more nodes"):
        started(tmp_path, grid, UnreadyNodes.without, 1)


def test_an_epoch_under_way_goes_on_whatever_a_node_says_then(tmp_path):
    grid = grid_with(holding(6))
    started(tmp_path, grid, UnreadyNodes.wait, 1)
    grid.query["b"] = unready(6)
    told = []
    again = DeployedPopulation(Attendance(12, timeout=0.05), tmp_path, told.append)
    again.gather(PLAN, 0, 1, grid, key=KEY)
    assert nodes_in(tmp_path) == {key_of("a"), key_of("b")}
    assert [{*roster.nodes} for roster in told] == [nodes_in(tmp_path)]  # said again after a restart


@pytest.mark.parametrize("said", [True, 0, "no", b"", [False]])
def test_only_a_plain_no_makes_a_node_not_ready(tmp_path, said):
    record = ConfigRecord({wire.CLIENTS: 6, wire.READY: said})
    grid = grid_with(lambda message: Message(RecordDict({wire.HELD: record}), reply_to=message))
    started(tmp_path, grid, UnreadyNodes.wait, 1)
    assert nodes_in(tmp_path) == {key_of("a"), key_of("b")}

"""Nodes whose installed code is not the run's: silent and not spent, named in the log, and never by way of anyone's data."""

import logging

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

from experiments.deployment.node import answer_other_code
from fedmf.errors import RunStoppedError
from fedmf.updates import wire
from nodes import Nodes, holding, key_of
from plans import KEY, small_plan
from server import gathering
from server.attendance import ROSTER, DeployedPopulation
from server.cohort import ReplyPolicy, Roster
from server.gathering import Attendance
from server.messages import says_other_code
from server.optimizer import Sgd
from server.state import first_state
from server.strategy import FedMF
from tasks import values_in
from workers import fields_of, honest, replying

PLAN = small_plan(noise_multiplier=0.5, keep_probability=0.5)  # 12 clients, 4 rounds of 3, 2 epochs


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    monkeypatch.setattr(gathering, "PAUSE", 0.01)


def answer(message):
    replies = [honest(fields, message, plan=PLAN) for fields in fields_of(message)]
    return replying(message, *(values for reply in replies for values in values_in(reply)))


def silent(message):
    return None


def grid_of():
    return Nodes({"a": holding(6), "b": holding(6)}, {"a": answer, "b": answer})


def started(folder, grid, rounds, **policy):
    """A strategy that has played `rounds` with the nodes of `grid`."""
    folder.mkdir(exist_ok=True)
    strategy = FedMF(
        PLAN,
        Sgd(1.0),
        DeployedPopulation(Attendance(12, timeout=0.2, query_timeout=0.5), folder),
        first_state(PLAN, np.zeros(PLAN.dimension, "f4"), KEY),
        replies=ReplyPolicy(**policy),
        tasks_per_message=1,
    )
    strategy.start(grid, num_rounds=rounds, timeout=0.1)
    return strategy


def nodes_in(folder):
    return {*Roster.from_json((folder / ROSTER).read_text()).nodes}


def spent_of(strategy, name):
    return {client for client in strategy.state.register.spent if client.startswith(key_of(name))}


def test_in_mid_epoch_it_is_what_silence_is_bit_for_bit_and_its_clients_are_not_spent(tmp_path, caplog):
    states = {}
    for kind, reply in (("silence", silent), ("other code", answer_other_code)):
        grid = grid_of()
        strategy = started(tmp_path / kind, grid, 1)
        before = spent_of(strategy, "b")
        grid.train["b"] = reply
        with caplog.at_level(logging.WARNING, logger="server"):
            strategy.start(grid, num_rounds=3, timeout=0.1)
        assert spent_of(strategy, "b") == before
        assert len(before) < 6 == len(spent_of(strategy, "a"))
        states[kind] = strategy.state
    np.testing.assert_array_equal(states["silence"].model, states["other code"].model)
    assert states["silence"].register == states["other code"].register
    assert states["silence"].ledger == states["other code"].ledger


def test_the_log_names_it_once_a_round_whatever_it_was_sent(tmp_path, caplog):
    grid = grid_of()
    strategy = started(tmp_path, grid, 1)
    grid.train["b"] = answer_other_code
    strategy.start(grid, num_rounds=2, timeout=0.1)
    asked = {
        (message.content.config_records[wire.TASK][wire.STEP], message.metadata.dst_node_id)
        for message in grid.asked
        if message.metadata.message_type == "train"
    }
    rounds = sum(node == grid.ids["b"] and step > 0 for step, node in asked)
    messages = sum(message.metadata.dst_node_id == grid.ids["b"] for message in grid.asked)
    assert messages > rounds > 0
    assert (
        caplog.text.count(f"node {key_of('b')} has other code than the run; its clients are silent") == rounds
    )


def test_it_is_heard_again_in_the_epoch_once_it_has_the_runs_code(tmp_path):
    grid = grid_of()
    grid.train["b"] = answer_other_code
    strategy = started(tmp_path, grid, 2)
    assert spent_of(strategy, "b") == set()
    grid.train["b"] = answer
    strategy.start(grid, num_rounds=2, timeout=0.1)
    assert spent_of(strategy, "b") != set()


def test_it_counts_against_the_least_replies_as_silence_does(tmp_path):
    grid = grid_of()
    grid.train = dict.fromkeys("ab", answer_other_code)
    with pytest.raises(RunStoppedError, match="fewer than min_replies=1"):
        started(tmp_path, grid, 1, min_replies=1, max_attempts=2)


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
    "with a digest": saying(held=ConfigRecord({wire.OTHER_CODE: True, wire.DIGEST: "0" * 64})),
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
    """What is made of a client's data cannot: an error, or values in whatever company, are of clients that were heard."""
    grid = grid_of()
    grid.train["b"] = MIXED[said]
    strategy = started(tmp_path, grid, 4)
    assert len(spent_of(strategy, "b")) == 6


def test_what_is_no_reply_at_all_says_nothing():
    assert not says_other_code(None)


def test_an_epoch_begins_without_it_and_the_log_says_so(tmp_path, caplog):
    grid = grid_of()
    grid.query = {"a": holding(12), "b": answer_other_code}
    started(tmp_path, grid, 1)
    assert nodes_in(tmp_path) == {key_of("a")}
    assert f"node {key_of('b')} has other code than the run: the epoch begins without it" in caplog.text
    assert "did not say how many" not in caplog.text


def test_too_few_clients_for_want_of_its_code_stop_the_run_with_the_right_advice(tmp_path, caplog):
    grid = grid_of()
    grid.query["b"] = answer_other_code
    with (
        caplog.at_level(logging.INFO, logger="server"),
        pytest.raises(
            RunStoppedError, match="Install the run's code on the nodes that have other code"
        ) as error,
    ):
        started(tmp_path, grid, 1)
    assert f"with other code than the run: {key_of('b')}" in str(error.value)
    assert len([message for message in grid.asked if message.metadata.dst_node_id == grid.ids["b"]]) > 1
    assert caplog.text.count(f"node {key_of('b')} has other code than the run and takes no part") == 1


def test_it_takes_part_once_it_has_the_runs_code_while_the_epoch_waits(tmp_path):
    asked = []

    def mended(message):
        asked.append(message)
        return (answer_other_code if len(asked) < 3 else holding(6))(message)

    grid = grid_of()
    grid.query["b"] = mended
    started(tmp_path, grid, 1)
    assert nodes_in(tmp_path) == {key_of("a"), key_of("b")}

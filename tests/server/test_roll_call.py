"""Which nodes are there: the log joins name, key and node id, and names who of the list is away; both are counted."""

import logging

import pytest

from experiments.deployment.node import answer_other_code
from fedmf.errors import RunStoppedError
from listed_nodes import KEYS, deployed, listing
from nodes import holding, unready
from plans import KEY
from server import gathering
from server.attendance import DeployedPopulation
from server.cohort import UnreadyNodes
from server.gathering import Attendance
from server.known_nodes import EVERY_NODE
from workers import PLAN


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    monkeypatch.setattr(gathering, "PAUSE", 0.01)


@pytest.fixture(autouse=True)
def _all_lines(caplog):
    caplog.set_level(logging.INFO, logger="server")


LISTED = listing(a=12, b=2)


def line_of(name, clients, found, key):
    return f"node hospital-{name} takes part with {clients} clients; its key is {key}, {found}"


def test_the_log_says_of_each_node_name_key_and_the_id_that_flower_gave_it(tmp_path, caplog):
    strategy, grid, _ = deployed(tmp_path, {"a": 12, "b": 2}, LISTED)
    strategy.start(grid, num_rounds=1, timeout=0.1)
    for name, clients in (("a", 12), ("b", 2)):
        assert line_of(name, clients, f"its node id {grid.ids[name]}", KEYS[name]) in caplog.messages


def test_a_node_that_is_away_when_an_epoch_begins_is_named_in_each_and_no_stranger_is(tmp_path, caplog):
    strategy, grid, _ = deployed(tmp_path, {"a": 12, "b": 2, "c": 6}, LISTED)
    strategy.start(grid, num_rounds=1, timeout=0.1)
    assert "begins without" not in caplog.text
    grid.away = {"b", "c"}
    strategy.start(grid, num_rounds=7, timeout=0.1)
    said = [text for text in caplog.messages if "begins without" in text]
    assert said == [
        "node hospital-b is in the list of nodes and not connected: the epoch begins without it; its key is "
        + KEYS["b"]
    ]


REASONS = {
    "hung": (lambda message: None, "is connected and did not say how many clients it holds"),
    "malformed": (holding("6"), "is connected and did not say how many clients it holds"),
    "other code": (answer_other_code, "has other code than the run"),
    "not ready": (unready(6), "is not ready"),
    "empty": (holding(0), "holds no client"),
}


@pytest.mark.parametrize("listed", [LISTED, EVERY_NODE], ids=["a list", "none"])
@pytest.mark.parametrize("why", REASONS)
def test_a_connected_node_without_which_an_epoch_begins_is_named_with_its_reason_and_counted(
    tmp_path, caplog, why, listed
):
    """It is in no cohort, so that no round would speak of it."""
    strategy, grid, _ = deployed(
        tmp_path, {"a": 12, "b": 6}, listed, query_timeout=0.05, unready=UnreadyNodes.without
    )
    grid.query["b"], reason = REASONS[why]
    strategy.start(grid, num_rounds=1, timeout=0.1)
    name = listed.called(KEYS["b"])
    said = [text for text in caplog.messages if "begins without" in text]
    assert said == [f"node {name} {reason}: the epoch begins without it"]
    expected = 1 if listed is EVERY_NODE else 2
    assert strategy.population.presence().counts() == (expected, expected, 1)


def test_a_node_that_answered_and_hangs_when_all_are_asked_once_more_is_named(tmp_path, caplog):
    """What it said before counts no longer; nor is a stranger named, whose answer nobody asked for."""
    strategy, grid, _ = deployed(
        tmp_path, {"a": 6, "b": 6, "c": 6}, listing(a=12, b=12), query_timeout=0.05, timeout=5
    )
    asked, heard = [], []

    def late(message):
        asked.append(message)
        return None if len(asked) < 3 else holding(12)(message)

    def once(message):
        heard.append(message)
        return holding(6)(message) if len(heard) == 1 else None

    grid.query.update(a=late, b=once)
    strategy.start(grid, num_rounds=1, timeout=0.1)
    assert len(heard) == 2
    (said,) = [text for text in caplog.messages if "begins without" in text]
    assert said.startswith("node hospital-b is connected and did not say how many")


def test_while_an_epoch_waits_the_log_names_who_is_connected_and_says_nothing(tmp_path, caplog):
    strategy, grid, _ = deployed(tmp_path, {"a": 11, "b": 2}, LISTED, query_timeout=0.05)
    grid.query["b"] = lambda message: None
    with pytest.raises(RunStoppedError, match="; without an answer: hospital-b"):
        strategy.start(grid, timeout=0.1)
    assert "min_available=12 are needed; without an answer: hospital-b (for" in caplog.text


def test_a_run_that_goes_on_in_mid_epoch_says_who_is_who_again(tmp_path, caplog):
    """Its log is another one than that of the run before."""
    strategy, grid, _ = deployed(tmp_path, {"a": 12, "b": 2}, LISTED)
    strategy.start(grid, num_rounds=1, timeout=0.1)
    caplog.clear()
    grid.away = {"b"}
    again = DeployedPopulation(Attendance(12, nodes=LISTED), tmp_path)
    again.gather(PLAN, 0, 1, grid, key=KEY)
    assert "epoch 1 goes on with 14 clients behind 2 nodes" in caplog.messages
    assert line_of("a", 12, f"its node id {grid.ids['a']}", KEYS["a"]) in caplog.messages
    assert line_of("b", 2, "and it is not connected now", KEYS["b"]) in caplog.messages


def test_while_an_epoch_waits_the_log_and_the_error_name_who_is_missing(tmp_path, caplog):
    strategy, grid, _ = deployed(tmp_path, {"a": 11, "b": 2}, LISTED)
    grid.away = {"b"}
    with pytest.raises(RunStoppedError, match="; not connected: hospital-b"):
        strategy.start(grid, timeout=0.1)
    assert "min_available=12 are needed; not connected: hospital-b (for" in caplog.text


@pytest.mark.parametrize(("listed", "expected"), [(LISTED, 2), (EVERY_NODE, 1)], ids=["a list", "none"])
def test_a_node_of_the_list_counts_as_expected_also_in_an_epoch_without_it(tmp_path, listed, expected):
    """Without a list nobody knows that it should be there."""
    strategy, grid, _ = deployed(tmp_path, {"a": 12, "b": 2}, listed)
    strategy.start(grid, num_rounds=1, timeout=0.1)
    assert strategy.population.presence().counts() == (2, 2, 2)
    grid.away = {"b"}
    strategy.start(grid, num_rounds=3, timeout=0.1)
    assert strategy.population.presence().counts() == (2, 1, 2)
    strategy.start(grid, num_rounds=1, timeout=0.1)
    assert strategy.population.presence().counts() == (expected, 1, 1)


def test_a_stranger_is_not_counted(tmp_path):
    strategy, grid, _ = deployed(tmp_path, {"a": 12, "c": 6}, LISTED)
    strategy.start(grid, num_rounds=1, timeout=0.1)
    assert strategy.population.presence().counts() == (2, 1, 1)

"""Which nodes an epoch begins with: connected, listed, ready, with the run's code. The log names who is waited for or left out, and why."""

import logging
import re

import pytest
from flwr.app import ConfigRecord, Error, Message, RecordDict

from fedmf.errors import ParticipationError, RunStoppedError
from fedmf.updates import wire
from nodes import (
    KEYS,
    Clock,
    answer_other_code,
    deployed,
    heard,
    holding,
    listing,
    nodes_in,
    roster_in,
    start,
    tasks_in,
    unready,
)
from server import membership
from server.cohort import ROSTER, UnreadyNodes
from server.known_nodes import EVERY_NODE, Attendance

LISTED = listing(a=12, b=2)  # PLAN: 12 clients, 4 rounds of 3, 2 epochs
WITHOUT = {"unready": UnreadyNodes.without}


@pytest.fixture(autouse=True)
def _impatient(monkeypatch, caplog):
    monkeypatch.setattr(membership, "time", Clock())
    monkeypatch.setattr(membership, "PAUSE", 0.01)
    caplog.set_level(logging.INFO, logger="server")


def saying(*answers):
    """Return a node that gives these answers to queries in turn, the last one again and again; None is silence."""
    left = list(answers)

    def say(message):
        say.asked.append(message)
        found = left.pop(0) if len(left) > 1 else left[0]
        return found and found(message)

    say.asked = []
    return say


# how many clients count


@pytest.mark.parametrize(
    ("listed", "most", "counted"),
    [
        (EVERY_NODE, 6, (6, 6)),
        (listing(a=5, b=8), 10_000, (5, 7)),
        (listing(a=50, b=8), 6, (6, 6)),
    ],
)
def test_a_node_counts_for_no_more_clients_than_allowed_or_agreed(tmp_path, caplog, listed, most, counted):
    strategy, grid, releases = deployed(tmp_path, {"a": 10**9, "b": 7}, listed, max_clients_per_node=most)
    start(strategy, grid, 4)
    assert roster_in(tmp_path).nodes == {KEYS["a"]: counted[0], KEYS["b"]: counted[1]}
    assert len(set(heard(releases))) == 12
    assert f"{listed.called(KEYS['a'])} declares 1000000000 clients; {counted[0]} of them" in caplog.text
    assert (f"{listed.called(KEYS['b'])} declares" in caplog.text) == (counted[1] < 7)


NO_COUNTS = [
    *(holding(value) for value in ("12", -1, 12.0, True, [12], b"12")),
    lambda message: None,
    lambda message: Message(Error(2, "x"), reply_to=message),
    lambda message: Message(RecordDict(), reply_to=message),
]


@pytest.mark.parametrize("say", NO_COUNTS)
def test_an_answer_that_is_no_count_is_no_answer(tmp_path, say):
    strategy, grid, _ = deployed(tmp_path, {"a": 12, "b": say})
    start(strategy, grid)
    assert roster_in(tmp_path).nodes == {KEYS["a"]: 12}


@pytest.mark.parametrize("said", [True, 0, "no", b"", [False]])
def test_only_a_plain_no_makes_a_node_not_ready(tmp_path, said):
    record = ConfigRecord({wire.CLIENTS: 6, wire.READY: said})
    say = lambda message: Message(RecordDict({wire.HELD: record}), reply_to=message)  # noqa: E731
    strategy, grid, _ = deployed(tmp_path, {"a": 12, "b": say})
    start(strategy, grid)
    assert nodes_in(tmp_path) == {"a", "b"}


# waiting for an epoch's beginning


WAITING = {
    "too few": ({"a": 5, "b": 6}, "11 clients behind 2 .*min_available=12 are needed", "Start more nodes"),
    "not ready": ({"a": 12, "b": unready(6)}, "; not ready: hospital-b", "unready_nodes=without"),
    "other code": ({"a": 9, "b": answer_other_code}, "; with other code than the run: hospital-b", "Install the run's code"),
    "silent": ({"a": 11, "b": lambda message: None}, "; without an answer: hospital-b", "Start more nodes"),
    "away": ({"a": 11}, "; not connected: hospital-b", "Start more nodes"),
    "not listed": ({"a": 5, "b": 6, "c": 1000}, f"11 clients behind 2 .*; not in the list of nodes: {KEYS['c']}", "Start more nodes"),
    "silent after": ({"a": 12, "b": (unready(6), None)}, "; not ready: hospital-b", "unready_nodes=without"),
}  # fmt: skip


@pytest.mark.parametrize("why", WAITING)
def test_an_epoch_waits_and_the_log_and_the_error_say_for_what(tmp_path, caplog, why):
    """Nothing is begun, so nothing is spent; what is said of a node is said once."""
    held, said, advice = WAITING[why]
    held = {name: saying(*one) if isinstance(one, tuple) else one for name, one in held.items()}
    strategy, grid, _ = deployed(tmp_path, held, listing(a=12, b=12), timeout=0.3)
    with pytest.raises(RunStoppedError, match=rf"after 0\.3 seconds .*{said}.*{advice}"):
        start(strategy, grid)
    assert re.search(f"waiting: .*{said}", caplog.text)
    assert not (tmp_path / ROSTER).exists()
    assert tasks_in(grid) == []
    assert strategy.state.ledger.entries == ()
    assert caplog.text.count("waiting: ") == 1


def test_a_node_that_is_not_ready_counts_for_no_available_client(tmp_path):
    assert Attendance(1).unready is UnreadyNodes.wait  # the policy where none is given
    strategy, grid, _ = deployed(tmp_path, {"a": 11, "b": unready(6)}, **WITHOUT)
    with pytest.raises(RunStoppedError, match=r"11 clients behind 1 .*Start more nodes"):
        start(strategy, grid)


def test_an_epoch_whose_disjoint_cohorts_do_not_fit_is_not_begun(tmp_path):
    """`min_available` may be less than the rounds of an epoch need."""
    with pytest.raises(ParticipationError, match="4 disjoint cohorts of 3 need 12 clients, but there are 11"):
        start(*deployed(tmp_path, {"a": 11}, least=11)[:2])
    assert not (tmp_path / ROSTER).exists()


# Answers of two nodes in turn, and how often each is asked before both take part.
TAKE_PART = {
    "at once": ([holding(12)], [holding(6)], 1, 1),
    "once it is ready": ([holding(12)], [unready(6), unready(6), holding(6)], 2, 4),
    "once it has the code": ([holding(6)], [answer_other_code, answer_other_code, holding(6)], 2, 4),
    # Its file was exchanged meanwhile, which no disconnection shows: the answer of the epoch is the new one.
    "asked once more": ([holding(12), holding(9)], [unready(6), holding(6)], 2, 3),
}


@pytest.mark.parametrize("how", TAKE_PART)
def test_those_who_were_there_before_others_are_asked_once_more_when_all_are(tmp_path, how):
    first, second = (saying(*answers) for answers in TAKE_PART[how][:2])
    strategy, grid, _ = deployed(tmp_path, {"a": first, "b": second}, timeout=5)
    start(strategy, grid)
    counts = {"asked once more": 9, "once it has the code": 6}
    assert roster_in(tmp_path).nodes == {KEYS["a"]: counts.get(how, 12), KEYS["b"]: 6}
    assert len(first.asked) == TAKE_PART[how][2]
    assert len(second.asked) <= TAKE_PART[how][3]


def test_a_node_that_leaves_is_not_waited_for(tmp_path):
    def leaving(message):
        grid.away.add("b")
        return unready(6)(message)

    strategy, grid, _ = deployed(tmp_path, {"a": 12, "b": leaving}, timeout=5)
    start(strategy, grid)
    assert nodes_in(tmp_path) == {"a"}


@pytest.mark.parametrize("how", ["away between", "another id"])
def test_a_node_that_comes_back_while_an_epoch_waits_is_asked_again(tmp_path, how):
    """It was started again with data that do not load; what it said before counts no longer."""
    first, passes = saying(holding(12), unready(5)), []

    def waited_for(message):
        passes.append(message)
        if how == "another id":
            grid.ids["a"] = 500
        elif len(passes) in (2, 4):
            (grid.away.add if len(passes) == 2 else grid.away.discard)("a")
        return unready(6)(message)

    strategy, grid, _ = deployed(tmp_path, {"a": first, "b": waited_for}, listing(a=12, b=6), timeout=1)
    with pytest.raises(RunStoppedError, match="not ready: hospital-a, hospital-b"):
        start(strategy, grid)
    assert [message.metadata.dst_node_id for message in first.asked][:2] == [
        100,
        500 if how == "another id" else 100,
    ]


# who is left out


def counts(strategy):
    """How many nodes are expected, and how many of these are connected and in the epoch, as the population told last."""
    told = strategy.population.presence()
    return tuple(len(told["expected"] & told[what]) for what in ("expected", "connected", "in_epoch"))


LEFT_OUT = {
    "hung": (lambda message: None, "without an answer"),
    "other code": (answer_other_code, "with other code than the run"),
    "not ready": (unready(6), "not ready"),
    "empty": (holding(0), "without an answer"),
}


@pytest.mark.parametrize("listed", [LISTED, EVERY_NODE], ids=["a list", "none"])
@pytest.mark.parametrize("why", LEFT_OUT)
def test_a_connected_node_without_which_an_epoch_begins_is_named_with_its_reason_and_counted(
    tmp_path, caplog, why, listed
):
    """It is in no cohort, so that no round would speak of it; the next epoch has it."""
    say, reason = LEFT_OUT[why]
    strategy, grid, _ = deployed(tmp_path, {"a": 12, "b": say}, listed, **WITHOUT)
    start(strategy, grid)
    said = [text for text in caplog.messages if "begins without" in text]
    assert said == [
        f"node {listed.called(KEYS['b'])} is {reason}: the epoch begins without it; its key is {KEYS['b']}"
    ]
    expected = 1 if listed is EVERY_NODE else 2
    assert counts(strategy) == (expected, expected, 1)
    grid.query["b"] = holding(2)
    start(strategy, grid, 3)
    assert nodes_in(tmp_path) == {"a"}  # the epoch under way is as it began
    start(strategy, grid)
    assert nodes_in(tmp_path) == {"a", "b"}


def test_a_listed_node_that_is_away_is_named_in_each_epoch_and_counted_and_a_stranger_is_named(
    tmp_path, caplog
):
    strategy, grid, _ = deployed(tmp_path, {"a": 12, "b": 2, "c": 6}, LISTED)
    start(strategy, grid)
    (said,) = [text for text in caplog.messages if "begins without" in text]
    assert said.startswith(f"node {KEYS['c']} is not in the list of nodes: ")
    assert counts(strategy) == (2, 2, 2)
    caplog.clear()
    grid.away = {"b", "c"}
    start(strategy, grid, 3)
    assert counts(strategy) == (2, 1, 2)
    start(strategy, grid, 4)
    assert counts(strategy) == (2, 1, 1)
    (said,) = [text for text in caplog.messages if "begins without" in text]
    assert said.startswith("node hospital-b is not connected: ")
    assert said.endswith(KEYS["b"])


def test_a_node_that_answered_and_hangs_when_all_are_asked_once_more_is_named(tmp_path, caplog):
    """What it said before counts no longer; a stranger, whose answer was not asked for, is named as one."""
    held = {"a": saying(None, None, holding(12)), "b": saying(holding(6), None), "c": 6}
    strategy, grid, _ = deployed(tmp_path, held, listing(a=12, b=12), timeout=5)
    start(strategy, grid)
    assert len(held["b"].asked) == 2
    said = [text for text in caplog.messages if "begins without" in text]
    assert said[0].startswith("node hospital-b is without an answer: ")
    assert said[1:] == [text for text in said if "not in the list of nodes" in text and KEYS["c"] in text]

"""A round's replies: each is heard once, and none of what a node announces, sends slowly or never holds another node's."""

import gc
import threading
import weakref
from itertools import count, islice

import pytest
from flwr.app import Message, MessageType, RecordDict
from flwr.supercore.inflatable.inflatable_utils import ObjectPushError

from experiments.engines.grid import set_identity
from fedmf.errors import RunStoppedError
from nodes import Clock
from plans import small_plan
from server import exchange as module
from server.exchange import exchange, pulls_under_way, tasks_per_message

LATE = 1.0  # seconds that a round may last beyond its deadline


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """The time that the exchange sees; at the end of a test no pull is left."""
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(module, "wait", clock.wait)
    yield clock
    clock.release()


class Scripted:
    """A grid whose replies to question k are `script[k]`, one entry a pull: a list of replies, or an exception.

    `calls` has the nodes to which each call sent. Of a message to a node in `lost` nothing is sent, as Flower does with one
    too large.
    """

    def __init__(self, script, lost=()):
        self.script, self.lost = {key: list(steps) for key, steps in script.items()}, lost
        self.ids, self.calls, self.sent = map(str, count()), [], []

    def push_messages(self, messages):
        self.calls.append([message.metadata.dst_node_id for message in messages])
        kept = [message for message in messages if message.metadata.dst_node_id not in self.lost]
        for message, number in zip(kept, islice(self.ids, len(kept)), strict=True):
            message.metadata.__dict__["_message_id"] = number
        self.sent += kept
        return [message.metadata.message_id for message in kept]

    def pull_messages(self, message_ids):
        (question,) = message_ids
        step = self.script[question].pop(0) if self.script.get(question) else []
        if isinstance(step, BaseException):
            raise step
        return step


def questions(nodes):
    set_identity()
    return [Message(RecordDict(), node, MessageType.TRAIN) for node in nodes]


def answer(number):
    (question,) = questions([1])
    question.metadata.__dict__["_message_id"] = str(number)
    return Message(RecordDict(), reply_to=question)


def heard(grid, nodes, timeout=0.2):
    """Return which questions were answered, and whether by an error, in the order of the replies."""
    return [
        (reply.metadata.reply_to_message_id, reply.has_error())
        for reply in exchange(grid, questions(range(1, nodes + 1)), timeout=timeout)
    ]


UNREADABLE = KeyError("shape")  # Flower unpacks while pulling: hostile bytes raise there
OUTCOMES = {
    "in any order and never twice": (
        {"0": [[], [answer(0)]], "1": [[answer(1), answer(1)], [answer(1)]]}, [("1", False), ("0", False)],
    ),
    "unreadable": ({"0": [UNREADABLE], "1": [[answer(1)]]}, [("0", True), ("1", False)]),
    "a broken way is tried again": ({"0": [ConnectionError("down"), [answer(0)]]}, [("0", False)]),
    "of another question": ({"0": [[answer(7)], [answer(0)]]}, [("0", False)]),
}  # fmt: skip


@pytest.mark.parametrize("how", OUTCOMES)
def test_first_replies_count_and_an_unreadable_one_is_an_error_of_its_client_alone(how, caplog):
    script, outcome = OUTCOMES[how]
    assert heard(Scripted(script), len(script), timeout=5) == outcome
    assert "in time" not in caplog.text


def test_the_deadline_ends_the_wait_and_silence_is_silence(clock):
    assert heard(Scripted({"0": [[answer(0)]]}), 2) == [("0", False)]
    assert 0.2 <= clock.now < 0.2 + LATE


def test_each_message_is_sent_whole_before_the_next_is_announced_and_a_lost_one_is_silent():
    grid = Scripted({"0": [UNREADABLE], "1": [UNREADABLE]}, lost=[2])
    replies = exchange(grid, questions([1, 2, 3]), timeout=5)
    assert grid.calls == [[1], [2], [3]]
    assert [reply.metadata.src_node_id for reply in replies] == [1, 3]
    with pytest.raises(RunStoppedError, match="none of the round's tasks"):
        heard(Scripted({}, lost=[1, 2]), 2)


@pytest.mark.parametrize(("losses", "sent"), [(1, True), (9, False)])
def test_a_message_whose_upload_the_superlink_forgot_is_sent_again_under_its_id(losses, sent):
    class Forgets(Scripted):
        def push_messages(self, messages):
            if messages[0].metadata.dst_node_id == 1 and len(self.calls) < losses:
                self.calls.append([1])
                raise ObjectPushError("part", 1, "session")
            return super().push_messages(messages)

    grid = Forgets({"0": [[answer(0)]], "1": [[answer(1)]]})
    assert len(heard(grid, 2, timeout=0.3)) == 1 + sent
    assert grid.calls == [[1]] * (2 if sent else 3) + [[2]]


def test_a_grid_in_this_process_is_given_all_messages_in_one_call_and_pulled_in_this_thread(clock):
    """Its clients train in a pull: in the thread whose settings they know, and whatever it takes."""
    threads = []

    class Here(Scripted):
        is_exhausted = False

        def pull_messages(self, message_ids):
            threads.append(threading.current_thread())
            clock.now += 2 * module._SLOW
            return super().pull_messages(message_ids)

    grid = Here({"0": [[answer(0)]], "1": [[answer(1)]]})
    assert len(heard(grid, 2, timeout=5)) == 2
    assert grid.calls == [[1, 2]]
    assert threads == [threading.current_thread()] * 2


def test_what_ends_the_run_ends_it_from_another_thread_too():
    """Flower's own exception for a run that was stopped is no `Exception`; a grid without workers charges no client."""

    class Stopped(BaseException):
        pass

    for error in (Stopped(), RunStoppedError("no worker is left.")):
        with pytest.raises(type(error)):
            heard(Scripted({"0": [error], "1": [[answer(1)]]}), 2, timeout=5)


# nodes that do not answer


class OneBehind(Scripted):
    """A grid whose node holds each reply back until another message comes (Flower 1.41, after a lost SuperLink)."""

    needed = 1

    def pull_messages(self, message_ids):
        (question,) = message_ids
        return [answer(question)] if len(self.sent) > int(question) + self.needed else []


@pytest.mark.parametrize("needed", [0, 2])
def test_a_node_that_holds_its_reply_back_is_nudged_after_30_and_60_seconds_and_another_is_not(clock, needed):
    grid = OneBehind({})
    grid.needed = needed
    assert heard(grid, 1, timeout=100) == [("0", False)]
    assert clock.now == pytest.approx(90 if needed else 0, abs=0.5)
    nudges = grid.sent[1:]
    assert [nudge.metadata.message_type for nudge in nudges] == [MessageType.QUERY] * needed
    assert all(nudge.metadata.dst_node_id == 1 and not nudge.content for nudge in nudges)


def test_a_nudge_that_cannot_be_sent_holds_no_round(clock):
    class Broken(Scripted):
        def push_messages(self, messages):
            if messages[0].metadata.message_type == MessageType.QUERY:
                clock.last()
                raise ConnectionError("down")
            return super().push_messages(messages)

    assert heard(Broken({}), 1, timeout=40) == []
    assert len(clock.pulls()) == 1
    assert 40 <= clock.now < 40 + LATE


def test_the_log_says_which_nodes_have_not_answered_yet_and_which_never_did(caplog):
    assert heard(Scripted({"1": [[answer(1)]]}), 3, timeout=40) == [("1", False)]
    said = [record.getMessage() for record in caplog.records]
    assert said[0] == "nodes 1, 3: not answered yet, so that a query is sent there"
    assert said[-1] == "nodes 1, 3: not answered in time"


# slow nodes


class Elsewhere(Scripted):
    """A grid whose pulls a test makes as long and as bad as it likes, by `reply(question)`; it knows the node of each question."""

    def __init__(self, reply):
        super().__init__({})
        self.reply, self.pulled, self.at_once, self.most, self.lock = reply, [], 0, 0, threading.Lock()

    def node_of(self, question):
        return self.sent[int(question)].metadata.dst_node_id

    def pull_messages(self, message_ids):
        (question,) = message_ids
        with self.lock:
            self.pulled.append(question)
            self.at_once += 1
            self.most = max(self.most, self.at_once)
        try:
            return self.reply(question)
        finally:
            with self.lock:
                self.at_once -= 1


def asked(grid, nodes, timeout):
    return [reply.metadata.reply_to_message_id for reply in exchange(grid, questions(nodes), timeout=timeout)]


def test_nodes_that_block_once_the_deadline_has_passed_leave_time_for_others(clock):
    def reply(question):
        if clock.now < 0.3:
            return []
        return [answer(question)] if question == "8" else clock.last() or []

    assert asked(Elsewhere(reply), range(1, 10), timeout=0.3) == ["8"]
    assert clock.now < 0.3 + LATE


def test_a_reply_that_is_on_its_way_at_the_deadline_is_waited_for_a_moment(clock):
    assert asked(Elsewhere(lambda question: clock.last(0.6) or [answer(question)]), [1], timeout=0.3) == ["0"]


def test_other_replies_keep_arriving_while_nodes_keep_their_pulls_waiting(clock):
    """Flower's own pull waits minutes for the next part of an announced reply, and for a response as long as bytes come."""
    sends, when = (
        {"3": 0, "4": 0.6, "5": 1.2},
        {},
    )  # question -> seconds after which its node answers; the others block

    def reply(question):
        if question not in sends:
            clock.last()
        return [answer(question)] if clock.now >= sends[question] else []

    for message in exchange(Elsewhere(reply), questions(range(1, 7)), timeout=2):
        when[message.metadata.reply_to_message_id] = clock.now
    assert set(when) == set(sends)
    assert all(sends[question] <= moment < sends[question] + 0.6 for question, moment in when.items())
    assert clock.now < 2 + LATE


def test_a_slow_reply_is_not_lost_and_not_asked_for_twice_and_quick_ones_come_one_at_a_time(clock):
    grid = Elsewhere(lambda question: clock.last(2 if question == "0" else 0.02) or [answer(question)])
    replies = asked(grid, range(1, 7), timeout=20)
    assert replies[-1] == "0"
    assert sorted(grid.pulled) == sorted(replies) == [str(number) for number in range(6)]
    assert grid.most == 2  # so that one reply is in memory at a time, but for the slow one


def test_a_node_has_one_pull_at_a_time_so_that_there_are_no_more_threads_than_slow_nodes(clock):
    grid = Elsewhere(lambda question: clock.last() or [])
    before = pulls_under_way()
    assert asked(grid, [1] * 20 + [2] * 20, timeout=0.5) == []
    assert grid.most == len(clock.pulls()) == pulls_under_way() - before == 2
    clock.release()
    assert not clock.pulls()  # they end with their calls


@pytest.mark.parametrize(("took", "many"), [(0.4, 30), (0.08, 60)])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_node_whose_every_reply_takes_a_while_delays_no_other_nodes_replies(clock, took, many, is_first):
    """Whether each is slow, or each is just quick enough and they are many; and wherever its messages stand."""

    def reply(question):
        clock.last(took if grid.node_of(question) == 1 else 0.005)
        return [answer(question)]

    grid = Elsewhere(reply)
    nodes = sorted([1] * many + [2] * 40, reverse=not is_first)
    when = []
    for message in exchange(grid, questions(nodes), timeout=3.5):
        if grid.node_of(message.metadata.reply_to_message_id) == 2:
            when.append(clock.now)
    assert len(when) == 40
    assert max(when) < 2.5
    assert grid.most <= 2


def test_a_node_has_one_thread_across_rounds_and_its_late_reply_of_an_old_round_is_dropped(clock):
    """It may be as large as the model: nothing of it is kept."""
    brought = []

    def reply(question):
        found = answer(question)
        if question == "0":
            clock.last()
            brought.append(weakref.ref(found))
        return [found]

    grid = Elsewhere(reply)
    assert asked(grid, [1, 2], timeout=0.3) == ["1"]
    for number in range(2, 8, 2):
        assert asked(grid, [1, 2], timeout=0.3) == [str(number + 1)]
        assert len(clock.pulls()) == 1
    assert grid.most == 2  # the one that lasts, and the other node's
    assert grid.pulled.count("0") == 1
    clock.release()
    assert not clock.pulls()
    assert brought
    gc.collect()
    assert brought[0]() is None
    assert asked(grid, [1, 2], timeout=5) == ["8", "9"]  # its own new reply, and nothing of the old round


@pytest.mark.parametrize(
    "settings", [{}, {"keep_probability": 1.0}, {"value_type": "int8"}, {"dimension": 3_000_000}]
)
def test_a_message_holds_no_more_values_than_the_model_or_four_mebibytes(settings):
    plan = small_plan(**settings)
    tasks, largest = tasks_per_message(plan), max(4 << 20, 4 * plan.dimension)
    assert tasks >= 1
    assert tasks * plan.value_bytes <= largest < (tasks + 1) * plan.value_bytes

import time
from itertools import count, islice

import pytest
from flwr.app import Message, MessageType, RecordDict
from flwr.supercore.inflatable.inflatable_utils import ObjectPushError

from experiments.engines.grid import set_identity
from fedmf.errors import RunStoppedError
from plans import small_plan
from server.exchange import exchange, tasks_per_message


class Scripted:
    """A grid whose replies to question k are `script[k]`, one entry a pull: a list of replies, or an exception."""

    def __init__(self, script, ids=None):
        self._script = {key: list(steps) for key, steps in script.items()}
        self._ids = map(str, count()) if ids is None else iter(ids)

    def push_messages(self, messages):
        sent = list(islice(self._ids, len(messages)))
        for message, number in zip(messages, sent, strict=False):
            message.metadata.__dict__["_message_id"] = number
        return sent

    def pull_messages(self, message_ids):
        (question,) = message_ids
        step = self._script[question].pop(0) if self._script.get(question) else []
        if isinstance(step, Exception):
            raise step
        return step


def questions(count):
    set_identity()
    return [Message(RecordDict(), node, MessageType.TRAIN) for node in range(1, count + 1)]


def answer(number):
    (question,) = questions(1)
    question.metadata.__dict__["_message_id"] = str(number)
    return Message(RecordDict(), reply_to=question)


def heard(grid, count, timeout=0.2):
    return [
        (reply.metadata.reply_to_message_id, reply.has_error())
        for reply in exchange(grid, questions(count), timeout=timeout)
    ]


def test_first_replies_in_whatever_order_and_never_twice():
    grid = Scripted({"0": [[], [answer(0)]], "1": [[answer(1), answer(1)], [answer(1)]]})
    assert heard(grid, 2, timeout=5) == [("1", False), ("0", False)]


def test_a_reply_that_cannot_be_read_is_an_error_of_that_client_alone():
    """Flower unpacks while pulling: hostile bytes raise there."""
    grid = Scripted({"0": [KeyError("shape")], "1": [[answer(1)]]})
    assert heard(grid, 2, timeout=5) == [("0", True), ("1", False)]


class Calls(Scripted):
    """A grid that notes how many messages each call sends; of those to node 2 it sends none, as Flower for one too large."""

    def __init__(self, script):
        super().__init__(script)
        self.calls = []

    def push_messages(self, messages):
        self.calls.append([message.metadata.dst_node_id for message in messages])
        return super().push_messages([message for message in messages if message.metadata.dst_node_id != 2])


def test_each_message_is_sent_whole_before_the_next_is_announced():
    """And one that is not sent takes no other one's place."""
    unreadable = KeyError("shape")
    grid = Calls({"0": [unreadable], "1": [unreadable]})
    replies = exchange(grid, questions(3), timeout=5)
    assert grid.calls == [[1], [2], [3]]
    assert [reply.metadata.src_node_id for reply in replies] == [1, 3]


@pytest.mark.parametrize(("losses", "sent"), [(1, True), (9, False)])
def test_a_message_whose_upload_the_superlink_forgot_is_sent_again_under_its_id(losses, sent):
    class Forgets(Calls):
        def push_messages(self, messages):
            self.calls.append([message.metadata.dst_node_id for message in messages])
            if messages[0].metadata.dst_node_id == 1 and len(self.calls) <= losses:
                raise ObjectPushError("part", 1, "session")
            return Scripted.push_messages(self, messages)

    grid = Forgets({"0": [[answer(0)]], "1": [[answer(1)]]})
    replies = list(exchange(grid, questions(2), timeout=0.3))
    assert len(replies) == 1 + sent
    assert grid.calls == [[1]] * (2 if sent else 3) + [[2]]


def test_a_grid_in_this_process_is_given_all_messages_in_one_call():
    grid = Calls({"0": [[answer(0)]], "1": [[answer(1)]]})
    grid.is_exhausted = False
    messages = [message for message in questions(3) if message.metadata.dst_node_id != 2]
    assert len(list(exchange(grid, messages, timeout=5))) == 2
    assert grid.calls == [[1, 3]]


def test_a_broken_way_is_tried_again():
    grid = Scripted({"0": [ConnectionError("down"), [answer(0)]]})
    assert heard(grid, 1, timeout=5) == [("0", False)]


def test_the_deadline_ends_the_wait_and_silence_is_silence():
    started = time.monotonic()
    assert heard(Scripted({"0": [[answer(0)]]}), 2) == [("0", False)]
    assert 0.2 <= time.monotonic() - started < 2


def test_a_node_whose_reply_blocks_until_the_deadline_silences_no_other():
    class Blocking(Scripted):
        def pull_messages(self, message_ids):
            time.sleep(0.3 if message_ids == ["0"] else 0)
            return super().pull_messages(message_ids)

    assert heard(Blocking({"1": [[], [answer(1)]]}), 2, timeout=0.2) == [("1", False)]


def test_replies_to_other_questions_are_dropped():
    assert heard(Scripted({"0": [[answer(7)], [answer(0)]]}), 1, timeout=5) == [("0", False)]


def test_tasks_that_could_not_be_sent_are_silent_and_none_at_all_stops_the_run():
    assert heard(Scripted({"0": [[answer(0)]]}, ids=["0", None]), 2, timeout=5) == [("0", False)]
    for ids in ([], [None, None]):
        with pytest.raises(RunStoppedError, match="none of the round's tasks"):
            heard(Scripted({}, ids=ids), 2)


class OneBehind:
    """A grid whose node holds each reply back until another message comes (Flower 1.41, after a lost SuperLink)."""

    def __init__(self, nudges_needed=1):
        self.messages, self._needed = [], nudges_needed

    def push_messages(self, messages):
        for message in messages:
            message.metadata.__dict__["_message_id"] = str(len(self.messages))
            self.messages.append(message)
        return [message.metadata.message_id for message in messages]

    def pull_messages(self, message_ids):
        (question,) = message_ids
        return [answer(question)] if len(self.messages) > int(question) + self._needed else []


def test_a_node_that_holds_its_reply_back_is_nudged(monkeypatch):
    monkeypatch.setattr("server.exchange._PATIENCE", 0.05)
    grid = OneBehind(nudges_needed=2)
    assert heard(grid, 1, timeout=5) == [("0", False)]
    nudges = grid.messages[1:]
    assert [nudge.metadata.message_type for nudge in nudges] == [MessageType.QUERY] * 2
    assert all(nudge.metadata.dst_node_id == 1 and not nudge.content for nudge in nudges)


def test_who_answers_in_time_is_not_nudged(monkeypatch):
    monkeypatch.setattr("server.exchange._PATIENCE", 60)
    assert heard(OneBehind(), 1) == []
    grid = OneBehind(nudges_needed=0)
    assert heard(grid, 1) == [("0", False)]
    assert len(grid.messages) == 1


def test_the_log_says_who_has_not_answered_yet_and_who_never_did(monkeypatch, caplog):
    monkeypatch.setattr("server.exchange._PATIENCE", 0.05)
    assert heard(Scripted({"1": [[answer(1)]]}), 3, timeout=0.2) == [("1", False)]
    said = [record.getMessage() for record in caplog.records]
    assert said[0] == "2 nodes (1, 3) have not answered yet and are sent a query"
    assert said[-1] == "2 nodes (1, 3) have not answered in time"


def test_nothing_is_said_of_who_answered(caplog):
    assert heard(Scripted({"0": [[answer(0)]]}), 1, timeout=5) == [("0", False)]
    assert not caplog.records


def test_a_nudge_that_cannot_be_sent_ends_nothing(monkeypatch):
    monkeypatch.setattr("server.exchange._PATIENCE", 0.01)
    grid = Scripted({"0": [[], [], [], [answer(0)]]})
    push = grid.push_messages

    def broken(messages):
        if messages[0].metadata.message_type == MessageType.QUERY:
            raise ConnectionError("down")
        return push(messages)

    grid.push_messages = broken
    assert heard(grid, 1, timeout=5) == [("0", False)]


@pytest.mark.parametrize(
    "settings", [{}, {"keep_probability": 1.0}, {"value_type": "int8"}, {"dimension": 3_000_000}]
)
def test_a_message_holds_no_more_values_than_the_model_or_four_mebibytes(settings):
    plan = small_plan(**settings)
    tasks = tasks_per_message(plan)
    largest = max(4 << 20, 4 * plan.dimension)
    assert tasks >= 1
    assert tasks * plan.value_bytes <= largest < (tasks + 1) * plan.value_bytes


def test_a_grid_that_has_nobody_left_to_answer_stops_the_run_and_charges_no_client():
    with pytest.raises(RunStoppedError, match="no worker"):
        heard(Scripted({"0": [RunStoppedError("no worker is left.")], "1": [[answer(1)]]}), 2, timeout=5)

import time

import pytest
from flwr.app import Message, MessageType, RecordDict

from experiments.local_grid import set_identity
from fedmf.errors import RunStoppedError
from server.exchange import exchange


class Scripted:
    """A grid whose replies to question k are `script[k]`, one entry a pull: a list of replies, or an exception."""

    def __init__(self, script, ids=None):
        self._script, self._ids = {key: list(steps) for key, steps in script.items()}, ids

    def push_messages(self, messages):
        for number, message in enumerate(messages):
            message.metadata.__dict__["_message_id"] = str(number)
        return [str(number) for number in range(len(messages))] if self._ids is None else self._ids

    def pull_messages(self, message_ids):
        (question,) = message_ids
        step = self._script[question].pop(0) if self._script.get(question) else []
        if isinstance(step, Exception):
            raise step
        return step


def questions(count):
    set_identity()
    return [Message(RecordDict(), 1, MessageType.TRAIN) for _ in range(count)]


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


def test_a_broken_way_is_tried_again():
    grid = Scripted({"0": [ConnectionError("down"), [answer(0)]]})
    assert heard(grid, 1, timeout=5) == [("0", False)]


def test_the_deadline_ends_the_wait_and_silence_is_silence():
    started = time.monotonic()
    assert heard(Scripted({"0": [[answer(0)]]}), 2) == [("0", False)]
    assert 0.2 <= time.monotonic() - started < 2


def test_replies_to_other_questions_are_dropped():
    assert heard(Scripted({"0": [[answer(7)], [answer(0)]]}), 1, timeout=5) == [("0", False)]


def test_tasks_that_could_not_be_sent_are_silent_and_none_at_all_stops_the_run():
    assert heard(Scripted({"0": [[answer(0)]]}, ids=["0", None]), 2, timeout=5) == [("0", False)]
    for ids in ([], [None, None]):
        with pytest.raises(RunStoppedError, match="none of the round's tasks"):
            heard(Scripted({}, ids=ids), 2)

"""What nodes announce, send slowly or never holds a round no longer than its deadline, and no other node's reply."""

import gc
import threading
import time
import weakref
from itertools import count, pairwise

import pytest
from flwr.app import Message, MessageType, RecordDict

from experiments.engines.grid import InProcessWorker, LocalGrid, set_identity
from server import exchange as module
from server.exchange import exchange
from server.pulling import THREAD, Pulls, pulls_under_way
from slow_superlink import DRIPS, NEVER, slow_superlink

pytestmark = pytest.mark.long

LATE = 1.0  # what a round may last beyond its deadline


def heard(nodes, timeout):
    """The nodes that were heard, when each was, and how long the exchange lasted."""
    set_identity()
    with slow_superlink(nodes) as (_, grid):
        messages = [Message(RecordDict(), node, MessageType.TRAIN) for node in nodes]
        begun, when = time.monotonic(), {}
        for reply in exchange(grid, messages, timeout=timeout):
            when[reply.content["r"]["from"]] = time.monotonic() - begun
        return when, time.monotonic() - begun


def test_replies_come_over_http():
    when, lasted = heard({1: 0, 2: 0, 3: 0.3}, timeout=10)
    assert set(when) == {1, 2, 3}
    assert lasted < 3


@pytest.mark.parametrize("how", [NEVER, DRIPS])
def test_a_reply_that_is_announced_and_not_sent_holds_a_round_no_longer_than_its_deadline(how):
    """Flower's own pull waits minutes for the next part, and for a response as long as bytes come."""
    when, lasted = heard({1: how, 2: 0}, timeout=1.5)
    assert set(when) == {2}
    assert 1.5 <= lasted < 1.5 + LATE


def test_pulls_that_nobody_waits_for_any_more_are_counted_until_they_are_over():
    set_identity()
    assert pulls_under_way() == 0
    with slow_superlink({1: NEVER, 2: NEVER, 3: 0}) as (_, grid):
        messages = [Message(RecordDict(), node, MessageType.TRAIN) for node in (1, 2, 3)]
        assert len(list(exchange(grid, messages, timeout=0.5))) == 1
        assert pulls_under_way() == 2
    deadline = time.monotonic() + 10
    while pulls_under_way() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert pulls_under_way() == 0


def test_other_replies_keep_arriving_while_nodes_keep_their_pulls_waiting(monkeypatch):
    """Three hold theirs back in three ways; the others are heard within a moment of having sent, in the order of it."""
    monkeypatch.setattr(module, "_SLOW", 0.2)
    when, lasted = heard({1: NEVER, 2: DRIPS, 3: None, 4: 0, 5: 1.0, 6: 2.0}, timeout=3)
    assert set(when) == {4, 5, 6}
    assert when[4] < 1
    assert 1.0 <= when[5] < 1.8
    assert 2.0 <= when[6] < 2.5
    assert lasted < 3 + LATE


def test_a_reply_announced_at_the_deadline_makes_no_other_node_silent():
    """Many at once: a moment for each of them would be longer than what is left."""
    nodes = dict.fromkeys(range(1, 9), NEVER) | {9: 0.95, 10: 0.95}
    when, lasted = heard(nodes, timeout=1.0)
    assert set(when) == {9, 10}
    assert lasted < 1.0 + LATE


class Elsewhere:
    """A grid whose pulls a test makes as long and as bad as it likes; no reply but by `reply(question)`."""

    def __init__(self, reply):
        self.reply, self.pulled, self.at_once, self.most = reply, [], 0, 0
        self.lock, self.numbers = threading.Lock(), count()

    def push_messages(self, messages):
        for message in messages:
            message.metadata.__dict__["_message_id"] = str(next(self.numbers))
        return [message.metadata.message_id for message in messages]

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


def answer(question, node=1):
    set_identity()
    message = Message(RecordDict(), node, MessageType.TRAIN)
    message.metadata.__dict__["_message_id"] = question
    return Message(RecordDict(), reply_to=message)


def asked(grid, nodes, timeout):
    set_identity()
    messages = [Message(RecordDict(), node, MessageType.TRAIN) for node in nodes]
    return [reply.metadata.reply_to_message_id for reply in exchange(grid, messages, timeout=timeout)]


def test_nodes_that_block_once_the_deadline_has_passed_leave_time_for_others():
    release, begun = threading.Event(), time.monotonic()

    def reply(question):
        if time.monotonic() < begun + 0.3:
            return []
        return [answer(question)] if question == "8" else release.wait(30) and []

    assert asked(Elsewhere(reply), range(1, 10), timeout=0.3) == ["8"]
    assert time.monotonic() - begun < 0.3 + LATE
    release.set()


def test_a_slow_reply_is_not_lost_and_not_asked_for_twice(monkeypatch):
    monkeypatch.setattr(module, "_SLOW", 0.1)
    grid = Elsewhere(lambda question: time.sleep(0.5 if question == "0" else 0) or [answer(question)])
    assert asked(grid, [1, 2], timeout=5) == ["1", "0"]
    assert sorted(grid.pulled) == ["0", "1"]


def test_a_node_has_one_pull_at_a_time_so_that_slow_ones_need_no_more_threads_than_there_are_nodes(
    monkeypatch,
):
    monkeypatch.setattr(module, "_SLOW", 0.01)
    release, before = threading.Event(), threading.active_count()
    grid = Elsewhere(lambda question: release.wait(30) and [])
    assert asked(grid, [1] * 20 + [2] * 20, timeout=0.5) == []
    assert grid.most == 2
    release.set()
    for _ in range(200):
        if threading.active_count() <= before:
            break
        time.sleep(0.02)
    assert threading.active_count() <= before  # they end with their calls


def test_who_is_quick_is_pulled_one_after_the_other():
    """So that one reply is in memory at a time."""
    grid = Elsewhere(lambda question: time.sleep(0.02) or [answer(question)])
    assert len(asked(grid, range(1, 21), timeout=10)) == 20
    assert grid.most == 1


class Stopped(BaseException):
    """As Flower's own for a run that was stopped: no `Exception`."""


def test_what_ends_the_run_ends_it_from_another_thread_too():
    def stop(question):
        raise Stopped

    with pytest.raises(Stopped):
        asked(Elsewhere(stop), [1], timeout=5)


def test_a_query_that_cannot_be_sent_holds_no_round(monkeypatch):
    monkeypatch.setattr(module, "_PATIENCE", 0.05)
    release = threading.Event()

    class Blocked(Elsewhere):
        def push_messages(self, messages):
            if messages[0].metadata.message_type == MessageType.QUERY:
                release.wait(30)
            return super().push_messages(messages)

    begun = time.monotonic()
    assert asked(Blocked(lambda question: []), [1], timeout=0.3) == []
    assert time.monotonic() - begun < 0.3 + LATE
    release.set()


def test_a_grid_in_this_process_is_called_in_this_thread():
    """Its clients train in a pull: in the thread whose settings they know, and whatever it takes."""
    from flwr.clientapp import ClientApp

    app, threads = ClientApp(), []

    @app.train()
    def train(message, context):
        threads.append(threading.current_thread())
        time.sleep(0.1)
        return Message(RecordDict(), reply_to=message)

    set_identity()
    grid = LocalGrid(InProcessWorker(app))
    with Pulls(grid) as pulls:
        (question,) = grid.push_messages([Message(RecordDict(), 1, MessageType.TRAIN)])
        assert len(pulls.pull(question, 1, 0.01)) == 1
    assert threads == [threading.current_thread()]


def test_pauses_between_two_polls_are_short():
    """A tenth of a second at most: what a reply may lie on the server unread."""
    assert module._SHORTEST_PAUSE <= module._LONGEST_PAUSE <= 0.1
    times = []
    grid = Elsewhere(lambda question: times.append(time.monotonic()) or [])
    asked(grid, [1], timeout=1.5)
    assert max(after - before for before, after in pairwise(times)) < 0.3


class Numbered(Elsewhere):
    """A grid that gives each message a number of its own, in all exchanges, and knows its node."""

    def __init__(self, reply):
        super().__init__(reply)
        self.nodes = {}

    def push_messages(self, messages):
        for message in messages:
            question = str(len(self.nodes))
            self.nodes[question] = message.metadata.dst_node_id
            message.metadata.__dict__["_message_id"] = question
        return [message.metadata.message_id for message in messages]


@pytest.mark.parametrize(("took", "many"), [(0.4, 30), (0.08, 60)])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_node_whose_every_reply_takes_a_while_delays_no_other_nodes_replies(took, many, is_first):
    """Whether each is slow, or each is just quick enough and they are many; and wherever its messages stand."""

    def reply(question):
        time.sleep(took if grid.nodes[question] == 1 else 0.005)
        return [answer(question)]

    set_identity()
    grid = Numbered(reply)
    nodes = sorted([1] * many + [2] * 40, reverse=not is_first)
    messages = [Message(RecordDict(), node, MessageType.TRAIN) for node in nodes]
    begun, when = time.monotonic(), []
    for message in exchange(grid, messages, timeout=3.5):
        if grid.nodes[message.metadata.reply_to_message_id] == 2:
            when.append(time.monotonic() - begun)
    assert len(when) == 40
    assert max(when) < 2.5
    assert grid.most <= 2


def pull_threads(before):
    return [thread for thread in threading.enumerate() if thread.name == THREAD and thread not in before]


def wait_until(is_so):
    for _ in range(250):
        if is_so():
            return True
        time.sleep(0.02)
    return False


def test_a_node_has_one_thread_across_rounds_and_its_late_reply_of_an_old_round_is_dropped():
    release, before = threading.Event(), threading.enumerate()

    def reply(question):
        if question == "0":
            release.wait(30)
        return [answer(question)]

    grid = Numbered(reply)
    assert asked(grid, [1, 2], timeout=0.3) == ["1"]
    for number in range(2, 8, 2):
        assert asked(grid, [1, 2], timeout=0.3) == [str(number + 1)]
        assert wait_until(lambda: len(pull_threads(before)) == 1)
    assert grid.most == 2  # the one that lasts, and the other node's
    assert grid.pulled.count("0") == 1
    release.set()
    assert wait_until(lambda: not pull_threads(before))
    assert asked(grid, [1, 2], timeout=5) == ["8", "9"]  # its own new reply, and nothing of the old round


def test_what_a_late_pull_brings_is_not_kept_after_its_round():
    """It may be as large as the model."""
    release, before, brought = threading.Event(), threading.enumerate(), []

    def reply(question):
        release.wait(30)
        late = answer(question)
        brought.append(weakref.ref(late))
        return [late]

    grid = Numbered(reply)
    assert asked(grid, [1], timeout=0.2) == []
    release.set()
    assert wait_until(lambda: not pull_threads(before) and brought)
    gc.collect()
    assert brought[0]() is None


def test_nobody_waits_again_for_a_node_that_was_slow_once():
    grid = Elsewhere(lambda question: time.sleep(0.3) or [answer(question)])
    with Pulls(grid) as pulls:
        assert pulls.pull("0", 1, 0.1) == []
        assert wait_until(lambda: pulls.pull("0", 1, 0.1))
        begun = time.monotonic()
        assert pulls.pull("1", 1, 5.0) == []
        assert time.monotonic() - begun < 0.2
        assert len(pulls.pull("2", 2, 5.0)) == 1  # another node is waited for

import sys

import flwr
import pytest
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.task_identity import TaskIdentity

from experiments.engines.grid import Failure, FaultyWorker, InProcessWorker, LocalGrid, call_app, set_identity
from experiments.settings.engine import Faults
from fedmf.randomness import PublicSeed
from fedmf.updates import wire
from server.exchange import exchange


def echo_app():
    """A ClientApp that answers with the client's name; "raise" and "exit" raise."""
    app = ClientApp()

    @app.train()
    def train(message, context):
        (name,) = message.content.config_records[wire.TASK][wire.CLIENT]
        if name == "raise":
            raise ValueError("the client's own data: 42")
        if name == "exit":
            sys.exit(3)
        return Message(RecordDict({"name": ConfigRecord({"name": name})}), reply_to=message)

    return app


def tasks(*names):
    set_identity()
    fields = [ConfigRecord({wire.CLIENT: [name], wire.EPOCH: 0, wire.STEP: 0}) for name in names]
    return [Message(RecordDict({wire.TASK: task}), 1, MessageType.TRAIN) for task in fields]


def named(replies):
    return sorted("error" if r.has_error() else r.content.config_records["name"]["name"] for r in replies)


def test_private_parts_of_flower_are_those_of_the_version_they_were_checked_with():
    """TaskIdentity and message ids: look at experiments/engines/grid.py before changing this number."""
    assert flwr.__version__.startswith(("1.41.", "1.42."))
    grid = LocalGrid(InProcessWorker(echo_app()))
    assert (TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id) == (1, 1, 1)
    (message,) = tasks("a")
    assert grid.push_messages([message]) == [message.metadata.message_id]


def test_every_task_is_answered_once_and_then_the_grid_is_exhausted():
    grid = LocalGrid(InProcessWorker(echo_app()))
    assert named(grid.send_and_receive(tasks("a", "b", "c"))) == ["a", "b", "c"]
    ids = grid.push_messages(tasks("d"))
    assert not grid.is_exhausted
    assert named(grid.pull_messages(ids)) == ["d"]
    assert grid.pull_messages(ids) == []
    assert grid.is_exhausted


@pytest.mark.parametrize("name", ["raise", "exit"])
def test_what_a_client_raises_is_an_error_reply_without_its_data(name):
    (message,) = tasks(name)
    reply = call_app(echo_app(), message, None)
    assert reply.has_error()
    assert "42" not in str(reply.error.reason)


def test_faults_happen_as_often_as_asked_and_again_the_same():
    names = [str(k) for k in range(400)]
    faults = Faults(drop_out=0.2, error=0.1, delay=0.1, duplicate=0.5)
    outcomes = []
    for _ in "ab":
        grid = LocalGrid(FaultyWorker(InProcessWorker(echo_app()), faults, PublicSeed(3)))
        replies = []
        ids = grid.push_messages(tasks(*names))
        for message_id in ids:
            replies += grid.pull_messages([message_id])
        outcomes.append(named(replies))
    assert outcomes[0] == outcomes[1]
    answered = set(outcomes[0]) - {"error"}
    assert outcomes[0].count("error") == pytest.approx(40, abs=25)
    assert len(answered) == pytest.approx(400 * 0.6, abs=45)
    assert len(outcomes[0]) - outcomes[0].count("error") - len(answered) == pytest.approx(120, abs=40)


def test_late_replies_come_with_the_next_round():
    grid = LocalGrid(FaultyWorker(InProcessWorker(echo_app()), Faults(delay=1.0), PublicSeed(3)))
    first = grid.push_messages(tasks("a"))
    assert grid.pull_messages(first) == []
    second = grid.push_messages(tasks("b"))
    (late,) = grid.pull_messages(second)
    assert late.metadata.reply_to_message_id == first[0]


def test_failures_are_reported_whatever_message_they_share():
    heard = []
    grid = LocalGrid(InProcessWorker(echo_app()), heard.append)
    assert len(list(exchange(grid, tasks("raise", "a", "b"), timeout=5))) == 3
    assert heard == [Failure("raise", "ValueError")]

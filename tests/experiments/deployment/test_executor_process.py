"""What a task's process does about a run's code: it plays that which is installed, or says that it is another, and no more."""

import logging
from types import SimpleNamespace

import pytest
import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict

from experiments.deployment import apps, executor, executor_process, flower_tasks, resident, same_code
from experiments.deployment.executor import CODE_CHANGED
from experiments.deployment.executor_process import player
from experiments.engines.grid import set_identity
from fedmf.updates import wire
from server.messages import says_other_code

OURS = {"client/app.py": "1"}


class Data:
    """A node whose app reads the data of clients, and fails as they make it fail."""

    def __init__(self):
        self.read = []

    def app(self):
        def play(message, context):
            self.read.append(message)
            return Message(RecordDict({"update": ConfigRecord({wire.VALUES: [b"1"]})}), reply_to=message)

        return play


@pytest.fixture
def played(monkeypatch):
    """Play a message with a run's files, those on disk, and those that were imported; return data, reply, code and texts."""

    def run(kind, bundled=OURS, on_disk=OURS, imported=OURS):
        set_identity()

        def play_task(address, token, check, app):
            message = Message(RecordDict(), 1, kind)
            message.metadata.__dict__["_message_id"] = "m"
            check(b"")
            replies.append(app(message, Context(7, 1, {}, RecordDict(), {"overrides": "seed=3"})))

        monkeypatch.setattr(flower_tasks, "play_task", play_task)
        monkeypatch.setattr(same_code, "bundled_files", lambda bundle: bundled)
        monkeypatch.setattr(executor_process, "installed_files", lambda: on_disk)
        data, replies, texts = Data(), [], []
        code = player("127.0.0.1:1", data, imported)("token", texts.append)
        (reply,) = replies
        return data, reply, code, texts

    return run


@pytest.mark.parametrize("is_ready", [True, False])
def test_only_a_node_that_is_ready_says_that_it_is(monkeypatch, caplog, is_ready):
    """Whoever waits for these words in its log, as the page for hospitals says, waits for a node that takes part."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(
        resident,
        "Resident",
        lambda overrides: SimpleNamespace(is_ready=is_ready, learn_run=None, refresh=None),
    )
    monkeypatch.setattr(apps, "show_logs", lambda: None)
    monkeypatch.setattr(flower_tasks, "TaskSource", lambda *given: SimpleNamespace(acquire=lambda: None))
    monkeypatch.setattr(executor, "warn_of_shared_generators", lambda known: None)
    monkeypatch.setattr(executor.Executor, "run", lambda self: True)
    monkeypatch.setattr(torch, "set_num_threads", lambda number: None)
    monkeypatch.setattr(logging.getLogger("flwr"), "filters", [])
    settings = {"overrides": "", "address": "127.0.0.1:1", "secret": "00", "pause": 1.0}
    assert executor_process.serve(settings, OURS) == 0
    assert ("ready for messages" in caplog.text) is is_ready
    assert ("waits for messages, and is not ready," in caplog.text) is not is_ready


@pytest.mark.parametrize("kind", ["train", "query"])
def test_the_runs_own_code_is_played(played, kind):
    data, reply, code, texts = played(kind)
    assert len(data.read) == 1
    assert not says_other_code(reply)
    assert (code, texts) == (0, ["seed=3"])


@pytest.mark.parametrize("kind", ["train", "query"])
@pytest.mark.parametrize("which", ["bundled", "on_disk"])
def test_other_code_is_said_before_any_data_are_read_and_the_log_names_the_file(played, kind, which, caplog):
    """The run's differs from what is installed, or what is installed from what was imported."""
    caplog.set_level(logging.ERROR)
    data, reply, code, texts = played(kind, **{which: {"client/app.py": "2"}})
    assert data.read == texts == []
    assert says_other_code(reply)
    assert code == (CODE_CHANGED if which == "on_disk" else 0)
    assert "client/app.py differs" in caplog.text


def test_what_the_app_raises_is_no_word_about_code(played, monkeypatch):
    """It may hang on a client's data: who could raise this error in the app would else decide who is heard."""

    def failing(self):
        def play(message, context):
            raise same_code.OtherCodeError("the run's code is not the code installed here")

        return play

    monkeypatch.setattr(Data, "app", failing)
    with pytest.raises(same_code.OtherCodeError):
        played("train")

"""The grid of a simulation: faults, failures, and processes that die or cannot begin: which client is charged, and which are run again."""

import sys
from concurrent.futures import BrokenExecutor, Future

import pytest
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp

from client.app import pack, part_of, unpack
from experiments.engines import processes
from experiments.engines.grid import (
    Failure,
    FaultyWorker,
    InProcessWorker,
    LocalGrid,
    clients_of,
    set_identity,
)
from experiments.engines.processes import CannotBegin, Pool
from experiments.settings.groups import Faults
from fedmf.errors import RunStoppedError
from fedmf.randomness import PublicSeed
from fedmf.updates import wire
from poison import joint, values_in
from server.exchange import exchange


class Scripted:
    """A process that runs at once: `fate(names)` may raise; `begins` holds what its next starts raise, None for nothing."""

    def __init__(self, fate=lambda names: None, begins=()):
        self._fate, self._begins, self.has_ended = fate, iter(begins), False

    def begin(self):
        return self._future(next(self._begins, None))

    def call(self, function, message):
        names = clients_of(message)
        try:
            self._fate(names)
        except BrokenExecutor as error:
            return self._future(error)
        return self._future(None, (pack([name.encode() for name in names], message), []))

    def _future(self, error, result=None):
        future = Future()
        future.set_result(result) if error is None else future.set_exception(error)
        return future

    def end(self):
        self.has_ended = True


def dies_once():
    """Let a process die the first time that it runs clients."""
    deaths = [BrokenExecutor]

    def fate(names):
        if deaths:
            raise deaths.pop()

    return fate


def dies_at(name):
    """Let a process die whenever it runs the client `name`."""

    def fate(names):
        if name in names:
            raise BrokenExecutor

    return fate


def run(pool, *messages, heard=None):
    """Return {client: values} of the messages to some clients each."""
    grid = LocalGrid(pool, [].append if heard is None else heard.append)
    sent = {}
    for reply in grid.send_and_receive([joint(*clients) for clients in messages]):
        names = messages[int(reply.metadata.reply_to_message_id) - 1]
        sent |= dict(zip(names, values_in(reply), strict=True))
    return sent


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    set_identity()
    monkeypatch.setattr(processes, "PAUSE", 0)


FULL = CannotBegin("MemoryError: no room on the device")
ALL = {name: name.encode() for name in "abcdef"}


@pytest.mark.parametrize("workers", [1, 3])
def test_a_client_that_kills_every_process_is_charged_and_no_other(workers):
    heard, pool = [], Pool([Scripted(dies_at("die")) for _ in range(workers)])
    assert run(pool, "ab", ["c", "die", "d"], "ef", heard=heard) == {**ALL, "die": wire.NO_VALUES}
    assert heard == [Failure("die", "its process died")]
    assert run(pool, *ALL) == ALL


def test_a_client_whose_process_dies_of_what_another_left_there_is_run_in_a_new_one():
    """Client "leaves" trains well, and the next client in the same process dies."""
    spoilt = []

    def fate(names):
        if spoilt:
            spoilt.clear()
            raise BrokenExecutor
        dies_at("die")(names)
        spoilt.extend(name for name in names if name == "leaves")

    heard = []
    sent = run(Pool([Scripted(fate)]), ["die", "leaves", "a"], heard=heard)
    assert heard == [Failure("die", "its process died")]
    assert sent == {"die": wire.NO_VALUES, "leaves": b"leaves", "a": b"a"}


def test_a_process_that_cannot_begin_again_is_given_up_and_the_others_run_its_clients(caplog):
    full = Scripted(dies_once(), [None, FULL, FULL, FULL])
    assert run(Pool([full, Scripted()]), "abc", "def") == ALL
    assert full.has_ended
    assert "cannot begin (MemoryError: no room on the device); the others run its clients" in caplog.text


@pytest.mark.parametrize("begins", [[FULL] * 3, [None, FULL, FULL, FULL]], ids=["at first", "again"])
def test_where_no_process_can_begin_nothing_is_answered_and_nobody_charged(begins):
    heard, pool = [], Pool([Scripted(dies_at("a"), begins)])
    for _ in range(2):
        with pytest.raises(
            RunStoppedError, match=r"can begin \(MemoryError: no room on the device\); 3 tries"
        ):
            run(pool, ALL, heard=heard)
    assert heard == []


def test_a_message_in_parts_has_nobody_elses_key():
    whole = joint(*"abc")
    given = whole.content.config_records[wire.TASK]
    for number, task in enumerate(unpack(whole)[0]):
        part = part_of(whole, [task])
        assert part.metadata.message_id == whole.metadata.message_id
        assert part.content[wire.MODEL] is whole.content[wire.MODEL]
        own = (wire.CLIENT, wire.MASK_KEY)
        assert dict(part.content.config_records[wire.TASK]) == {
            name: [given[name][number]] if name in own else given[name] for name in given
        }
    assert given[wire.CLIENT] == [*"abc"]


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


@pytest.mark.parametrize("name", ["raise", "exit"])
def test_what_a_client_raises_is_reported_and_is_an_error_reply_without_its_data(name):
    heard, (message,) = [], tasks(name)
    grid = LocalGrid(InProcessWorker(echo_app()), heard.append)
    (reply,) = exchange(grid, [message], timeout=5)
    assert reply.has_error()
    assert "42" not in str(reply.error.reason)
    assert heard == [Failure(name, {"raise": "ValueError", "exit": "SystemExit"}[name])]


def test_faults_happen_as_often_as_asked_and_again_the_same():
    names = [str(k) for k in range(400)]
    faults = Faults(drop_out=0.2, error=0.1, delay=0.1, duplicate=0.5)
    outcomes = []
    for _ in "ab":
        grid = LocalGrid(FaultyWorker(InProcessWorker(echo_app()), faults, PublicSeed(3)))
        pulled = [grid.pull_messages([number]) for number in grid.push_messages(tasks(*names))]
        outcomes.append(
            sorted(
                "error" if reply.has_error() else reply.content.config_records["name"]["name"]
                for replies in pulled
                for reply in replies
            )
        )
    assert outcomes[0] == outcomes[1]
    errors, answered = outcomes[0].count("error"), len({*outcomes[0]} - {"error"})
    assert errors == pytest.approx(40, abs=25)
    assert answered == pytest.approx(400 * 0.6, abs=45)
    assert len(outcomes[0]) - errors - answered == pytest.approx(120, abs=40)

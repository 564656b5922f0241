"""Messages in parts for a pool, and processes that die, cannot begin or lose what starts them: who is charged or run again."""

from concurrent.futures import BrokenExecutor, Future

import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict

from client.app import pack
from experiments.engines import pool as pools
from experiments.engines.failures import Failure
from experiments.engines.grid import LocalGrid, call_app, local_context, set_identity
from experiments.engines.messages import Gathering, guided
from experiments.engines.pool import Pool, WorkerPool
from experiments.engines.processes import CannotBegin
from fedmf.errors import RunStoppedError
from fedmf.updates import wire
from poison import app_of
from tasks import joint, values_in


class Scripted:
    """A process that runs at once: `fate(names)` may raise; `begins` gives its next starters, or what beginning raises."""

    def __init__(self, fate=lambda names: None, begins=()):
        self._fate, self._begins, self.has_ended = fate, iter(begins), False

    def begin(self):
        return self._future(self._begun)

    def _begun(self):
        outcome = next(self._begins, 1)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def submit(self, function, messages):
        return self._future(lambda: ([self._reply(message) for message in messages], []))

    def _reply(self, message):
        names = message.content.config_records[wire.TASK][wire.CLIENT]
        self._fate(names)
        return pack([name.encode() for name in names], message)

    def _future(self, call):
        future = Future()
        try:
            future.set_result(call())
        except Exception as error:
            future.set_exception(error)
        return future

    def end(self):
        self.has_ended = True


def dies(names):
    """Let a process die whatever it runs."""
    raise BrokenExecutor


def dies_at(name):
    """Let a process die whenever it runs the client `name`."""

    def fate(names):
        if name in names:
            raise BrokenExecutor

    return fate


def run(pool, *clients, heard=None):
    """Return {client: values} of one message to `clients`."""
    keys = [bytes(32) for _ in clients]
    task = ConfigRecord({wire.EPOCH: 0, wire.STEP: 0, wire.CLIENT: list(clients), wire.MASK_KEY: keys})
    grid = LocalGrid(pool, heard.append if heard is not None else lambda failure: None)
    (reply,) = grid.send_and_receive([Message(RecordDict({wire.TASK: task}), 1, MessageType.TRAIN)])
    return dict(zip(clients, values_in(reply), strict=True))


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    set_identity()
    monkeypatch.setattr(pools, "PAUSE", 0)


FULL = CannotBegin("MemoryError: no room on the device")
ALL = {name: name.encode() for name in "abcdef"}


@pytest.mark.parametrize("workers", [1, 3])
def test_a_client_that_kills_every_process_is_charged_and_no_other(workers):
    heard, pool = [], Pool([Scripted(dies_at("die")) for _ in range(workers)])
    assert run(pool, *"abc", "die", *"def", heard=heard) == {**ALL, "die": wire.NO_VALUES}
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
    sent = run(Pool([Scripted(fate)]), "die", "leaves", "a", heard=heard)
    assert heard == [Failure("die", "its process died")]
    assert sent == {"die": wire.NO_VALUES, "leaves": b"leaves", "a": b"a"}


def test_a_process_that_cannot_begin_again_is_given_up_and_the_others_run_its_clients(caplog):
    full = Scripted(dies, [1, FULL, FULL, FULL])
    assert run(Pool([full, Scripted()]), *ALL) == ALL
    assert full.has_ended
    assert "cannot begin (MemoryError: no room on the device); the others run its clients" in caplog.text


def test_a_process_that_begins_at_the_third_try_goes_on():
    deaths = iter([True])

    def fate(names):
        if next(deaths, False):
            raise BrokenExecutor

    assert run(Pool([Scripted(fate, [1, FULL, OSError(), 1])]), *ALL) == ALL


def test_where_no_process_can_begin_nothing_is_answered_and_nobody_charged():
    heard, pool = [], Pool([Scripted(dies_at("a"), [1, FULL, FULL, FULL])])
    for _ in range(2):
        with pytest.raises(
            RunStoppedError, match=r"can begin \(MemoryError: no room on the device\); 3 tries"
        ):
            run(pool, *ALL, heard=heard)
    assert heard == []


def test_the_loss_of_what_starts_the_processes_charges_nobody_until_it_repeats():
    heard, deaths = [], iter([True, True])

    def fate(names):
        if next(deaths, False):
            raise BrokenExecutor

    assert run(Pool([Scripted(fate, [1, 2, 3, 3])]), "a", heard=heard) == {"a": b"a"}
    with pytest.raises(RunStoppedError, match="ended 3 times without a reply in between"):
        run(Pool([Scripted(dies_at("a"), range(9))]), "a", heard=heard)
    assert heard == []


def test_a_reply_that_cannot_be_pickled_is_an_error_of_its_client_alone():
    def fate(names):
        if "odd" in names:
            raise TypeError("cannot pickle")

    heard = []
    assert run(Pool([Scripted(fate)]), "a", "odd", heard=heard) == {"a": b"a", "odd": wire.NO_VALUES}
    assert heard == [Failure("odd", "TypeError")]


def test_a_process_whose_call_failed_on_the_way_receives_the_model_again():
    """Else it would train on the model of an earlier round."""
    given, model = [], ArrayRecord()

    class Recording(Scripted):
        def submit(self, function, *arguments):
            *new, messages = arguments
            given.append([one is model for one in new])
            if len(given) == 2:
                return self._future(lambda: int("no room"))
            return super().submit(function, messages)

    task = ConfigRecord({wire.EPOCH: 0, wire.STEP: 0, wire.CLIENT: [*"abcd"], wire.MASK_KEY: [bytes(32)] * 4})
    message = Message(RecordDict({wire.TASK: task, wire.MODEL: model}), 1, MessageType.TRAIN)
    (reply,) = LocalGrid(Pool([Recording()])).send_and_receive([message])
    assert not reply.has_error()
    assert given[:3] == [[True], [False], [True]]


def test_each_worker_takes_the_next_device_in_turn(monkeypatch):
    made = []
    monkeypatch.setattr(pools, "LocalProcess", lambda make_app: made.append(make_app()) or Scripted())
    WorkerPool(lambda settings, device: (settings, device), "settings", 3, ["cpu", "cuda:1"])
    assert made == [("settings", "cpu"), ("settings", "cuda:1"), ("settings", "cpu")]


@pytest.mark.parametrize(
    ("counts", "workers"), [((1,), 1), ((7, 7, 3), 2), ((1,) * 30, 4), ((400,), 4), ((100,), 1)]
)
def test_chunks_hold_every_client_once_in_order_and_shrink_to_one(counts, workers):
    messages = [joint(*map(str, range(count))) for count in counts]
    chunks = list(guided(messages, workers))
    played = [(part.whole, place) for chunk in chunks for part in chunk for place in part.places]
    assert played == [
        (message, place) for message, count in zip(messages, counts, strict=True) for place in range(count)
    ]
    sizes = [sum(len(part.places) for part in chunk) for chunk in chunks]
    assert sizes == sorted(sizes, reverse=True)
    assert (sizes[0], sizes[-1]) == (max(1, sum(counts) // (2 * workers)), 1)
    assert len(chunks) < 60


def test_the_reply_made_of_parts_is_that_of_one_process_byte_for_byte():
    app, whole = app_of(None), joint(*"abcdefg")
    gathering, chunks = Gathering(whole), list(guided([whole], 1))
    assert len(chunks) > 2
    replies = []
    for (part,) in reversed(chunks):  # in any order
        message = part.message(with_model=True)
        assert message.metadata.message_id == whole.metadata.message_id
        replies.append(gathering.add(part, call_app(app, message, local_context())))
    assert replies[:-1] == [None] * (len(chunks) - 1)
    twin = call_app(app, whole, local_context())
    assert dict(replies[-1].content.config_records[wire.UPDATE]) == dict(
        twin.content.config_records[wire.UPDATE]
    )
    assert replies[-1].metadata.reply_to_message_id == whole.metadata.message_id
    assert gathering.failures == []


def test_a_part_holds_nobody_elses_key_and_the_model_only_where_it_is_wanted():
    whole = joint(*"abc")
    ((part,), *_) = guided([whole], 1)
    given = whole.content.config_records[wire.TASK]
    for with_model in (True, False):
        message = part.message(with_model=with_model)
        assert (wire.MODEL in message.content) is with_model
        assert dict(message.content.config_records[wire.TASK]) == {
            name: given[name][:1] if name in (wire.CLIENT, wire.MASK_KEY) else given[name] for name in given
        }
    assert given[wire.CLIENT] == [*"abc"]
    assert wire.MODEL in whole.content

"""Flower's engine on a Ray cluster, as far as it goes without one: what is refused, and what becomes of lost workers."""

import functools
import itertools
import socket
import sys
from types import SimpleNamespace

import cloudpickle
import flwr
import pytest
from experiments.players.ray import _as_flowers_backend
from flwr.app import ConfigRecord, Message, MessageType, RecordDict

from client.app import pack
from experiments.cli.command import guard
from experiments.engines import engine, ray_cluster, ray_workers
from experiments.engines.engine import remote_client_app, shared_tasks
from experiments.engines.failures import Failure, with_failures, without_failures
from experiments.engines.grid import local_context, set_identity
from experiments.engines.ray import RayWorkers, Reservation, refuse_if_silent, refuse_without_room
from fedmf.errors import RunStoppedError, SettingError
from fedmf.updates import wire
from runs import composed, simulate
from tasks import values_in

pytest.importorskip("ray")


def node(name="a", cpus=4.0, gpus=0.0, alive=True):
    """A node as `ray.nodes()` lists it."""
    held = {"CPU": cpus, "GPU": gpus} if gpus else {"CPU": cpus}
    return {"NodeManagerHostname": name, "NodeID": name * 20, "Alive": alive, "Resources": held}


@pytest.mark.parametrize(
    ("nodes", "wanted", "room"),
    [
        ([node()], Reservation(4), None),
        ([node()], Reservation(5), 4),
        ([node(), node("b")], Reservation(8), None),
        ([node(), node("b", alive=False)], Reservation(8), 4),
        ([node(cpus=3), node("b", cpus=3)], Reservation(3, cpus=2), 2),  # no worker is cut in two
        ([node(gpus=1), node("b")], Reservation(2, gpus=0.5), None),
        ([node(gpus=1), node("b")], Reservation(3, gpus=0.5), 2),
        ([node()], Reservation(1, gpus=1), 0),
        ([node(cpus=0.3)], Reservation(3, cpus=0.1), None),
    ],
)
def test_workers_that_do_not_fit_onto_the_nodes_are_refused_with_what_there_is(nodes, wanted, room):
    if room is None:
        refuse_without_room(nodes, wanted)
        return
    with pytest.raises(SettingError, match=rf"has room for {room}: node a \(aaaaaaaa\) has . CPUs and"):
        refuse_without_room(nodes, wanted)


def test_an_address_at_which_no_cluster_answers_is_refused_within_seconds(monkeypatch):
    """Nothing listens, or something that is no cluster; Ray by itself would try for minutes and then end the process."""
    monkeypatch.setattr(ray_cluster, "_PATIENCE", 0.5)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        with pytest.raises(SettingError, match=r"no Ray cluster answers there \(unavailable\)"):
            refuse_if_silent(f"127.0.0.1:{other.getsockname()[1]}")
        other.listen()
        with pytest.raises(SettingError, match="no Ray cluster answers there"):
            refuse_if_silent(f"127.0.0.1:{other.getsockname()[1]}")


@pytest.mark.parametrize(
    ("address", "says"),
    [("127.0.0.1:1", "no Ray cluster answers there"), ("auto", "no Ray cluster runs on this machine")],
)
def test_a_run_in_a_cluster_that_is_not_there_is_a_users_mistake_and_leaves_nothing(
    tmp_path, capsys, monkeypatch, address, says
):
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    none = functools.cache(set)  # somebody else's may run here
    monkeypatch.setattr("ray._private.services.find_gcs_addresses", none)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray_cluster, "_PATIENCE", 2.0)
    given = composed(f"run.directory={tmp_path / 'r'}", "engine=ray", f"engine.address={address}")
    assert guard(lambda: simulate(given)) == 2
    error = capsys.readouterr().err
    assert f"error: engine.address is {address}, but " in error
    assert says in error
    assert not (tmp_path / "r").exists()


def task(*clients):
    """A message with tasks for `clients`."""
    set_identity()
    keys = [bytes(range(32)) for _ in clients]
    record = ConfigRecord({wire.EPOCH: 0, wire.STEP: 0, wire.CLIENT: list(clients), wire.MASK_KEY: keys})
    message = Message(RecordDict({wire.TASK: record}), 1, MessageType.TRAIN)
    message.metadata.__dict__["_message_id"] = "7"
    return message


def test_the_app_on_ray_answers_a_query_with_nothing():
    set_identity()
    query = Message(RecordDict(), 1, MessageType.QUERY)
    reply = remote_client_app(composed("engine=ray"))(query, local_context())
    assert reply.has_content()
    assert len(reply.content) == 0


def test_clients_share_messages_on_ray_as_in_one_process():
    assert shared_tasks(composed("engine=ray", "engine.workers=3"), 25) == 25
    assert shared_tasks(composed(), 25) == 25
    assert shared_tasks(composed("faults.error=0.5"), 25) == 1


def test_what_a_reply_tells_of_failures_is_whole_on_the_other_side():
    told = [Failure("a", "why"), Failure("b", "its process died", has_sent=False)]
    reply = with_failures(Message(RecordDict(), reply_to=task("a", "b")), told)
    assert without_failures(reply) == told
    assert len(reply.content) == 0


class Lost(Exception):
    """What a Ray that has lost a worker raises."""


class TaskFailed(Lost):
    """What Ray raises for what a worker's code raised."""

    def __init__(self, cause=None):
        self.cause = cause


class Worker:
    """A worker as Ray's handle is used: `fate(message)` is what becomes of a message, `is_up` whether it can be asked."""

    def __init__(self, fate, is_up=True):
        self.is_up = is_up
        self.call = SimpleNamespace(remote=lambda app, message, context: lambda: fate(message))
        self.name = SimpleNamespace(remote=lambda: self._name)

    def _name(self):
        if not self.is_up:
            raise Lost  # at once, and not for want of an answer
        return "worker"


def got(answer, timeout=None):
    """Return what was asked for, as Ray does of one thing or a list."""
    return [one() for one in answer] if isinstance(answer, list) else answer()


def cluster_of(*workers):
    """Workers of a Ray in which nothing travels."""
    errors = SimpleNamespace(RayError=Lost, RayTaskError=TaskFailed)
    ray = SimpleNamespace(get=got, exceptions=errors, kill=lambda worker: None)
    return RayWorkers(ray, list(workers))


def answer(message):
    """The reply of a worker, which dies at client "die" and in which client "fail" sends zeros."""
    names = message.content[wire.TASK][wire.CLIENT]
    if "die" in names:
        raise Lost
    reply = pack([name.encode() for name in names], message)
    return with_failures(reply, [Failure("fail", "why")] if "fail" in names else [])


def test_a_message_at_which_a_worker_dies_is_played_again_client_by_client():
    workers = cluster_of(Worker(answer))
    reply = workers.play(None, task("a", "die", "fail"), local_context())
    assert set(without_failures(reply)) == {
        Failure("die", "its process died", has_sent=False),
        Failure("fail", "why"),
    }
    assert values_in(reply) == [b"a", wire.NO_VALUES, b"fail"]
    assert reply.metadata.reply_to_message_id == "7"
    assert not workers.lost.is_set()


def lost(message):
    raise Lost


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(ray_workers, "_PATIENCE", 0.05)
    monkeypatch.setattr(ray_workers, "_PAUSE", 0.01)


def test_no_client_of_a_node_that_is_lost_with_several_workers_counts_as_an_error(impatient):
    workers = cluster_of(Worker(lost, is_up=False), Worker(lost, is_up=False), Worker(answer))
    reply = workers.play(None, task("a", "b"), local_context())
    assert without_failures(reply) == []
    assert values_in(reply) == [b"a", b"b"]
    assert workers.count == 1


def test_a_worker_that_is_being_started_again_gets_no_client_before_it_is_there(impatient):
    again = Worker(lambda message: answer(message) if again.is_up else lost(message), is_up=False)
    asked = []

    def name():
        asked.append(again.is_up)
        again.is_up = len(asked) > 2
        return again._name

    again.name.remote = name
    reply = cluster_of(again).play(None, task("a", "b"), local_context())
    assert without_failures(reply) == []
    assert values_in(reply) == [b"a", b"b"]


def test_a_worker_that_does_not_come_back_is_given_up_and_another_plays_its_clients(impatient):
    workers = cluster_of(Worker(answer), Worker(lost, is_up=False))
    for _ in range(3):
        reply = workers.play(None, task("a", "b"), local_context())
        assert values_in(reply) == [b"a", b"b"]
    assert workers.count == 1


def test_without_any_worker_nothing_is_answered_so_that_no_round_of_zeros_is_released(impatient):
    workers = cluster_of(Worker(lost, is_up=False))
    for _ in range(2):
        with pytest.raises(RunStoppedError, match="no Ray worker is left"):
            workers.play(None, task("a", "b"), local_context())
    assert workers.lost.is_set()


def begin():
    """Stand for what a worker builds before it is given a client."""


def worker_that_begins(beginnings, fate):
    """Return a worker that is there, in which `begin` has the next of `beginnings`: None, or what it raises."""

    def call(function, *arguments):
        if function is not begin:
            return lambda: fate(*arguments)
        outcome = next(beginnings)
        return (lambda: None) if outcome is None else (lambda: failed(outcome))

    worker = Worker(fate)
    worker.call.remote = call
    return worker


def failed(error):
    raise TaskFailed(error)


FULL = MemoryError("no room on the device")


@pytest.fixture
def hurried(monkeypatch):
    monkeypatch.setattr(ray_workers, "PAUSE", 0.01)


def test_a_worker_started_again_without_room_is_given_up_and_no_client_is_charged(hurried):
    def play(message, context):
        return answer(message)

    full = worker_that_begins(iter([None, FULL, FULL, FULL]), lambda message, context: lost(message))
    workers = cluster_of(full, worker_that_begins(itertools.repeat(None), play))
    workers.begin(begin)
    reply = workers.play(None, task("a", "b"), local_context())
    assert without_failures(reply) == []
    assert values_in(reply) == [b"a", b"b"]
    assert workers.count == 1
    assert workers.why == "MemoryError: no room on the device"


def test_where_no_worker_has_room_again_nothing_is_answered(hurried):
    workers = cluster_of(worker_that_begins(iter([None, FULL, FULL, FULL]), lambda *given: lost(None)))
    workers.begin(begin)
    with pytest.raises(RunStoppedError, match="no Ray worker is left"):
        workers.play(None, task("a", "b"), local_context())
    assert workers.lost.is_set()


def test_a_worker_that_has_room_at_the_third_try_goes_on(hurried):
    deaths = iter([True])

    def play(message, context):
        return lost(message) if next(deaths, False) else answer(message)

    workers = cluster_of(worker_that_begins(iter([None, FULL, FULL, *[None] * 9]), play))
    workers.begin(begin)
    assert values_in(workers.play(None, task("a", "b"), local_context())) == [b"a", b"b"]


def test_a_client_whose_worker_dies_of_what_another_left_there_is_played_in_a_new_one():
    """ "leaves" plays well, and whoever comes after it in the same process dies."""
    spoilt = []

    def fate(message):
        names = message.content[wire.TASK][wire.CLIENT]
        if spoilt:
            spoilt.clear()
            raise Lost
        reply = answer(message)
        spoilt.extend(name for name in names if name == "leaves")
        return reply

    workers = cluster_of(Worker(fate))
    reply = workers.play(None, task("die", "leaves", "a"), local_context())
    assert without_failures(reply) == [Failure("die", "its process died", has_sent=False)]
    assert values_in(reply) == [wire.NO_VALUES, b"leaves", b"a"]


def test_a_worker_in_which_the_clients_cannot_be_built_ends_and_answers_nothing(monkeypatch):
    """An answer would be an error of the clients that it was asked for."""
    ended = []
    monkeypatch.setattr(engine.os, "_exit", lambda code: ended.append(code) or sys.exit(code))
    monkeypatch.setattr(engine, "build_for_clients", lambda *given: failed(FULL))
    monkeypatch.setattr(engine, "_resident", [])
    with pytest.raises(SystemExit):
        engine.play_remotely(composed("engine=ray"), task("a"), local_context())
    assert ended == [1]


def test_who_waits_for_workers_that_are_ended_ends_quietly():
    workers = cluster_of(Worker(lost))
    workers.end()
    with pytest.raises(SystemExit):
        workers.play(None, task("a"), local_context())


def test_flowers_engine_is_given_our_workers_for_the_time_of_a_run():
    """It names its backend in one place: look at `_as_flowers_backend` before changing this number."""
    assert flwr.__version__.startswith(("1.41.", "1.42."))
    from experiments.players.ray_backend import WorkersBackend
    from flwr.server.superlink.fleet.vce import vce_api
    from flwr.server.superlink.fleet.vce.backend import raybackend

    before = raybackend.RayBackend, vce_api.ThreadPoolExecutor
    with _as_flowers_backend(cluster_of(*[Worker(answer) for _ in range(50)])):
        backend = raybackend.RayBackend({})
        assert isinstance(backend, WorkersBackend)
        assert vce_api.ThreadPoolExecutor()._max_workers == backend.num_workers == 50
    assert (raybackend.RayBackend, vce_api.ThreadPoolExecutor) == before


def test_a_workers_code_travels_without_our_package_and_keeps_the_machines_own_places(monkeypatch, tmp_path):
    packed, by_name = cloudpickle.dumps(ray_workers._worker_class()), cloudpickle.dumps(Reservation)
    for module in [name for name in sys.modules if name.partition(".")[0] == "experiments"]:
        monkeypatch.setitem(sys.modules, module, None)  # as where it is not installed
    with pytest.raises(ImportError):
        cloudpickle.loads(by_name)
    worker = cloudpickle.loads(packed)
    monkeypatch.setattr(sys, "path", ["there", "both"])
    monkeypatch.chdir(tmp_path)
    worker(["ours", "both"], "/no/such/folder", 1)
    assert sys.path == ["ours", "both", "there"]

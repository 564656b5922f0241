"""A Ray cluster, as far as it goes without one: what is an error, and what becomes of lost processes."""

import functools
import itertools
import socket
import sys
from concurrent.futures import BrokenExecutor
from functools import partial
from types import SimpleNamespace

import cloudpickle
import pytest

from experiments.cli.command import guard
from experiments.engines import ray, ray_private
from experiments.engines.processes import CannotBegin
from experiments.engines.ray import RayProcess, Reservation, ask_each, refuse_if_silent, refuse_without_room
from fedmf.errors import DataError, SettingError
from runs import composed, simulate

pytest.importorskip("ray")


def node(name="a", cpus=4.0, gpus=0.0, alive=True):
    """A node as `ray.nodes()` lists it."""
    held = {"CPU": cpus, "GPU": gpus} if gpus else {"CPU": cpus}
    return {"NodeManagerHostname": name, "NodeID": name * 20, "Alive": alive, "Resources": held}


@pytest.mark.parametrize(
    ("nodes", "wanted", "room"),
    [
        ([node(), node("b")], Reservation(8), None),
        ([node(), node("b", alive=False)], Reservation(8), 4),
        ([node(cpus=3), node("b", cpus=3)], Reservation(3, cpus=2), 2),  # no worker is cut in two
        ([node(gpus=1), node("b")], Reservation(2, gpus=0.5), None),
        ([node(gpus=1), node("b")], Reservation(3, gpus=0.5), 2),
        ([node(cpus=0.3)], Reservation(3, cpus=0.1), None),
    ],
)
def test_workers_that_do_not_fit_onto_the_nodes_are_refused_with_what_there_is(nodes, wanted, room):
    if room is None:
        refuse_without_room(nodes, wanted)
        return
    with pytest.raises(SettingError, match=rf"has room for {room}: \d+ CPUs and"):
        refuse_without_room(nodes, wanted)


def test_an_address_at_which_no_cluster_answers_is_refused_within_seconds(monkeypatch):
    """Nothing listens, or something that is no cluster; Ray by itself would try for minutes and then end the process."""
    monkeypatch.setattr(ray_private, "PATIENCE", 0.5)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        with pytest.raises(SettingError, match=r"no Ray cluster answers there \(unavailable\)"):
            refuse_if_silent(f"127.0.0.1:{other.getsockname()[1]}")
        other.listen()
        with pytest.raises(SettingError, match="no Ray cluster answers there"):
            refuse_if_silent(f"127.0.0.1:{other.getsockname()[1]}")


def test_a_run_in_a_cluster_that_is_not_there_is_a_users_mistake_and_leaves_nothing(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    none = functools.cache(set)  # somebody else's may run here
    monkeypatch.setattr("ray._private.services.find_gcs_addresses", none)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    given = composed(f"run.directory={tmp_path / 'r'}", "engine=ray", "engine.address=auto")
    assert guard(lambda: simulate(given)) == 2
    assert "error: engine.address is auto, but no Ray cluster runs on this" in capsys.readouterr().err
    assert not (tmp_path / "r").exists()


class Lost(Exception):
    """What a Ray that has lost a worker raises."""


class TaskFailed(Lost):
    """What Ray raises for what a worker's code raised."""

    def __init__(self, cause=None):
        self.cause = cause


def process(call, is_up=()):
    """A process of a Ray in which nothing travels; `is_up` gives whether it can be asked, then always; `call` runs a call."""

    answers = iter(is_up)

    def name():
        if not next(answers, True):
            raise Lost
        return "worker"

    actor = SimpleNamespace(
        name=SimpleNamespace(remote=lambda: name),
        call=SimpleNamespace(remote=lambda *given: partial(call, *given)),
    )
    errors = SimpleNamespace(RayError=Lost, RayTaskError=TaskFailed)
    fake = SimpleNamespace(get=lambda made, timeout=None: made(), exceptions=errors, kill=lambda actor: None)
    return RayProcess(fake, actor, "worker", "app")


def raising(error):
    def call(*given):
        raise error

    return call


def returned(function, *given):
    """Return what `function` returns, as an actor does."""
    return function(*given)


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(ray, "_PATIENCE", 0.1)
    monkeypatch.setattr(ray, "_PAUSE", 0.01)


def test_a_process_that_is_started_again_begins_once_it_is_there(impatient):
    began = []
    one = process(lambda function, make_app: began.append(make_app), is_up=[False, False])
    one.begin().result()
    assert began == ["app"]


def test_a_process_that_does_not_come_back_in_time_cannot_begin(impatient):
    one = process(returned, is_up=itertools.repeat(False))
    with pytest.raises(CannotBegin, match="not again within"):
        one.begin().result()
    one._has_ended.set()  # the run ends while it waits
    with pytest.raises(CannotBegin):
        one.begin().result(timeout=1)


@pytest.mark.parametrize(
    ("raised", "seen"),
    [(Lost("node died"), BrokenExecutor), (TaskFailed(CannotBegin("no room")), CannotBegin), (TaskFailed(), TaskFailed)],
)  # fmt: skip
def test_a_dead_process_is_told_from_what_its_code_raises(raised, seen):
    with pytest.raises(seen):
        process(raising(raised)).submit(print).result()


def test_each_process_is_asked_and_one_that_cannot_answer_is_named():
    assert ask_each([process(returned)] * 2, max, 1, 2) == [("worker", 2)] * 2
    with pytest.raises(SettingError, match="worker cannot run this run's clients: no such file"):
        ask_each([process(raising(TaskFailed(DataError("no such file"))))], print)
    with pytest.raises(SettingError, match="worker ended while it loaded"):
        ask_each([process(raising(Lost()))], print)


def test_the_private_parts_of_ray_are_those_of_the_versions_they_were_checked_with(monkeypatch):
    """Look at ray_private.py before changing this number."""
    real = pytest.importorskip("ray")
    assert real.__version__.startswith("2.")
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "ab" * 32)
    ray_private.read_environment()
    try:
        loader = ray_private._inside().AuthenticationTokenLoader.instance()
        assert "ab" * 32 in str(loader.get_token_for_http_header())
    finally:
        monkeypatch.undo()
        ray_private.read_environment()


def test_a_workers_code_travels_without_our_package_and_keeps_the_machines_own_places(monkeypatch, tmp_path):
    packed, by_name = cloudpickle.dumps(ray._worker_class()), cloudpickle.dumps(Reservation)
    for module in [name for name in sys.modules if name.partition(".")[0] == "experiments"]:
        monkeypatch.setitem(sys.modules, module, None)  # as where it is not installed
    with pytest.raises(ImportError):
        cloudpickle.loads(by_name)
    worker = cloudpickle.loads(packed)
    monkeypatch.setattr(sys, "path", ["there", "both"])
    monkeypatch.chdir(tmp_path)
    worker(["ours", "both"], "/no/such/folder", 1)
    assert sys.path == ["ours", "both", "there"]

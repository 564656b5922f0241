"""What keeps a node from taking part, with a real SuperLink: each fault has a sentence of its own, said once."""

import datetime
import importlib
import signal
import socket
import time

import pytest

from experiments.deployment import flower_parts
from experiments.deployment.certificates import make_certificates, make_node_key
from experiments.deployment.loopback import HOST, Loopback, free_port
from experiments.deployment.process_list import processes_at
from experiments.deployment.reaching import AHEAD, BEHIND, OTHER_SESSION, Way, fault_on

pytestmark = pytest.mark.deployment

LIMIT = 150
DATA = "clients=6 dataset=synthetic dataset.clients=12 dataset.features=5 dataset.classes=3"


@pytest.fixture(scope="module")
def loopback():
    with Loopback() as started:
        started.start_superlink()
        started.register("a")
        yield started


def way(loopback, node="a", **changed):
    files = {"root_certificates": loopback.certificates.authority, "private_key": loopback.folder / node}
    given = {"superlink": f"{HOST}:{loopback.port}", **files, **changed}
    return Way(**{key: str(value) for key, value in given.items()})


def wait_for(happened, what):
    deadline = time.monotonic() + LIMIT
    while not happened():
        assert time.monotonic() < deadline, what()
        time.sleep(0.1)


def at(monkeypatch, seconds):
    """Let this process's clock be off by so much, for what Flower signs and for what is compared with the server's."""
    module = importlib.import_module("flwr.supernode.node_auth_http_interceptor")
    shift = datetime.timedelta(seconds=seconds)
    monkeypatch.setattr(module, "now", lambda: datetime.datetime.now(datetime.UTC) + shift)
    return lambda: time.time() + seconds


def test_a_registered_node_with_the_right_time_has_no_fault_and_no_session_is_opened(loopback):
    for _ in range(2):  # a session of the first question would refuse the second
        assert fault_on(way(loopback)) is None
    assert "Activated" not in loopback.log("superlink").read_text()


def test_a_key_that_is_not_registered_is_told_apart(loopback):
    make_node_key(loopback.folder, "stranger")
    fault = fault_on(way(loopback, "stranger"))
    assert fault.kind == "unregistered"
    assert "stranger.pub to the server's operator" in fault.text


@pytest.mark.parametrize("off", [AHEAD + 3, -(BEHIND + 3)])
def test_a_clock_that_is_off_is_told_apart_and_measured(loopback, monkeypatch, off):
    fault = fault_on(way(loopback), at(monkeypatch, off))
    assert fault.kind == "clock"
    measured, _, direction = fault.text.partition("clock is ")[2].partition(" seconds ")
    assert abs(int(measured) - abs(off)) <= 2
    assert direction.startswith("ahead of" if off > 0 else "behind")


@pytest.mark.parametrize("off", [AHEAD - 2, -(BEHIND - 5)])
def test_flowers_window_is_the_one_that_is_said(loopback, monkeypatch, off):
    assert fault_on(way(loopback), at(monkeypatch, off)) is None


def test_another_authority_is_told_apart(loopback, tmp_path):
    other = make_certificates(tmp_path, HOST).authority
    fault = fault_on(way(loopback, root_certificates=other))
    assert fault.kind == "wrong authority"
    assert str(other) in fault.text


def test_what_cannot_be_reached_is_told_apart(loopback, monkeypatch):
    refused = fault_on(way(loopback, superlink=f"{HOST}:{free_port()}"))
    assert (refused.kind, "nothing listens" in refused.text) == ("refused", True)
    unknown = fault_on(way(loopback, superlink="no-such-host.invalid:8443"))
    assert (unknown.kind, "no-such-host.invalid" in unknown.text) == ("unknown name", True)
    monkeypatch.setattr(flower_parts, "_ANSWER", 0.5)
    with socket.socket() as silent:
        silent.bind((HOST, 0))
        silent.listen()
        assert fault_on(way(loopback, superlink=f"{HOST}:{silent.getsockname()[1]}")).kind == "no answer"


def test_a_node_says_once_what_is_wrong_and_goes_on_by_itself(loopback):
    """An unregistered key, over several tries; then it is registered. Killed, its old session is named once."""
    make_node_key(loopback.folder, "b")
    loopback.start_node("b", DATA)

    def log():
        return loopback.log("b").read_text()

    wait_for(lambda: "does not know this node's key" in log(), log)
    time.sleep(5)  # two more tries
    assert log().count("does not know this node's key") == 1
    loopback.call("flwr", "supernode", "register", loopback.folder / "b.pub", "loopback")
    wait_for(lambda: "SuperNode ID" in log(), log)
    assert "now answers this node" in log()

    loopback.kill("b")  # as a power cut: it takes no leave
    loopback.start_node("b", DATA)
    wait_for(lambda: OTHER_SESSION[:60] in log(), log)
    wait_for(lambda: log().count("SuperNode ID") == 2, log)
    assert log().count(OTHER_SESSION[:60]) == 1
    assert "Exit Code" not in log()
    process = loopback._processes["b"]
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 130
    assert processes_at(loopback.home("b")) == []

"""What a fault does to processes, clocks, disks and requests; each is seen to be undone."""

import os
import signal
import socket
import subprocess
import sys
import time
from datetime import UTC, datetime
from http.client import HTTPSConnection
from pathlib import Path
from ssl import create_default_context
from types import SimpleNamespace

import pytest

from experiments.deployment.certificates import make_certificates
from experiments.deployment.loopback import HOST
from experiments.soak import faults
from experiments.soak.faults import FAULTS, NEEDS_SMALL_DISK
from experiments.soak.forwarder import Forwarder
from experiments.soak.shifted_clock import environment
from experiments.soak.small_disk import SmallDisk
from experiments.soak.small_proxy import SmallProxy
from experiments.soak.target import LINK, SERVER
from nginx_proxy import Upstream

CLOCK = "import datetime, time; print(time.time(), datetime.datetime.now(tz=datetime.UTC).timestamp())"


class Sleepers:
    """A target whose parts are sleeping processes, and which notes what is asked of it."""

    def __init__(self, folder):
        self.nodes, self.folder, self.disk = ["a", "b"], folder, SmallDisk(folder / "disk", 1)
        self.began = {part: self.sleeper() for part in (SERVER, LINK, "a", "b")}
        self.way, self.link_port, self.done = Forwarder(1), 1, []
        self.is_playing, self.told, self.proxy = True, 0, SimpleNamespace(port=2, refused=0)

    def sleeper(self):
        return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])

    def processes(self, part):
        return [process.pid for process in [self.began[part]] if process.poll() is None]

    def playing(self, node):
        return self.processes(node) if self.is_playing else []

    def lies(self, node):
        return self.told

    def way_of(self, node):
        return self.way

    def start(self, part, environment=None, *, lying=False):
        self.done.append(("start", part, environment or {}, lying))
        self.began[part] = self.sleeper()

    def stop(self, part):
        self.began[part].terminate()
        self.began[part].wait()

    def lose_database(self):
        self.done.append("lost")

    def refuse_replies(self, node):
        return self.proxy

    def end(self):
        for process in self.began.values():
            process.kill()
            process.wait()
        self.way.__exit__()
        self.disk.__exit__()


@pytest.fixture
def target(tmp_path):
    made = Sleepers(tmp_path)
    yield made
    made.end()


class Fixed:
    """Random numbers that are not."""

    def choice(self, values):
        return values[0]

    def uniform(self, low, high):
        return low


def state_of(process):
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]


def wait_for(happened):
    deadline = time.monotonic() + 5
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("name", FAULTS)
def test_every_fault_strikes_its_part_alone_and_leaves_all_parts_running(target, name):
    if name == NEEDS_SMALL_DISK and not target.disk.is_small:
        pytest.skip("no file system can be mounted here")
    fault, before = FAULTS[name], {part: target.processes(part) for part in target.began}
    fault.inject(target, "a", Fixed())
    fault.mend(target, "a", Fixed())
    after = {part: target.processes(part) for part in target.began}
    assert all(after.values())
    struck = {part for part in after if after[part] != before[part]}
    expected = {"a"} if fault.of_node else {SERVER, LINK}
    assert struck <= expected
    assert all(state_of(process) != "T" for [process] in after.values())


def test_a_killed_part_is_gone_and_a_frozen_one_does_not_run(target):
    assert FAULTS["node_killed"].inject(target, "a", Fixed())()
    assert target.processes("a") == []
    assert target.began["a"].returncode == -signal.SIGKILL
    FAULTS["node_frozen"].inject(target, "b", Fixed())
    [frozen] = target.processes("b")
    wait_for(lambda: state_of(frozen) == "T")
    FAULTS["node_frozen"].mend(target, "b", Fixed())
    wait_for(lambda: state_of(frozen) != "T")
    FAULTS["server_killed"].inject(target, "a", Fixed())
    assert target.processes(SERVER) == []
    FAULTS["database_lost"].inject(target, "a", Fixed())
    assert target.processes(LINK) == []
    assert target.done == ["lost"]


def test_a_lying_node_and_one_whose_clock_is_off_are_started_anew_both_times(target):
    for name, lying in (("node_lies", True), ("clock_off", False)):
        target.done.clear()
        FAULTS[name].inject(target, "a", Fixed())
        FAULTS[name].mend(target, "a", Fixed())
        (_, part, variables, lies), honest = target.done
        assert (part, lies, bool(variables)) == ("a", lying, not lying)
        assert honest == ("start", "a", {}, False)


def test_a_child_is_frozen_when_it_plays_and_goes_on_or_is_ended(target, monkeypatch):
    """Nothing is stopped before there is one; which of both it will be is drawn."""
    monkeypatch.setattr(faults, "_BURST", 0.02)
    target.is_playing = False
    look = FAULTS["child_frozen"].inject(target, "a", Fixed())
    assert not look()
    target.is_playing = True
    assert look()
    [child] = target.processes("a")
    assert faults.is_stopped(child)
    FAULTS["child_frozen"].mend(target, "a", Fixed())
    wait_for(lambda: not faults.is_stopped(child))
    assert target.processes("a") == [child]
    assert FAULTS["child_frozen"].inject(target, "a", Fixed())()
    FAULTS["child_frozen"].mend(target, "a", SimpleNamespace(choice=lambda ways: ways[1]))
    assert target.began["a"].wait(5) == -signal.SIGKILL
    FAULTS["child_frozen"].mend(target, "a", Fixed())  # the node has ended it by itself


@pytest.mark.parametrize("name", ["node_killed", "node_frozen", "server_killed", "superlink_killed"])
def test_a_signal_has_struck_when_there_was_a_process_for_it(target, name):
    part = {"server_killed": SERVER, "superlink_killed": LINK}.get(name, "a")
    target.stop(part)
    look = FAULTS[name].inject(target, "a", Fixed())
    assert not look()
    target.start(part)
    assert look()
    assert look()


def test_faults_of_a_way_have_struck_when_something_was_held_or_broken(target):
    way = target.way
    with socket.create_server((HOST, 0)) as server:
        way.lead_to(server.getsockname()[1])
        for name in ("node_cut_off", "node_slow", "node_reset"):
            wait_for(lambda: way.reset() == 0)  # what was there before is gone
            look = FAULTS[name].inject(target, "a", Fixed())
            assert not look(), name
            with socket.create_connection((HOST, way.port)) as caller:
                caller.sendall(b"x")
                wait_for(look)
                FAULTS[name].mend(target, "a", Fixed())


def test_a_lie_a_wrong_clock_and_a_refusal_have_struck_when_somebody_met_them(target):
    look = FAULTS["node_lies"].inject(target, "a", Fixed())
    for target.told, has_struck in ((0, False), (1, False), (2, True)):  # the last may be on its way
        assert look() is has_struck

    look = FAULTS["clock_off"].inject(target, "a", Fixed())
    variables = {**os.environ, **target.done[-1][2]}
    target.way.opened += 1
    assert not look()
    subprocess.run([sys.executable, "-c", CLOCK], env=variables, capture_output=True, check=True)
    assert look()
    assert not FAULTS["clock_off"].inject(target, "a", Fixed())()
    subprocess.run([sys.executable, "-c", CLOCK], env=variables, capture_output=True, check=True)
    assert not FAULTS["clock_off"].inject(target, "a", Fixed())()

    look = FAULTS["replies_refused"].inject(target, "a", Fixed())
    assert not look()
    target.proxy.refused = 1
    assert look()


def test_a_full_disk_has_struck_when_the_server_has_ended(target):
    if not target.disk.is_small:
        pytest.skip("no file system can be mounted here")
    look = FAULTS["disk_full"].inject(target, "a", Fixed())
    assert not look()
    target.stop(SERVER)
    assert look()


def test_processes_that_have_ended_are_left_out():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert faults.send([process.pid], signal.SIGKILL) == 0
    assert not faults.is_stopped(process.pid)


def test_a_clock_is_off_in_the_process_and_in_what_it_starts_and_nowhere_else(tmp_path):
    inner = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {CLOCK!r}], check=True)"
    for seconds in (3600, -400):
        variables = {**os.environ, **environment(tmp_path / "clock", seconds)}
        for code in (CLOCK, inner):
            done = subprocess.run(
                [sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=True
            )
            for said in map(float, done.stdout.split()):
                assert said - time.time() == pytest.approx(seconds, abs=10)
    assert datetime.now(UTC).timestamp() == pytest.approx(time.time(), abs=10)


def test_a_full_disk_refuses_writes_with_enospc_until_there_is_room(tmp_path):
    with SmallDisk(tmp_path / "disk", 1) as disk:
        if not disk.is_small:
            pytest.skip("no file system can be mounted here")
        disk.fill()
        with pytest.raises(OSError, match="No space left on device"):
            (disk.folder / "file").write_bytes(b"1")
        disk.make_room()
        (disk.folder / "file").write_bytes(bytes(1 << 13))
    assert not (tmp_path / "disk/file").exists()


def test_a_folder_that_is_no_small_disk_is_not_filled(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")  # no mount
    with SmallDisk(tmp_path / "disk") as disk:
        assert not disk.is_small
        with pytest.raises(RuntimeError, match="is no small disk"):
            disk.fill()
    assert list((tmp_path / "disk").iterdir()) == []


def test_a_small_proxy_passes_small_requests_and_refuses_large_ones(tmp_path):
    files = make_certificates(tmp_path, HOST)
    upstream = Upstream(files)
    upstream.answer = b"answered"
    pem = {"certificate": files.certificate, "key": files.key, "authority": files.authority}
    with SmallProxy(upstream.server_port, 100, **pem) as proxy:
        context = create_default_context(cafile=str(files.authority))
        for size, status, body in ((100, 200, b"answered"), (101, 413, b""), (0, 200, b"answered")):
            connection = HTTPSConnection(HOST, proxy.port, context=context, timeout=10)
            connection.request("POST", "/v1/fleet/push-object", bytes(size))
            answer = connection.getresponse()
            assert (answer.status, answer.read()) == (status, body)
            connection.close()
        assert proxy.refused == 1
    assert [len(body) for body in upstream.bodies] == [100, 0]
    assert upstream.lines[0].startswith("POST /v1/fleet/push-object ")
    upstream.shutdown()
    upstream.server_close()

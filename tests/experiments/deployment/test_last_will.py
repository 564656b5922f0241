"""A deployment on this machine leaves no process and no file, however the process ends that started it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from experiments.deployment import last_will
from experiments.deployment.loopback import Loopback
from fedmf.errors import RunStoppedError

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[3]
LIMIT = 30
STARTER = """
import sys, time
from experiments.cli.command import end_with
from experiments.deployment.loopback import Loopback

def go_on():
    with Loopback() as loopback:
        part = loopback.start("a", [sys.executable, "-c", "import time; time.sleep(600)"])
        print(loopback.folder, part.pid, flush=True)
        time.sleep(600)

end_with(go_on)
"""


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("is_frozen", [False, True])
@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM, signal.SIGKILL])
def test_nothing_outlives_the_starter_of_a_deployment(number, is_frozen):
    command = [sys.executable, "-c", STARTER]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as starter:
        folder, pid = starter.stdout.readline().split()
        try:
            assert (Path(folder) / "server.key").exists()
            if is_frozen:
                os.kill(int(pid), signal.SIGSTOP)
            starter.send_signal(number)
            assert starter.wait(LIMIT) == (-signal.SIGKILL if number == signal.SIGKILL else 130)
            deadline = time.monotonic() + LIMIT
            while Path(folder).exists() or is_running(pid):
                assert time.monotonic() < deadline
                time.sleep(0.05)
        finally:
            if is_running(pid):
                os.kill(int(pid), signal.SIGKILL)


def test_a_deployment_that_ends_takes_its_last_will_with_it(monkeypatch):
    started, start = [], last_will.start
    monkeypatch.setattr(last_will, "start", lambda folder: started.append(start(folder)) or started[0])
    with Loopback() as loopback:
        assert loopback.folder.exists()
        assert started[0].poll() is None
    assert started[0].returncode == 0
    assert not loopback.folder.exists()


def test_a_deployment_without_its_last_will_goes_no_further(monkeypatch):
    """Nothing would end its processes and remove its keys, were this process killed then."""
    started, start = [], last_will.start
    monkeypatch.setattr(last_will, "start", lambda folder: started.append(start(folder)) or started[0])
    with Loopback() as loopback:
        loopback.refuse_ended()
        started[0].kill()
        started[0].wait()
        with pytest.raises(RunStoppedError, match=r"cleans up after a killed one ended with -9"):
            loopback.refuse_ended()
    assert not loopback.folder.exists()

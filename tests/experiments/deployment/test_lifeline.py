"""A process that was started ends with its starter, however that one ends, and is told its settings through a pipe."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from experiments.deployment.lifeline import search_path, undisturbed
from json_logs import objects

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[3]
LIMIT = 8

BUSY = """
    import os, signal
    from experiments.deployment.lifeline import told
    settings = told(signal.SIGKILL)
    print(os.getpid(), settings, flush=True, file=__import__("sys").stderr)
    while True: pass
"""
WATCHING = """
    import os, signal, time
    from experiments.deployment import lifeline
    lifeline._PARENT_DEATH_SIGNAL = 3  # another option of prctl: the pipe alone is left
    settings = lifeline.told(0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print(os.getpid(), settings, flush=True, file=__import__("sys").stderr)
    lifeline.watch(0.2)
    time.sleep(60)
"""
LOOKING = """
    import os, signal, sys, time
    from experiments.deployment import lifeline
    lifeline._PARENT_DEATH_SIGNAL = 3
    settings = lifeline.told(0)
    assert not lifeline.is_cut()
    print(os.getpid(), settings, flush=True, file=sys.stderr)
    while not lifeline.is_cut(): time.sleep(0.01)
"""


@pytest.fixture
def starter(tmp_path):
    """Start a process that starts the module of a code; both are gone at the end."""
    started = []

    def start(code):
        (tmp_path / "started.py").write_text(textwrap.dedent(code))
        says = (
            "import sys, time; from experiments.deployment.lifeline import start_module;"
            "start_module('started', {'secret': 'abc'}); time.sleep(60)"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", says],
            env={"PYTHONPATH": f"{ROOT}:{tmp_path}"},
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
        )
        pid, _, settings = process.stderr.readline().partition(" ")
        started.append(int(pid))
        return process, int(pid), settings.strip()

    yield start
    for pid in started:
        if is_running(pid):
            os.kill(pid, signal.SIGKILL)


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("code", [BUSY, WATCHING, LOOKING], ids=["busy", "watching", "looking"])
def test_a_killed_starter_takes_its_process_with_it_and_its_settings_stand_in_no_list(starter, code):
    process, pid, settings = starter(code)
    assert settings == "{'secret': 'abc'}"
    assert b"abc" not in Path(f"/proc/{pid}/cmdline").read_bytes()
    assert b"abc" not in Path(f"/proc/{pid}/environ").read_bytes()
    assert is_running(pid)
    process.kill()
    process.wait()
    process.stderr.close()
    deadline = time.monotonic() + LIMIT
    while is_running(pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_where_logs_are_json_those_of_a_started_process_are_too(tmp_path):
    (tmp_path / "prints.py").write_text(
        "import logging; from experiments.deployment.lifeline import told; told(0); logging.getLogger('a').warning('said')"
    )
    says = (
        "from experiments.deployment.lifeline import start_module; start_module('prints', {}).communicate()"
    )
    done = subprocess.run(
        [sys.executable, "-c", says],
        env={"PYTHONPATH": f"{ROOT}:{tmp_path}", "FEDMF_LOG": "json"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == ""
    assert [said["message"] for said in objects(done.stderr)] == ["said"]


def test_folders_of_our_names_in_the_current_directory_hide_nothing_of_ours(tmp_path):
    """The starter stands where `python -c` and `-m` put the current directory first; a module of its user's is found."""
    for name in ("server", "experiments"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('hidden')")
    (tmp_path / "client.py").write_text("raise SystemExit('hidden')")
    (tmp_path / "mine.py").write_text("VALUE = 3")
    (tmp_path / "started.py").write_text(
        "import sys, mine, client, server, experiments, fedmf\n"
        "print(mine.VALUE, *(m.__file__ for m in (client, server, experiments, fedmf)), sep='|', file=sys.stderr)"
    )
    says = (
        f"import sys; sys.path.remove(''); sys.path.append({str(ROOT)!r});"
        "from experiments.deployment.lifeline import start_module; sys.path.insert(0, '');"
        "start_module('started', {}).wait()"
    )
    done = subprocess.run(
        [sys.executable, "-c", says], env={}, stderr=subprocess.PIPE, text=True, cwd=tmp_path, check=True
    )
    value, *files = done.stderr.strip().split("|")
    assert value == "3"
    assert [str(Path(file).parents[1]) for file in files] == [str(ROOT)] * 4


def test_our_own_folder_comes_before_what_holds_our_names_and_after_all_else(tmp_path):
    root, site, mine = tmp_path / "root", tmp_path / "site", tmp_path / "mine"
    for folder in (root / "server", site, mine / "server"):
        folder.mkdir(parents=True)
    entries = [str(mine), str(site), str(root), str(site)]
    assert search_path(entries, root) == [str(site), str(root), str(mine)]
    assert search_path([str(mine), str(site)], root) == [str(site), str(root), str(mine)]  # editable
    (site / "client.py").touch()  # hides as a folder does
    assert search_path(entries, root) == [str(root), str(mine), str(site)]
    assert search_path(["relative"], root) == [os.path.abspath("relative"), str(root)]


def test_one_whose_starter_is_gone_before_it_could_ask_ends_at_once():
    says = (
        "import signal; from experiments.deployment.lifeline import end_with_parent;"
        "end_with_parent(1, signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", says], env={"PYTHONPATH": str(ROOT)}, check=False)
    assert done.returncode == -signal.SIGKILL


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_no_signal_interrupts_while_processes_are_being_ended(number):
    """A closed terminal sends SIGHUP to the shell's whole group, and a second one while the first is heeded."""
    before = signal.getsignal(number)
    with undisturbed():
        os.kill(os.getpid(), number)
    assert signal.getsignal(number) == before

"""Ctrl-C, SIGTERM and a second process: what a run does about other processes, seen from outside."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from experiments.cli.command import guard
from runs import metrics, run

ROOT = Path(__file__).resolve().parents[3]
LONG = (  # minutes: it cannot end by itself before it is told to
    "population.cohort_size=20",
    "population.rounds_per_epoch=70",
    "population.epochs=100",
    "run.reproducible=true",
)


@pytest.fixture
def launched():
    """Start runs as processes of their own, which end with the test at the latest."""
    processes, pipes = [], {"stderr": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}

    def launch(directory, *options, **kwargs):
        arguments = [sys.executable, "-m", "experiments.simulate", f"run.directory={directory}", *options]
        processes.append(subprocess.Popen(arguments, cwd=ROOT, **pipes, **kwargs))
        return processes[-1]

    yield launch
    for process in processes:
        process.kill()  # does nothing to one that has ended
        process.communicate()


def wait_for_rounds(directory, count, process):
    deadline = time.monotonic() + 300
    while not (directory / "metrics.jsonl").exists() or len(metrics(directory)) < count:
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def end_of(process):
    """Return what a process that was told to end prints on its way out."""
    _, error = process.communicate(timeout=300)
    assert process.returncode == 130
    assert "Traceback" not in error
    return error


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_run_with_130_and_a_second_process_is_refused(launched, tmp_path, capsys, number):
    for rounds in (3, 100):
        process = launched(tmp_path / "r", *LONG, f"run.resume={rounds > 3}")
        wait_for_rounds(tmp_path / "r", rounds, process)
        assert guard(lambda: run(tmp_path / "r", *LONG, "run.resume=true")) == 2
        assert "another process is running" in capsys.readouterr().err
        process.send_signal(number)
        assert re.search(r"run\.directory=\S+ run\.resume=true", end_of(process))
    shown = [row["round"] for row in metrics(tmp_path / "r")]
    assert shown == list(range(1, len(shown) + 1))


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["local", pytest.param("ray", marks=pytest.mark.ray)])
def test_a_closed_terminal_ends_a_run_with_workers_in_order(launched, tmp_path, engine):
    """The terminal sends SIGHUP to workers, fork server and resource tracker too; Ray's processes end with the run."""
    process = launched(tmp_path / "r", *LONG, f"engine={engine}", "engine.workers=2", start_new_session=True)
    wait_for_rounds(tmp_path / "r", 2, process)
    if engine == "local":
        os.killpg(process.pid, signal.SIGHUP)
    else:
        process.send_signal(signal.SIGINT)
    error = end_of(process)  # when no process has stderr open any more
    assert "run.resume=true" in error
    assert "resource_tracker" not in error
    shown = [row["round"] for row in metrics(tmp_path / "r")]
    assert shown == list(range(1, len(shown) + 1))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_ctrl_c_while_a_command_is_still_imported_leaves_no_traceback(launched, tmp_path, number):
    process = launched(tmp_path / "r")
    while not catches(process.pid, signal.SIGTERM):  # Python by itself does not: the handler is ours
        assert process.poll() is None
    assert "libtorch" not in Path(f"/proc/{process.pid}/maps").read_text()
    process.send_signal(number)
    assert end_of(process) == ""
    assert not (tmp_path / "r").exists()


ENDS = """
import os, signal, sys
from experiments.cli.command import end_with
end_with(lambda: os.kill(os.getpid(), signal.SIGHUP) or print("went on") or 0)
"""
IMPORTED = """
import os, signal, sys
sys.argv = ["-m"]
import experiments
os.kill(os.getpid(), signal.SIGHUP)
print("went on")
"""


@pytest.mark.parametrize("program", [ENDS, IMPORTED])
@pytest.mark.parametrize(("prefix", "code", "out"), [([], 130, ""), (["nohup"], 0, "went on\n")])
def test_a_closed_terminal_ends_a_command_in_order_and_not_under_nohup(program, prefix, code, out):
    command = [*prefix, sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert (done.returncode, done.stdout) == (code, out)
    assert "Traceback" not in done.stderr


def catches(pid, number):
    """Whether a process has a handler of its own for a signal."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"SigCgt:\s*(\w+)", status)[1], 16) >> (number - 1) & 1

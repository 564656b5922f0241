"""The console command and its processes, seen from outside: folders that are not ours, Ctrl-C, SIGTERM and a second process."""

import os
import re
import signal
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import pytest

from experiments.cli import console
from experiments.cli.command import guard
from experiments.cli.console import USAGE
from runs import ROOT, metrics, run

ENTRY = """
from experiments.cli.console import main
if __name__ == "__main__":
    sys.exit(main())
"""
EDITABLE = f"""
import sys
from importlib.machinery import PathFinder
class Finder:  # as setuptools' finder of an editable install: it is asked after the whole of sys.path
    @staticmethod
    def find_spec(name, path=None, target=None):
        return PathFinder.find_spec(name, [{str(ROOT)!r}]) if "." not in name else None
sys.meta_path.insert(sys.meta_path.index(PathFinder) + 1, Finder)
"""
MINE = """
import os
from pathlib import Path
from client.data import Dataset, load as load_ours
HERE = Path(__file__).parent
def load() -> Dataset:
    (HERE / f"loaded_by_{os.getpid()}").touch()
    return load_ours("digits")
"""
SMALL = ("population.epochs=1", "population.rounds_per_epoch=2", "population.cohort_size=8")
OWN = ("dataset=custom", "dataset.name=mine:load")


class Console:
    """The script `fedmf`, and a folder of the user's whose names are those of our packages."""

    def __init__(self, place):
        self.script, self.folder = place / "bin" / "fedmf", place / "folder"
        self.script.parent.mkdir()
        self.script.write_text(f"#!{sys.executable}\n{EDITABLE}{ENTRY}")
        self.script.chmod(0o755)
        for name in ("experiments", "server", "client", "fedmf", "conf"):
            (self.folder / name).mkdir(parents=True)
            (self.folder / name / "__init__.py").write_text("raise RuntimeError('a package of the user')")
        (self.folder / "mine.py").write_text(MINE)
        search = f"{self.script.parent}{os.pathsep}{os.environ['PATH']}"
        self.environment = {**os.environ, "PATH": search, "PYTHONDONTWRITEBYTECODE": "1"}
        self.environment.pop("PYTHONPATH", None)

    def __call__(self, *arguments, expected=0):
        """Return what `fedmf` with these arguments prints to stdout and stderr."""
        command = [str(self.script), *arguments]
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment, text=True, capture_output=True, timeout=300
        )
        assert done.returncode == expected, done.stderr
        return done.stdout, done.stderr


@pytest.fixture
def fedmf(tmp_path):
    return Console(tmp_path)


@pytest.mark.long
def test_help_version_and_mistakes_without_starting_a_command(monkeypatch, capsys):
    def answer(*arguments):
        monkeypatch.setattr(sys, "argv", ["fedmf", *arguments])
        return console._answer(), *capsys.readouterr()

    assert answer("--help") == answer("help", "plan") == (0, USAGE, "")
    assert answer("--version") == (0, f"fedmf {version('fedmf')}\n", "")
    assert answer() == (2, "", USAGE)
    code, out, said = answer("simulat", "seed=1")
    assert (code, out, said[:46]) == (2, "", "error: 'simulat' is no command of fedmf; `fedm")


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "at_least"),
    [
        (["engine.workers=2"], 2),  # the run itself and a worker
        pytest.param(["engine=ray", "engine.workers=2"], 2, marks=pytest.mark.ray),
        (["-m", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "seed=1,2"], 1),
    ],
)
def test_a_loader_in_the_current_directory_is_found_by_every_worker(fedmf, settings, at_least):
    _, error = fedmf("simulate", *settings, *SMALL, *OWN)
    assert len(list(fedmf.folder.glob("loaded_by_*"))) >= at_least, error


PLANTED = "import os\nopen(os.environ['RUN'], 'a').write(__name__ + ' ')\nraise ImportError(__name__)\n"
# What commands and libraries look for and do not find, and, before any code of ours, Python itself and workers of Ray.
NAMES = ("bcrypt", "setproctitle", "sitecustomize", "usercustomize", "pyarrow", "pydantic")


@pytest.mark.long
@pytest.mark.parametrize(
    "line",
    [
        "mechanisms rounds=4 families=[independent]",
        pytest.param("simulate engine.workers=2", marks=pytest.mark.slow),
        pytest.param("simulate engine=ray engine.workers=2", marks=[pytest.mark.slow, pytest.mark.ray]),
    ],
)
def test_no_file_of_the_current_directory_is_run_under_the_name_of_an_optional_import(fedmf, tmp_path, line):
    run, fedmf.folder = tmp_path / "run", tmp_path / "hostile"
    fedmf.environment["RUN"] = str(run)
    fedmf.folder.mkdir()
    for name in NAMES:
        (fedmf.folder / f"{name}.py").write_text(PLANTED)
    fedmf(*line.split(), *(SMALL if "simulate" in line else ()))
    assert not run.exists(), run.read_text()
    fedmf.environment["PYTHONPATH"] = str(fedmf.folder)  # where they would be found
    fedmf("--version")
    assert "sitecustomize" in run.read_text()


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
    for resume in (False, True):
        before = len(metrics(tmp_path / "r")) if resume else 0
        process = launched(tmp_path / "r", *LONG, f"run.resume={resume}")
        wait_for_rounds(tmp_path / "r", before + 3, process)
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

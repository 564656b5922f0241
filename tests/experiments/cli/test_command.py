"""The command line: what a mistake is answered with, exit codes, broken pipes, the jobs of a sweep."""

import os
import re
import shlex
import signal
import subprocess
import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import get_type_hints

import pytest

import experiments
import runs
from experiments.cli.command import guard, run
from experiments.cli.console import PACKAGE, ending_quietly
from experiments.session.resume import run_settings
from experiments.settings.jobs import run_jobs
from experiments.settings.reference import SETTINGS
from experiments.simulate import job


@pytest.mark.parametrize("defect", [ValueError("a number"), OSError("no file in sight")])
def test_a_defect_of_our_own_is_not_dressed_up_as_a_mistake(defect: Exception) -> None:
    def fail() -> None:
        raise defect

    with pytest.raises(type(defect), match=str(defect)):
        guard(fail)


LINES = [
    line.split(" | ", 1)
    for line in Path(__file__).with_name("wrong_lines.txt").read_text().splitlines()
    if not line.startswith("#")
]


def never(*_: object) -> float | None:
    raise AssertionError("a command line with a mistake was run")


def exit_code(name: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> object:
    """Return the exit code of a command in this process, as its module starts it."""
    if name == "simulate":
        monkeypatch.setattr(sys, "argv", ["fedmf simulate", *arguments])
        return guard(partial(run_jobs, never, run_settings))
    is_package = (Path(experiments.__file__).parent / name).is_dir()
    module = import_module(f"experiments.{name}.__main__" if is_package else f"experiments.{name}")
    if name == "plan":
        main = module.main
    else:
        function = getattr(module, name)
        main = partial(run, function, name, get_type_hints(function)["settings"], module.__doc__)
    with pytest.raises(SystemExit) as end:
        main(arguments)
    return end.value.code


@pytest.mark.parametrize(("line", "said"), LINES, ids=[line for line, _ in LINES])
def test_a_mistake_is_answered_with_what_was_meant_and_exits_2(
    line: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    name, *arguments = shlex.split(line)
    assert exit_code(name, arguments, monkeypatch) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: ")
    assert printed.err.count("\n") == 1
    assert re.search(".*".join(map(re.escape, said.split("..."))), printed.err), printed.err
    assert "Hydra" not in printed.err
    assert "-m" in line or not [file for file in tmp_path.rglob("*") if not file.is_dir()]


def test_the_table_tries_every_command_and_each_has_help(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert {line.split()[0] for line, _ in LINES} == set(SETTINGS)
    for name in set(SETTINGS) - {"simulate"}:
        assert exit_code(name, ["--help"], monkeypatch) == 0
        assert "Settings, given as key=value" in capsys.readouterr().out


START = f"import sys; sys.path.insert(0, {str(PACKAGE.parent)!r}); from experiments.cli.console import main; main()"


def cut_short(*arguments: str, stream: str = "stdout", program: str = START) -> tuple[int, str]:
    """Return the exit code of `fedmf`, one of whose streams is not read, and what it says on the other."""
    reading, writing = os.pipe()
    os.close(reading)
    other = {"stdout": "stderr", "stderr": "stdout"}[stream]
    streams = {stream: writing, other: subprocess.PIPE}
    done = subprocess.run([sys.executable, "-c", program, *arguments], **streams, timeout=120, check=False)
    os.close(writing)
    return done.returncode, getattr(done, other).decode()


@pytest.mark.parametrize(
    ("line", "stream"), [("--help", "stdout"), ("plan epsilon=2", "stdout"), ("nonsense", "stderr")]
)
def test_help_results_and_mistakes_that_are_not_read_end_by_sigpipe(line: str, stream: str) -> None:
    """`fedmf` prints the help itself; the result is a table of rich."""
    assert cut_short(*line.split(), stream=stream) == (-signal.SIGPIPE, "")


def test_a_pipe_of_the_programs_own_that_breaks_is_not_passed_over() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with pytest.raises(BrokenPipeError):
        ending_quietly(lambda: os.write(writing, b"x"))
    os.close(writing)


SMALL = ("dataset=synthetic", "dataset.clients=40", "dataset.features=4", "population.cohort_size=10",
         "population.epochs=1", "population.rounds_per_epoch=2")  # fmt: skip


def test_a_job_prints_one_line_instead_of_table_and_statement_also_when_it_had_finished(tmp_path, capsys):
    for again in ((), ("sweep.resume=true",)):
        settings = runs.composed(*SMALL, f"run.directory={tmp_path / 'r'}", *again)
        job(settings, tmp_path / "r", "job 1")
        said = capsys.readouterr()
        assert [line[:15] for line in said.out.splitlines()] == ["job 1: accuracy"]
        assert "round 2/2" not in said.err


@pytest.mark.slow
@pytest.mark.parametrize("launcher", [(), ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2")])
def test_a_sweep_with_a_failing_job_on_the_command_line(tmp_path, launcher):
    ended = runs.command(
        "-m", *launcher, *SMALL, "hydra.sweep.dir=sweep", "population.cohort_size=10,5000", "privacy.epsilon=2,8",
        cwd=tmp_path,
    )  # fmt: skip
    assert ended.returncode == 2, ended.stderr
    assert sorted(line[:15] for line in ended.stdout.splitlines()) == ["job 0: accuracy", "job 1: accuracy"]
    assert "`python -m experiments.compare directory=sweep` compares its runs" in ended.stderr
    assert ended.stderr.count("failed: population.cohort_size is 5000") == 2
    assert "job 3: " in ended.stderr

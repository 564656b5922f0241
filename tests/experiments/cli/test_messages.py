"""What a mistake on the command line is answered with: one sentence, what was meant, and where help is."""

import re
import shlex
import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import get_type_hints

import pytest

import experiments
from experiments.cli.command import guard, run
from experiments.session.resume import run_settings
from experiments.settings.jobs import run_jobs
from experiments.settings.reference import SETTINGS

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


def test_the_table_tries_every_command() -> None:
    assert {line.split()[0] for line, _ in LINES} == set(SETTINGS)

"""The command line: help for every command, and mistakes that Hydra or the file system notices first."""

import runpy
import signal
import sys
from pathlib import Path

import pytest

from experiments.command import CONF, guard
from runs import command

COMMANDS = sorted(path.stem for path in CONF.glob("*.yaml") if path.stem != "config")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_that_names_its_keys(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    for copy in (f"experiments.{name}", f"experiments.{name}.__main__"):  # runpy warns of a second copy
        monkeypatch.delitem(sys.modules, copy, raising=False)
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # the handlers are those of the tests
    with pytest.raises(SystemExit) as end:
        runpy.run_module(f"experiments.{name}", run_name="__main__", alter_sys=False)
    assert end.value.code == 0
    assert "keys and defaults" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["model=3"], "must be a string or a list"),
        (["run.directory=a_file/below"], "a_file/below cannot be used"),
    ],
)
def test_what_hydra_or_the_file_system_refuses_is_one_sentence_too(
    tmp_path: Path, arguments: list[str], said: str
) -> None:
    (tmp_path / "a_file").write_text("of the user")
    done = command(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert said in done.stderr
    assert (tmp_path / "a_file").read_text() == "of the user"


def test_a_defect_of_our_own_is_not_dressed_up_as_a_mistake() -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        guard(lambda: int("x"))
    with pytest.raises(OSError, match="no file in sight"):
        guard(lambda: (_ for _ in ()).throw(OSError("no file in sight")))

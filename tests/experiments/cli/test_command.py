"""The command line: help for every command, and mistakes that Hydra or the file system notices first."""

import runpy
import signal
import sys
from pathlib import Path

import pytest

from experiments import deploy_demo
from experiments.cli.command import guard, run
from runs import command, typed


@pytest.mark.parametrize("name", ["plan", "audit"])  # a module, and a package with a __main__.py
def test_a_command_has_help_that_names_its_keys(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    for copy in (f"experiments.{name}", f"experiments.{name}.__main__"):  # runpy warns of a second copy
        if not hasattr(sys.modules.get(copy), "__path__"):  # a package made anew would lack its modules
            monkeypatch.delitem(sys.modules, copy, raising=False)
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # the handlers are those of the tests
    with pytest.raises(SystemExit) as end:
        runpy.run_module(f"experiments.{name}", run_name="__main__", alter_sys=False)
    assert end.value.code == 0
    assert "Settings, given as key=value" in capsys.readouterr().out


def test_what_the_file_system_refuses_is_one_sentence_too(tmp_path: Path) -> None:
    (tmp_path / "a_file").write_text("of the user")
    done = command("run.directory=a_file/below", cwd=tmp_path, timeout=120)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("error: run.directory is ")
    assert "a_file is a file; name a directory" in done.stderr
    assert (tmp_path / "a_file").read_text() == "of the user"


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("overrides=population.epochs=zero", "overrides=population.epochs=zero is not understood"),
        ('overrides="population.epochs=zero"', "population.epochs is 'zero'; it should be a valid integer"),
        ('overrides="population.cohort_size=9999"', "at most 1437"),
        ('overrides="run.reproducible=true"', "real clients are refused"),
        ('overrides="a\'b"', "whose quotes are not closed"),
        ("nodes=2000", "nodes is 2000"),
        (f"directory={__file__}/r", "is a file"),
        ("directory=/proc/x", "/proc/x cannot be used: No such file or directory."),
    ],
)
def test_mistakes_of_a_demo_are_said_in_one_sentence_before_anything_is_started(
    argument: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("subprocess.Popen", None)
    monkeypatch.setattr("os.fork", None)
    with pytest.raises(SystemExit) as end:
        run(deploy_demo.deploy_demo, "deploy_demo", deploy_demo.DeployDemoSettings, argv=[argument])
    printed = capsys.readouterr()
    assert (end.value.code, printed.out, printed.err.count("\n")) == (2, "", 1)
    assert printed.err.startswith("error: ")
    assert said in printed.err


def test_the_demo_says_that_an_installed_package_holds_no_app(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(deploy_demo, "APP", tmp_path)
    with pytest.raises(SystemExit) as end:
        run(deploy_demo.deploy_demo, "deploy_demo", deploy_demo.DeployDemoSettings, argv=[])
    assert end.value.code == 2
    assert "run the demo from a checkout" in capsys.readouterr().err


def test_a_defect_of_our_own_is_not_dressed_up_as_a_mistake() -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        guard(lambda: int("x"))
    with pytest.raises(OSError, match="no file in sight"):
        guard(lambda: (_ for _ in ()).throw(OSError("no file in sight")))


def test_a_folder_named_by_a_number_is_a_folder(tmp_path: Path) -> None:
    small = ("population.cohort_size=20", "population.rounds_per_epoch=1", "population.epochs=1")
    assert typed("run.directory=2024", *small, cwd=tmp_path) == 0
    assert (tmp_path / "2024" / "summary.json").is_file()

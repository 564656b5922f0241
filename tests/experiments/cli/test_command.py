"""The command line: help for every command, and mistakes that Hydra or the file system notices first."""

from pathlib import Path

import pytest

from experiments import deploy_demo
from experiments.cli.command import guard, run
from runs import typed


def run_demo(*arguments: str) -> None:
    run(deploy_demo.deploy_demo, "deploy_demo", deploy_demo.DeployDemoSettings, argv=list(arguments))


def test_a_command_has_help_that_names_its_keys(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        run_demo("--help")
    assert end.value.code == 0
    assert "Settings, given as key=value" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("overrides=population.epochs=zero", "overrides=population.epochs=zero is not understood"),
        ('overrides="population.cohort_size=9999"', "at most 1437"),
        ('overrides="run.reproducible=true"', "real clients are refused"),
        ('overrides="a\'b"', "whose quotes are not closed"),
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
        run_demo(argument)
    printed = capsys.readouterr()
    assert (end.value.code, printed.out, printed.err.count("\n")) == (2, "", 1)
    assert printed.err.startswith("error: ")
    assert said in printed.err


def test_the_demo_says_that_an_installed_package_holds_no_app(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(deploy_demo, "APP", tmp_path)
    with pytest.raises(SystemExit) as end:
        run_demo()
    assert end.value.code == 2
    assert "run the demo from a checkout" in capsys.readouterr().err


@pytest.mark.parametrize("defect", [ValueError("a number"), OSError("no file in sight")])
def test_a_defect_of_our_own_is_not_dressed_up_as_a_mistake(defect: Exception) -> None:
    def fail() -> None:
        raise defect

    with pytest.raises(type(defect), match=str(defect)):
        guard(fail)


def test_a_folder_named_by_a_number_is_a_folder(tmp_path: Path) -> None:
    small = ("population.cohort_size=20", "population.rounds_per_epoch=1", "population.epochs=1")
    assert typed("run.directory=2024", *small, cwd=tmp_path) == 0
    assert (tmp_path / "2024" / "summary.json").is_file()

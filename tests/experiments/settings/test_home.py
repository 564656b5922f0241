"""~ at the head of a value that is typed."""

import sys
from pathlib import Path

import pytest

from experiments import simulate
from experiments.settings.home import at_home
from runs import composed


def test_a_tilde_at_the_head_of_a_value_is_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    assert composed("dataset=femnist", "dataset.path=~/.tff").dataset.path == "/home/ann/.tff"
    assert at_home(["run.directory=~", "+a.b=~/c"]) == ["run.directory=/home/ann", "+a.b=/home/ann/c"]


@pytest.mark.parametrize("override", ["~dataset", "a=~bob/x", "a=b~/c", "a='~/b'", "a=[~/b]"])
def test_any_other_tilde_is_left_to_hydra(override: str) -> None:
    assert at_home([override]) == [override]


def test_the_command_line_knows_it_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    arguments = ["dataset=by_user_npz", "dataset.path=~/none.npz", f"run.directory={tmp_path / 'run'}"]
    monkeypatch.setattr(sys, "argv", ["simulate", *arguments])
    with pytest.raises(SystemExit) as stopped:
        simulate.main()
    assert stopped.value.code == 2
    assert f"The data file {tmp_path / 'none.npz'} does not exist" in capsys.readouterr().err

"""`fedmf data import SOURCE OUT`."""

import subprocess
import sys
from pathlib import Path

import pytest

import small_files
from client.data import load
from experiments.data import main


def test_the_command_writes_the_folder_and_says_how_it_is_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    given = small_files.settings("femnist_leaf", tmp_path)
    assert main(["import", given["path"], str(tmp_path / "out")]) == 0
    assert len(load("femnist", path=str(tmp_path / "out")).clients) == 3
    assert main(["import", given["path"], str(tmp_path / "out")]) == 2
    assert "error: " in (said := capsys.readouterr()).err
    assert "exists already; name a new folder" in said.err
    assert said.out == ""


@pytest.mark.parametrize(("arguments", "code"), [(["--help"], 0), ([], 2), (["import", "a"], 2)])
def test_help_and_mistakes(arguments: list[str], code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == code
    said = capsys.readouterr()
    assert "data import SOURCE OUT" in (said.err if code else said.out)


def test_it_is_a_command_of_fedmf(tmp_path: Path) -> None:
    path = small_files.npz(tmp_path / "data.npz")
    command = [sys.executable, "-m", "experiments.data", "import", str(path), str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert f"dataset=by_user_npz dataset.path={tmp_path / 'out'}" in done.stderr
    assert done.stdout == ""
    assert len(load("by_user_npz", path=str(tmp_path / "out")).clients) == 3

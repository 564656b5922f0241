"""The tutorial: its commands run as they are written, and its examples are as short as it says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.command import CONF

ROOT = CONF.parent
TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text()
BLOCK = re.compile(r"```(python|sh)\n(.*?)```", re.DOTALL)
PUBLIC_TEXT = "It was the best of times, it was the worst of times.\n"


def blocks() -> list[tuple[str, str]]:
    """Return (language, text) of every block that is run, in order."""
    return BLOCK.findall(TUTORIAL)


def test_the_plug_in_example_takes_about_ten_lines() -> None:
    example = next(text for language, text in blocks() if text.startswith("# mine.py"))
    assert len([line for line in example.splitlines() if line.strip()]) <= 13


def test_every_command_of_the_tutorial_names_a_command_that_exists() -> None:
    names = re.findall(r"python -m experiments\.(\w+)", TUTORIAL)
    assert {"simulate", "evaluate", "compare", "datasets", "vocabulary"} <= set(names)
    assert all((ROOT / "experiments" / f"{name}.py").is_file() for name in names)


@pytest.mark.slow
def test_the_tutorial_runs_as_written(tmp_path: Path) -> None:
    (tmp_path / "public.txt").write_text(PUBLIC_TEXT)
    search = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = os.environ | {"PATH": search, "PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])}
    for language, text in blocks():
        if language == "python":
            name = text.splitlines()[0].removeprefix("# ")
            (tmp_path / name).write_text(text)
            continue
        done = subprocess.run(
            ["bash", "-ec", text],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, f"{text}\n{done.stderr}"
    pages = ("first/report.html", "mine/report.html", "custom/report.html", "sweep/compare.html")
    assert all((tmp_path / "runs" / page).is_file() for page in pages)
    assert "one user = one client" in (tmp_path / "runs" / "mine" / "privacy.json").read_text()
    assert len(list((tmp_path / "runs" / "sweep").glob("*/summary.json"))) == 4
    assert (tmp_path / "words.txt").read_text().splitlines()[:2] == ["it", "of"]

"""The tutorial and the pages about models: their examples run as written and give what they say."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from client.data.text import read_words
from experiments.settings.reference import CONF
from runs import page_section, summary

pytestmark = pytest.mark.slow

TUTORIAL = (CONF.parent / "docs" / "tutorial.md").read_text()
PAGE = page_section("extend.md", "Models") + page_section("extend.md", "Training")
TRAINED = {"probe": 330, "adapted": 330 + 2 * (64 + 32), "loop": 650}  # parameters of each run of `PAGE`


def run_blocks(text: str, folder: Path) -> Path:
    """Run the programs and commands of a page in `folder`, write its modules there; return the folder of the runs."""
    search = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = os.environ | {
        "PATH": search,
        "PYTHONPATH": os.pathsep.join([str(CONF.parent), str(folder)]),
    }
    for language, block in re.findall(r"```(python|sh)\n(.*?)```", text, re.DOTALL):
        if language == "python" and block.startswith("# "):
            (folder / block.splitlines()[0].removeprefix("# ")).write_text(block)
            continue
        program = ["bash", "-ec"] if language == "sh" else [sys.executable, "-c"]
        done = subprocess.run(
            [*program, block], cwd=folder, env=environment, capture_output=True, text=True, timeout=600
        )
        assert done.returncode == 0, f"{block}\n{done.stderr}"
    return folder / "runs"


def test_the_tutorial_runs_as_written(tmp_path: Path) -> None:
    runs = run_blocks(TUTORIAL, tmp_path)
    pages = [f"{name}/report.html" for name in ("first", "mine", "custom", "fading")]
    assert all((runs / page).is_file() for page in (*pages, "sweep/compare.html"))
    assert "one user = one client" in (runs / "mine" / "privacy.json").read_text()
    assert len(list((runs / "sweep").glob("*/summary.json"))) == 4
    assert len(read_words(tmp_path / "words.txt", 20_000)[0]) == 10_000


def test_the_examples_of_models_run_as_written_and_train_what_they_say(tmp_path: Path) -> None:
    runs = run_blocks(PAGE, tmp_path)
    assert {name: summary(runs / name)["parameters"] for name in TRAINED} == TRAINED

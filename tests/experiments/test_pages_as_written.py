"""The tutorial and the pages about models and privacy: their examples run as written and give the figures that they say."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from client.data.text import read_words
from experiments.settings.reference import CONF
from runs import composed, page_section, simulate, summary

ROOT = CONF.parent
TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text()
BLOCK = re.compile(r"```(python|sh)\n(.*?)```", re.DOTALL)


@pytest.mark.slow
def test_the_tutorial_runs_as_written(tmp_path: Path) -> None:
    search = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = os.environ | {"PATH": search, "PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])}
    for language, text in BLOCK.findall(TUTORIAL):
        if language == "python":
            name = text.splitlines()[0].removeprefix("# ")
            (tmp_path / name).write_text(text)
            continue
        command = ["bash", "-ec", text]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600
        )
        assert done.returncode == 0, f"{text}\n{done.stderr}"
    pages = [f"{name}/report.html" for name in ("first", "mine", "custom", "fading")]
    assert all((tmp_path / "runs" / page).is_file() for page in (*pages, "sweep/compare.html"))
    assert "one user = one client" in (tmp_path / "runs" / "mine" / "privacy.json").read_text()
    assert len(list((tmp_path / "runs" / "sweep").glob("*/summary.json"))) == 4
    assert len(read_words(tmp_path / "words.txt", 20_000)[0]) == 10_000


PAGE = page_section("extend.md", "Models") + page_section("extend.md", "Training")

TRAINED = {"probe": 330, "adapted": 330 + 2 * (64 + 32), "loop": 650}  # parameters of each run


@pytest.mark.long
@pytest.mark.slow
def test_the_examples_of_the_page_run_as_written_and_train_what_it_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for language, text in BLOCK.findall(PAGE):
        if language == "sh":
            words = shlex.split(text)
            assert words[:3] == ["python", "-m", "experiments.simulate"]
            simulate(composed(*words[3:]))
        elif text.startswith("# "):
            (tmp_path / text.splitlines()[0].removeprefix("# ")).write_text(text)
        else:
            exec(compile(text, "the page", "exec"), {})
    assert {name: summary(tmp_path / "runs" / name)["parameters"] for name in TRAINED} == TRAINED
    for name in TRAINED:
        sys.modules.pop(name, None)

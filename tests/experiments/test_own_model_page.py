"""docs/extend.md: the examples of models and training run as they are written."""

import re
import shlex
import sys

import pytest

from runs import composed, page_section, simulate, summary

pytestmark = pytest.mark.long

PAGE = page_section("extend.md", "Models") + page_section("extend.md", "Training")
BLOCK = re.compile(r"```(python|sh)\n(.*?)```", re.DOTALL)
TRAINED = {"probe": 330, "adapted": 330 + 2 * (64 + 32), "loop": 650}  # parameters of each run


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

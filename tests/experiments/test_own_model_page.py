"""docs/own_model.md: its examples run as they are written."""

import json
import re
import shlex
import sys

import pytest

from experiments.settings.reference import CONF
from runs import composed, simulate

pytestmark = pytest.mark.long

PAGE = (CONF.parent / "docs" / "own_model.md").read_text()
BLOCK = re.compile(r"```(python|sh)\n(.*?)```", re.DOTALL)
NAMES = ("probe", "adapted", "loop")
TRAINED = {"probe": 330, "adapted": 330 + 2 * (64 + 32), "loop": 650}  # parameters of each run


@pytest.fixture
def _here(tmp_path, monkeypatch):
    """A current folder whose modules can be imported, and are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in NAMES:
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("_here")
def test_the_examples_of_the_page_run_as_written_and_train_what_it_says(tmp_path):
    for language, text in BLOCK.findall(PAGE):
        if language == "sh":
            start = ["python", "-m", "experiments.simulate"]
            words = shlex.split(text)
            assert words[:3] == start
            simulate(composed(*words[3:]))
        elif text.startswith("# "):
            (tmp_path / text.splitlines()[0].removeprefix("# ")).write_text(text)
        else:
            exec(compile(text, "the page", "exec"), {})
    summaries = {name: json.loads((tmp_path / "runs" / name / "summary.json").read_text()) for name in NAMES}
    assert {name: found["parameters"] for name, found in summaries.items()} == TRAINED


def test_the_page_names_every_setting_of_a_clients_training_but_its_device():
    settings = {f"client.{name}" for name in vars(composed().client)} - {"client.device"}
    assert settings <= set(re.findall(r"client\.\w+", PAGE))

"""The tutorial and the pages about models and privacy: their examples run as written and give the figures that they say."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from client.data.text import read_words
from experiments.settings.compose import compose
from experiments.settings.experiment import build
from experiments.settings.factorization import find_family
from experiments.settings.reference import CONF
from experiments.settings.schema import Settings
from fedmf.mechanisms import design, prefix_sum
from fedmf.outlook import is_too_much_noise, misgivings, noise_of_run
from runs import composed, page_section, simulate, summary

ROOT = CONF.parent
TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text()
BLOCK = re.compile(r"```(python|sh)\n(.*?)```", re.DOTALL)


def test_the_loader_is_as_short_as_it_says_and_the_mechanism_is_its_matrix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    examples = {text.split()[1]: text for language, text in BLOCK.findall(TUTORIAL) if language == "python"}
    assert len([line for line in examples["mine.py"].splitlines() if line.strip()]) <= 12
    (tmp_path / "mechanism_of_the_tutorial.py").write_text(examples["my_mechanism.py"])
    monkeypatch.syspath_prepend(tmp_path)
    _, encoder = design(find_family("mechanism_of_the_tutorial:FAMILY"), prefix_sum(3)).materialize()
    # 1e-6: C^-1 is rounded to float32.
    np.testing.assert_allclose(encoder, [[1, 0, 0], [0.9, 1, 0], [0.81, 0.9, 1]], atol=1e-6)


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


PAGE_BEFORE = Path(__file__).resolve().parents[2] / "docs" / "privacy.md"
ROW = re.compile(r"^\| `(.+)` \| ([\d,]+) \| ([\d.]+) \| ([\d, ]+) \|$", re.MULTILINE)


def rows():
    """(settings, parameters, noise over signal, mean accuracy) of every row of the table."""
    for settings, parameters, figure, accuracies in ROW.findall(PAGE_BEFORE.read_text()):
        each = [float(value) for value in accuracies.split(",")]
        yield settings, int(parameters.replace(",", "")), float(figure), sum(each) / len(each)


@pytest.mark.parametrize(
    "wanted",
    ["privacy.epsilon=0.04", "mechanism=independent privacy.epsilon=0.2", "model=mlp privacy.epsilon=0.1"],
)
def test_a_row_has_the_figures_of_its_plan_and_is_said_above_the_limit_only(wanted):
    ((parameters, figure),) = [(d, figure) for settings, d, figure, _ in rows() if settings == wanted]
    plan = build(compose("config", [*wanted.split(), "privacy.delta=1e-4"], Settings)).plan
    assert plan.dimension == parameters
    assert noise_of_run(plan) == pytest.approx(figure, abs=1e-4)
    about_noise = [sentence for sentence in misgivings(plan) if "noise in the last model" in sentence]
    assert len(about_noise) == is_too_much_noise(figure, parameters)

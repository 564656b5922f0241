"""The tutorial: its commands run as they are written, and its examples are as short as it says."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from client.data import DATASETS, Dataset, load
from client.data.text import read_words
from client.models import build, parameter_count
from experiments.settings.factorization import find_family
from experiments.settings.reference import CONF
from fedmf.errors import DataError, SettingError
from fedmf.mechanisms import design, prefix_sum

ROOT = CONF.parent
TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text()
BLOCK = re.compile(r"```(python|sh)\n(.*?)```", re.DOTALL)


def blocks() -> list[tuple[str, str]]:
    """Return (language, text) of every block that is run, in order."""
    return BLOCK.findall(TUTORIAL)


def importable(monkeypatch: pytest.MonkeyPatch, folder: Path, name: str) -> str:
    """Make the block of the tutorial that begins with the comment `name` a module that can be imported."""
    (example,) = (text for _, text in blocks() if text.startswith(f"# {name}"))
    (folder / f"of_the_tutorial_{name}").write_text(example)
    monkeypatch.syspath_prepend(folder)
    return f"of_the_tutorial_{name}".removesuffix(".py")


def test_every_command_of_the_tutorial_names_a_command_that_exists() -> None:
    names = re.findall(r"python -m experiments\.(\w+)", TUTORIAL)
    assert {"simulate", "evaluate", "compare", "datasets", "vocabulary"} <= set(names)
    assert all(find_spec(f"experiments.{name}") for name in names)


def test_the_plug_in_example_is_short_loads_and_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = importable(monkeypatch, tmp_path, "mine.py")
    lines = (tmp_path / f"{mine}.py").read_text().splitlines()
    assert len([line for line in lines if line.strip()]) <= 12
    dataset = load(f"{mine}:load", size=150)
    shape = {"input_shape": dataset.input_shape, "classes": dataset.classes, "task": dataset.task}
    model = build(f"{mine}:Net", **shape, seed=0, width=3)
    assert (len(dataset.clients), parameter_count(model)) == (150, 4 * 3 + 3 + 3 * 2 + 2)
    assert model(torch.from_numpy(dataset.clients[7].x)).shape == (1, 2)


def test_the_mechanism_of_the_tutorial_is_the_matrix_that_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = importable(monkeypatch, tmp_path, "my_mechanism.py")
    mechanism = design(find_family(f"{mine}:FAMILY"), prefix_sum(3))
    _, encoder = mechanism.materialize()
    # 1e-6: C^-1 is rounded to float32.
    np.testing.assert_allclose(encoder, [[1, 0, 0], [0.9, 1, 0], [0.81, 0.9, 1]], atol=1e-6)


def liar() -> Dataset:
    return 3  # type: ignore[return-value]


def lying_net(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    return 3  # type: ignore[return-value]


def test_code_that_is_no_loader_or_no_model_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "liars", sys.modules[__name__])
    for name, kind, message in (
        ("nowhere:load", SettingError, r"^name is 'nowhere:load', which cannot be imported"),
        (
            "argparse:Namespace",
            SettingError,
            "does not say that it makes a Dataset, so that it was not called",
        ),
        ("liars:liar", DataError, r"must return a client\.data\.Dataset"),
    ):
        with pytest.raises(kind, match=message):
            load(name)
    for name, message in (
        ("argparse:Namespace", "does not say that it makes a Module, so that it was not called"),
        ("liars:lying_net", r"must make a torch\.nn\.Module"),
    ):
        with pytest.raises(SettingError, match=message):
            build(name, input_shape=(2,), classes=2, seed=0)


def test_the_data_page_names_every_data_set() -> None:
    page = (ROOT / "docs" / "data.md").read_text()
    table = page[: page.index("## How much of it is used")]
    rows = [line for line in table.splitlines() if line.startswith("| ")]
    assert [row.split(" | ")[0].removeprefix("| ") for row in rows][1:] == list(DATASETS)


@pytest.mark.slow
def test_the_tutorial_runs_as_written(tmp_path: Path) -> None:
    search = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = os.environ | {"PATH": search, "PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])}
    for language, text in blocks():
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
    assert len(read_words(tmp_path / "words.txt", 20_000).tokens) == 10_000

"""The tutorial: its commands run as they are written, and its examples are as short as it says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from client.data import DATASETS
from client.data.text import read_words
from experiments.settings.factorization import find_family
from experiments.settings.reference import CONF
from fedmf.mechanisms import design, prefix_sum

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


def test_the_data_page_names_every_data_set() -> None:
    page = (ROOT / "docs" / "data.md").read_text()
    table = page[: page.index("## How much of it is used")]
    rows = [line for line in table.splitlines() if line.startswith("| ")]
    assert [row.split(" | ")[0].removeprefix("| ") for row in rows][1:] == list(DATASETS)


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

"""The pages of long computations in docs/results say what the committed runs say: no number was touched by hand or left behind."""

import math
import re
import shutil
from importlib import import_module
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from experiments.reproduce import LONG, Means, sgmf_text_task, sgmf_training
from experiments.reproduce.results import Results

FOLDER = Path(__file__).resolve().parents[3] / "docs" / "results"
STUDIES = {"sgmf_femnist": "sgmf", "sgmf_csgm": "sgmf", "sgmf_text": "sgmf_text"}  # name: file of runs
PAGES = [
    (name, size)
    for name in LONG
    for size in (None, "laptop")
    if size is None or (FOLDER / f"{name}_{size}.md").exists()
]


@pytest.mark.parametrize(("name", "size"), PAGES)
def test_a_committed_page_is_what_the_committed_runs_give(name, size, tmp_path):
    for path in (*FOLDER.glob("*.jsonl"), *FOLDER.glob("*.txt")):
        shutil.copy(path, tmp_path)
    import_module(f"experiments.reproduce.{name}").reproduce(tmp_path, Means(compute=False, size=size))
    (page,) = tmp_path.glob("*.md")
    made, committed = page.read_text(), (FOLDER / page.name).read_text()
    assert made.replace(str(tmp_path), "docs/results") == committed
    drawn = set(re.findall(r"\]\(([\w.]+\.png)\)", committed))
    assert drawn == {path.name for path in tmp_path.glob("*.png")}
    assert all((FOLDER / figure).exists() for figure in drawn)


@pytest.mark.parametrize(("name", "size"), [page for page in PAGES if page[0] in STUDIES])
def test_mechanisms_that_lie_close_have_ten_runs(name, size):
    """All pairs of a row by their first five seeds, not only those that are neighbours in it."""
    module, file = import_module(f"experiments.reproduce.{name}"), STUDIES[name]
    chosen = (sgmf_text_task if name == "sgmf_text" else sgmf_training).SIZES[size or "small"]
    results = Results(FOLDER / f"{file}.jsonl")
    work = sgmf_training.study(chosen, chosen.keep_probabilities[name], module.PAGE.mechanisms)
    results.prefer(work.rates(results))
    close = 0
    for row in work.rows:
        runs = {cell: [results.final(cell)[1][seed] for seed in range(5)] for cell in row}
        for a, b in combinations(row, 2):
            error = math.hypot(*(np.std(runs[cell], ddof=1) / math.sqrt(5) for cell in (a, b)))
            if abs(np.mean(runs[a]) - np.mean(runs[b])) < 2 * error:
                close += 1
                assert all(len(results.final(cell)[1]) >= 10 for cell in (a, b)), (a.mechanism, b.mechanism)
    assert close or size

"""The pages in docs/results show what the committed runs give: no number was touched by hand or left behind."""

import math
import re
import shutil
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from experiments.reproduce import CLOSED, denisov_solvers, henzinger_counting
from experiments.reproduce.__main__ import ReproduceSettings, reproduce
from experiments.reproduce.results import Results
from experiments.reproduce.runner import tuned_rates
from experiments.reproduce.study import Study, studies

FOLDER = Path(__file__).resolve().parents[3] / "docs" / "results"
SHOWN = [
    (name, size)
    for name in studies()
    for size in studies()[name]["sizes"]
    if (name, size) != ("whole_run", "small")
]
TEXT = "".join(path.read_text() for path in FOLDER.glob("*.md"))


@pytest.mark.long
@pytest.mark.parametrize(("name", "size"), SHOWN)
def test_a_committed_page_is_what_the_committed_runs_give(name, size, tmp_path):
    place = f"{studies()[name]['page']}.md"
    for path in (*FOLDER.glob("*.jsonl"), FOLDER / place):
        shutil.copy(path, tmp_path)
    reproduce(ReproduceSettings(name=name, size=size, directory=str(tmp_path), compute=False))
    assert (tmp_path / place).read_bytes() == (FOLDER / place).read_bytes()
    drawn = {path.name for path in tmp_path.glob("*.png")}
    assert drawn
    assert all((FOLDER / figure).exists() and f"({figure})" in TEXT for figure in drawn)


def test_every_figure_shown_is_there_and_every_one_there_is_shown():
    shown = set(re.findall(r"\]\(([\w.]+\.png)\)", TEXT))
    assert shown == {path.name for path in FOLDER.glob("*.png")}


def test_every_mark_is_of_a_result_and_has_a_table_below_it():
    marks = re.findall(r"<!-- reproduce: (\w+): [\w ,]+ -->\n\n\|(?s:.+?)\n\n<!-- /reproduce -->", TEXT)
    assert len(marks) == TEXT.count("<!-- reproduce: ") == TEXT.count("<!-- /reproduce -->")
    sizes = {"denisov_solvers": denisov_solvers.SIZES, "henzinger_counting": henzinger_counting.SIZES}
    closed = {
        name if size == "small" else f"{name}_{size}"
        for name in CLOSED
        for size in sizes.get(name, ["small"])
    }
    assert set(marks) == {Study(*one).stem for one in SHOWN} | closed - {"tighter_accountant"}


@pytest.mark.parametrize(("name", "size"), [(name, size) for name, size in SHOWN if name.startswith("sgmf")])
def test_mechanisms_that_lie_close_have_ten_runs(name, size):
    """All pairs of a row by their first five seeds, not only those that are neighbours in it."""
    study = Study(name, size)
    results = Results(FOLDER / f"{study['runs']}.jsonl")
    tuned, close = tuned_rates(study, results), 0
    for row in study.rows:
        runs = {cell: results.runs(cell, tuned[cell]).accuracies for cell in row.values()}
        for a, b in combinations(runs, 2):
            first = [[runs[cell][seed] for seed in range(5)] for cell in (a, b)]
            error = math.hypot(*(np.std(one, ddof=1) / math.sqrt(5) for one in first))
            if abs(np.mean(first[0]) - np.mean(first[1])) < 2 * error:
                close += 1
                assert all(len(runs[cell]) >= 10 for cell in (a, b)), (a.mechanism, b.mechanism)
    assert close or size == "laptop"

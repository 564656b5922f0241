"""The pages of long computations in docs/results say what the committed runs say: no number was touched by hand or left behind."""

import re
import shutil
from importlib import import_module
from pathlib import Path

import pytest

from experiments.reproduce import LONG, Means

FOLDER = Path(__file__).resolve().parents[3] / "docs" / "results"
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

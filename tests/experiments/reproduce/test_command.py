"""The command: it lists, refuses mistakes before anything is written, prints JSON, and writes the tables of pages and files.

The pages and files in docs/results are what the committed runs give: no number was touched by hand or left behind.
"""

import json
import re
import shutil
from functools import partial
from pathlib import Path

import pytest

from experiments.reproduce import CLOSED, Table, chen, denisov, henzinger, tools
from experiments.reproduce.__main__ import ReproduceSettings, reproduce, titles
from experiments.reproduce.study import Study, studies
from fedmf.errors import SettingError
from runs import ended

FOLDER = Path(__file__).resolve().parents[3] / "docs" / "results"
TEXT = "".join(path.read_text() for path in FOLDER.glob("*.md"))
SHOWN = [(name, size) for name, study in studies().items() for size in study["sizes"]]
SHOWN.remove(("whole_run", "small"))


@pytest.fixture
def call(capsys, tmp_path, monkeypatch):
    """Call the command in an empty folder; return exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    run = partial(tools.run, reproduce, ReproduceSettings, "What it does.")
    return lambda *arguments: ended(capsys, run, arguments)


def test_without_a_name_every_result_is_listed_and_help_names_every_key(call, tmp_path):
    code, out, _ = call()
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == [*studies(), *CLOSED]
    assert [entry["name"] for entry in json.loads(call("output=json")[1])] == list(titles())
    code, out, _ = call("--help")
    assert code == 0
    assert out.startswith("What it does.")
    assert "  workers (1): processes that train" in out
    assert list(tmp_path.iterdir()) == []  # nothing is computed


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["name=figure_9"], "sgmf_figure1"),
        (["name=whole_run", "directory="], "directory is null"),
        (["name=henzinger_counting", "size=huge"], "it must be one of small, laptop"),
        (["name=sgmf_figure1", "data=a.npz"], "sgmf_figure1 trains nothing"),
    ],
)
def test_mistakes_exit_2_and_nothing_is_computed(call, tmp_path, arguments, said):
    code, out, err = call(*arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert not list(tmp_path.rglob("*.*"))


def test_tables_go_between_their_marks_or_into_a_file_and_json_has_all(call, tmp_path, monkeypatch):
    points = Table("points", ("a",), ((1.5,),), note="A note.")
    tables = (points, Table("more, of it", ("b", "c"), ((None, "1, 2"),), note="Where."))
    monkeypatch.setattr(chen, "sgmf_figure1", lambda path, size: (tables, 0.25))
    page = "Mine\r\n\n<!-- reproduce: sgmf_figure1: points -->\nold\n<!-- /reproduce -->\nEnd"
    (tmp_path / "chen.md").write_bytes(page.encode())
    table = "\n| a |\n| ---: |\n| 1.5 |\n\nA note.\n\nWorst relative error: 0.25.\n\n"
    for _ in range(2):
        code, out, _ = call("name=sgmf_figure1", f"directory={tmp_path}", "output=json")
        assert (tmp_path / "chen.md").read_bytes().decode() == page.replace("old\n", table)
    found = json.loads(out)
    assert (code, found["rows"], found["worst_relative_error"]) == (0, [{"a": 1.5}], 0.25)
    assert found["sections"] == [{"heading": "more, of it", "rows": [{"b": None, "c": "1, 2"}]}]
    (file,) = tmp_path.glob("*.csv")
    assert (file.name, file.read_text()) == ("sgmf_figure1.more_of_it.csv", '# Where.\nb,c\n,"1, 2"\n')
    assert tools.update(tmp_path / "none.md", "reproduce", {"a: one": "new"}) == {"a: one"}
    (tmp_path / "p.md").write_text("<!-- reproduce: a: one -->\nrest of my page")
    with pytest.raises(SettingError, match="lacks <!-- /reproduce --> after it"):
        tools.update(tmp_path / "p.md", "reproduce", {"a: one": "1"})
    assert (tmp_path / "p.md").read_text().endswith("rest of my page")


@pytest.mark.long
@pytest.mark.parametrize(("name", "size"), SHOWN)
def test_a_committed_page_and_its_files_are_what_the_committed_runs_give(name, size, tmp_path):
    place, stem = f"{studies()[name]['page']}.md", Study(name, size).stem
    for path in (*FOLDER.glob("*.jsonl"), FOLDER / place):
        shutil.copy(path, tmp_path)
    reproduce(ReproduceSettings(name=name, size=size, directory=str(tmp_path), compute=False))
    assert (tmp_path / place).read_bytes() == (FOLDER / place).read_bytes()
    made = {path.name: path.read_bytes() for path in tmp_path.glob("*.csv")}
    assert made == {path.name: path.read_bytes() for path in FOLDER.glob(f"{stem}.*.csv")}
    drawn = {path.name for path in tmp_path.glob("*.png")}
    assert drawn
    assert all((FOLDER / figure).exists() and f"({figure})" in TEXT for figure in drawn)


def test_every_figure_and_file_is_linked_and_every_mark_is_of_a_result_and_has_a_table_below_it():
    for ending in ("png", "csv"):
        linked = re.findall(rf"\]\(([\w.]+\.{ending})\)", TEXT)
        assert set(linked) == {path.name for path in FOLDER.glob(f"*.{ending}")}
    marks = re.findall(r"<!-- reproduce: (\w+): [\w ,]+ -->\n\n\|(?s:.+?)\n\n<!-- /reproduce -->", TEXT)
    assert len(marks) == TEXT.count("<!-- reproduce: ") == TEXT.count("<!-- /reproduce -->")
    sizes = {"denisov_solvers": denisov.SIZES, "henzinger_counting": henzinger.SIZES}
    closed = {
        name if size == "small" else f"{name}_{size}"
        for name in CLOSED
        for size in sizes.get(name, ["small"])
    }
    files = {path.name.partition(".")[0] for path in FOLDER.glob("*.csv")}
    assert {*marks} | files == {Study(*one).stem for one in SHOWN} | closed - {"tighter_accountant"}

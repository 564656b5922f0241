"""The command: it lists, refuses mistakes before anything is written, and prints JSON for programs."""

import json

import pytest

from experiments.reproduce import CLOSED, Reproduction, Table, command_line, sgmf_figure1
from experiments.reproduce.__main__ import ReproduceSettings, reproduce, titles
from experiments.reproduce.study import studies


def called(capsys, *arguments):
    with pytest.raises(SystemExit) as end:
        command_line.run(reproduce, ReproduceSettings, "What it does.", list(arguments))
    return end.value.code, *capsys.readouterr()


def test_without_a_name_every_result_is_listed_with_what_it_is(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, _ = called(capsys)
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == [*studies(), *CLOSED]
    assert "Denisov et al. 2022, Table 2" in out
    document = json.loads(called(capsys, "output=json")[1])
    assert [entry["name"] for entry in document] == list(titles())
    assert list(tmp_path.iterdir()) == []  # nothing is computed


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["name=figure_9"], "sgmf_figure1"),
        (["name=whole_run", "directory="], "directory: Incompatible value"),
        (["name=whole_run", "size=huge"], "size is 'huge'; it must be one of full, small"),
        (["name=sgmf_figure1", "size=laptop"], "size is 'laptop'; it must be one of small"),
        (["name=henzinger_counting", "size=huge"], "it must be one of small, laptop"),
        (["name=sgmf_figure1", "data=a.npz"], "sgmf_figure1 trains nothing"),
        (["name=whole_run", "workers=0"], "workers"),
        (["nome=whole_run"], "The settings are name, directory"),
        (["whole_run"], "whole_run is not a setting; write KEY=VALUE"),
        (["compute=perhaps"], "perhaps"),
    ],
)
def test_mistakes_exit_2_and_nothing_is_computed(capsys, tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    code, out, err = called(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert said in err
    assert not list(tmp_path.rglob("*.*"))


def test_help_names_every_key(capsys):
    code, out, _ = called(capsys, "--help")
    assert code == 0
    assert out.startswith("What it does.")
    assert "  workers (1): processes that train" in out


def test_tables_go_to_the_page_and_json_has_rows_and_the_worst_error(capsys, tmp_path, monkeypatch):
    tables = (Table("points", ("a",), ((1.5,),), note="A note."), Table("more", ("b",), ((None,),)))
    made = Reproduction(tables, 0.25, (tmp_path / "a.png",))
    monkeypatch.setattr(sgmf_figure1, "reproduce", lambda directory, size: made)
    (tmp_path / "chen.md").write_text("<!-- reproduce: sgmf_figure1: points -->\n<!-- /reproduce -->\n")
    code, out, _ = called(capsys, "name=sgmf_figure1", f"directory={tmp_path}", "output=json")
    document = json.loads(out)
    assert code == 0
    assert document["rows"] == [{"a": 1.5}]
    assert document["sections"] == [{"heading": "more", "rows": [{"b": None}]}]
    assert document["worst_relative_error"] == 0.25
    assert document["figures"] == [str(tmp_path / "a.png")]
    text = (tmp_path / "chen.md").read_text()
    assert "| 1.5 |\n\nA note.\n\nWorst relative error: 0.25.\n\n<!-- /reproduce -->" in text
    assert "more" not in text

"""`reproduce` without a name lists the results."""

import json

import pytest

from experiments.cli import command
from experiments.reproduce import NAMES, Reproduction, sgmf_figure1
from experiments.reproduce.__main__ import ReproduceSettings, reproduce


def listed(capsys, tmp_path, monkeypatch, *arguments):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        command.run(reproduce, "reproduce", ReproduceSettings, "", list(arguments))
    assert end.value.code == 0
    assert list(tmp_path.iterdir()) == []  # nothing is computed
    return capsys.readouterr().out


def test_without_a_name_every_result_is_listed_with_what_it_is(capsys, tmp_path, monkeypatch):
    text = " ".join(listed(capsys, tmp_path, monkeypatch).replace("│", " ").split())
    for name in NAMES:
        assert f" {name} " in text
    assert "Table 2 of Denisov, McMahan" in text


def test_the_list_is_json_for_programs(capsys, tmp_path, monkeypatch):
    document = json.loads(listed(capsys, tmp_path, monkeypatch, "output=json"))
    assert [entry["name"] for entry in document] == list(NAMES)
    assert all(entry["about"].endswith(".") and "\n" not in entry["about"] for entry in document)


@pytest.mark.parametrize("given", ["directory=", "directory='  '"])
def test_an_empty_folder_is_refused_and_nothing_is_written_here(capsys, tmp_path, monkeypatch, given):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        command.run(
            reproduce, "reproduce", ReproduceSettings, "", ["name=sgmf_femnist", "compute=false", given]
        )
    assert end.value.code == 2
    assert "directory is empty; it must name the folder" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_what_a_list_has_no_use_of_is_refused(capsys):
    with pytest.raises(SystemExit) as end:
        command.run(reproduce, "reproduce", ReproduceSettings, "", ["size=small"])
    assert end.value.code == 2
    assert "a list of the results trains no models" in capsys.readouterr().err


def test_what_comes_in_one_size_is_small_and_its_page_does_not_name_it(tmp_path, monkeypatch):
    computed = Reproduction("One", ("a",), ((1,),), None, stem="one", about="What it is.")
    monkeypatch.setattr(sgmf_figure1, "reproduce", lambda directory: computed)
    arguments = ["name=sgmf_figure1", "size=small", f"directory={tmp_path}"]
    with pytest.raises(SystemExit) as end:
        command.run(reproduce, "reproduce", ReproduceSettings, "", arguments)
    assert end.value.code == 0
    assert f"name=sgmf_figure1 directory={tmp_path}`" in (tmp_path / "one.md").read_text()

"""Figure 1 of the paper, computed again."""

import json

import pytest

from experiments.cli import command
from experiments.reproduce.__main__ import ReproduceSettings, reproduce

pytestmark = pytest.mark.long


def test_figure_1_matches_the_numbers_computed_apart(tmp_path, capsys):
    arguments = ["name=sgmf_figure1", f"directory={tmp_path}", "output=json"]
    with pytest.raises(SystemExit) as caught:
        command.run(reproduce, "reproduce", ReproduceSettings, "doc", arguments)
    assert caught.value.code == 0
    document = json.loads(capsys.readouterr().out)
    assert len(document["rows"]) == 15
    assert 0 < document["worst_relative_error"] < 1e-3
    assert (tmp_path / "sgmf_figure1.png").read_bytes().startswith(b"\x89PNG")


def test_an_unknown_result_is_refused_with_those_there_are(capsys):
    with pytest.raises(SystemExit) as caught:
        command.run(reproduce, "reproduce", ReproduceSettings, "doc", ["name=figure_9"])
    assert caught.value.code == 2
    assert "sgmf_figure1" in capsys.readouterr().err

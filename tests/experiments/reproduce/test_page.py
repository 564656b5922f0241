"""The page of a result that trains no models: what the command computed stands on it, and nothing else."""

import pytest

from experiments.cli import command
from experiments.reproduce import Reproduction, Section, page, sgmf_figure1
from experiments.reproduce.__main__ import ReproduceSettings, reproduce

RESULT = Reproduction(
    "A result",
    ("rounds", "ours", "theirs"),
    ((16, 1.25, None), (32, 216.945543, "not converged")),
    0.0123,
    notes=("A note.",),
    stem="a_result",
    about="\n**What is computed.** This.\n",
    heading="Main",
    sections=(Section("Further", "Words.", ("n",), ((4,),)),),
)


def test_every_cell_note_and_section_stands_on_the_page(tmp_path):
    figure = tmp_path / "a_result.png"
    with_figure = Reproduction(**{**vars(RESULT), "figures": (figure,)})
    path = page.write(tmp_path, ["name=a_result", "directory=here"], with_figure, page.Took(250.0, 4.21))
    assert path == tmp_path / "a_result.md"
    text = path.read_text()
    assert text.startswith(
        "# A result\n\nMade by `python -m experiments.reproduce name=a_result directory=here` "
    )
    assert "in 4.2 min of wall time,\n4.2 s of CPU time" in text
    assert "| rounds | ours | theirs |\n| ---: | ---: | ---: |\n| 16 | 1.25 | – |\n" in text
    assert "| 32 | 216.9455 | not converged |\n" in text
    assert "Worst relative error: 0.012.\n\n## Main\n" in text
    order = [
        "**What is computed.** This.",
        "![A result](a_result.png)",
        "## Main",
        "A note.",
        "## Further\n\nWords.",
    ]
    assert [text.index(part) for part in order] == sorted(text.index(part) for part in order)
    assert text.endswith("| n |\n| ---: |\n| 4 |\n")


def test_the_command_writes_the_page_with_its_own_arguments(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sgmf_figure1, "EXPECTED_LEFT", {100.0: 1.3987396586351584})
    monkeypatch.setattr(sgmf_figure1, "EXPECTED_RIGHT", {})
    monkeypatch.setattr(sgmf_figure1, "draw", lambda path: path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        command.run(reproduce, "reproduce", ReproduceSettings, "", ["name=sgmf_figure1", "directory=out"])
    assert end.value.code == 0
    text = (tmp_path / "out" / "sgmf_figure1.md").read_text()
    assert "`python -m experiments.reproduce name=sgmf_figure1 directory=out`" in text
    row = next(line for line in text.splitlines() if line.startswith("| left | 100 | 0.01 |"))
    ours, expected = (float(cell) for cell in row.split("|")[4:6])
    assert expected == pytest.approx(1.3987397, abs=1e-6)
    assert expected * (1 - 1e-3) < ours <= expected

"""Which code played a run: every new line says it, a page names it, and runs of two codes are not mixed unasked."""

import json

import pytest

import tiny_cells
from experiments.cli import command
from experiments.reproduce import Means, whole_run
from experiments.reproduce.__main__ import ReproduceSettings, reproduce
from experiments.reproduce.results import Results
from experiments.reproduce.trials import Outcome, Trial
from experiments.run_files.provenance import own_code
from fedmf.errors import SettingError

CELL = whole_run.cell(whole_run.TASKS[0], "independent", 0.1, 8.0)
OLD = {**json.loads(Trial(CELL, 0.45, 0).key), "accuracy": 0.8, "loss": 0.5, "seconds": 6.0}


def written(directory, *lines):
    """Write lines of results; return the file."""
    path = directory / "whole_run.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def page(directory):
    whole_run.reproduce(directory, Means(compute=False))
    return (directory / "whole_run.md").read_text()


def test_a_new_line_names_the_code_and_the_wall_time_of_its_run(tmp_path):
    results = Results(tmp_path / "runs.jsonl")
    trial = Trial(tiny_cells.CHAINS[0][0], 0.3, 0)
    outcome = tiny_cells.PLAY(trial)
    results.add(trial, outcome)
    (line,) = map(json.loads, (tmp_path / "runs.jsonl").read_text().splitlines())
    assert {name: line[name] for name in ("fedmf", "code")} == own_code()
    assert line["wall"] == outcome.wall > 0
    assert Results(tmp_path / "runs.jsonl").find(trial) == outcome


@pytest.mark.parametrize("said", [{}, {"fedmf": "0.0.1", "code": "0123456789abcdef"}])
def test_runs_are_not_added_beside_lines_of_other_code_unless_that_is_allowed(tmp_path, said):
    path = written(tmp_path, {**OLD, **said})
    before = path.read_bytes()
    with pytest.raises(SettingError, match="mix_code is false"):
        Results(path).add(Trial(CELL, 0.45, 1), Outcome(0.7, 0.5, 6.0, 6.0))
    assert path.read_bytes() == before
    mixed = Results(path, mix_code=True)
    mixed.add(Trial(CELL, 0.45, 1), Outcome(0.7, 0.5, 6.0, 6.0))
    mixed.sort()
    lines = path.read_text().splitlines()
    assert json.loads(lines[0]) == {**OLD, **said}  # what was there is not given another code
    assert json.loads(lines[1])["code"] == own_code()["code"]


def test_the_command_refuses_before_the_first_run_and_leaves_everything_as_it_was(tmp_path, capsys):
    path = written(tmp_path, OLD)
    before = path.read_bytes()
    with pytest.raises(SystemExit) as caught:
        command.run(reproduce, "reproduce", ReproduceSettings, "doc",
                    ["name=whole_run", "size=small", f"directory={tmp_path}"])  # fmt: skip
    said = capsys.readouterr().err
    assert caught.value.code == 2
    assert "1 line that does not name its code" in said
    assert "mix_code=true" in said
    assert path.read_bytes() == before
    assert not list(tmp_path.glob("*.md"))


def test_the_page_names_the_codes_of_its_lines_and_how_many_each_has(tmp_path):
    new = {**OLD, "seed": 1, "fedmf": "0.0.1", "code": "0123456789abcdef"}
    written(tmp_path, OLD, new)
    said = page(tmp_path)
    assert (
        "1 line by the code 0123456789abcdef of fedmf 0.0.1, and 1 line that does not name its code. "
        "Those were computed with commit 7f0c7e6." in said
    )
    written(tmp_path, new)
    assert "commit 7f0c7e6" not in page(tmp_path)


def test_the_page_says_wall_time_where_it_was_measured_and_that_cpu_time_is_none(tmp_path):
    written(tmp_path, OLD)
    assert "which is not wall time. Wall time was not measured." in page(tmp_path)
    written(tmp_path, OLD, {**OLD, "seed": 1, "wall": 120.0})
    assert "Wall time, measured for 1 of them: 2 minutes one after the other, 120.0 s a run; it is missing for 1." in page(tmp_path)  # fmt: skip


def test_nothing_is_played_for_a_file_that_would_not_take_it(tmp_path):
    played = []
    path = written(tmp_path, OLD)
    with pytest.raises(SettingError, match="mix_code"):
        tiny_cells.work(path, player=played.append)
    assert played == []

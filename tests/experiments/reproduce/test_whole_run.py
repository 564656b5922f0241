"""The comparison of whole-run noise: what is compared, its page from whatever runs there are, its command."""

import json
from pathlib import Path

import numpy as np
import pytest

import runs
from experiments.cli import command
from experiments.reproduce import Means, whole_run
from experiments.reproduce.__main__ import ReproduceSettings, folder, reproduce
from experiments.reproduce.results import Results
from experiments.reproduce.trials import Outcome, Trial, prepare
from experiments.run_files.same_settings import fixed
from experiments.settings.compose import compose
from experiments.settings.schema import Settings
from fedmf.errors import SettingError

pytestmark = pytest.mark.long

FULL, SMALL = whole_run.SIZES["full"], whole_run.SIZES["small"]


def called(capsys, *arguments):
    """Call the command; return its exit code, stdout and stderr."""
    with pytest.raises(SystemExit) as caught:
        command.run(reproduce, "reproduce", ReproduceSettings, "doc", arguments)
    said = capsys.readouterr()
    return caught.value.code, said.out, said.err


def settings_of(cell):
    return compose("config", cell.overrides, Settings)


def fill(directory, accuracies, task=whole_run.TASKS[0], keep=0.1, epsilon=8.0):
    """Put runs with these accuracies, by mechanism, into the file of results."""
    results = Results(directory / "whole_run.jsonl")
    for mechanism, column in accuracies.items():
        cell = whole_run.cell(task, mechanism, keep, epsilon)
        for seed, accuracy in enumerate(column):
            results.add(Trial(cell, 0.45, seed), Outcome(accuracy, 0.5, 6.0))


def row(page, keep, epsilon):
    """Return the cells of the first row of a page's table for a keep probability and an epsilon."""
    line = next(line for line in page.splitlines() if line.startswith(f"| {keep:g} | {epsilon:g} |"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_all_that_the_issue_asks_for_is_compared():
    for task in whole_run.TASKS:
        cells = whole_run.cells_of(task, FULL)
        assert {cell.keep_probability for cell in cells} == {0.1, 1.0}
        assert {cell.epsilon for cell in cells} == {1.0, 2.0, 4.0, 8.0}
        assert len(cells) == len(set(cells)) == 8 * len(whole_run.MECHANISMS)
        seeds = whole_run.seeds_of(task, FULL)
        assert len(seeds.final) >= 10
        assert not {*seeds.tuning} & {*seeds.final}


def test_the_digits_task_is_the_default_run():
    """All but the rate, which is tuned, delta, and the secrets."""
    cell = whole_run.cell(whole_run.TASKS[0], "whole run", 0.1, 8.0)
    assert fixed(settings_of(cell)) == fixed(runs.composed("privacy.delta=1e-4"))


def test_digits_have_nineteen_rounds_an_epoch_while_they_are_tuned_as_the_page_says():
    cell = whole_run.cell(whole_run.TASKS[0], "independent", 0.1, 8.0)
    rounds = [
        prepare(Trial(cell, 0.3, 100, share), None)[0].plan.participation.rounds_per_epoch
        for share in (whole_run.HELD_OUT, 0.0)
    ]
    assert rounds == [19, 22]
    assert "19 rounds an epoch instead of 22" in whole_run.HEAD


def test_a_row_differs_in_the_noise_only():
    for task in whole_run.TASKS:
        cells = [whole_run.cell(task, mechanism, 0.1, 2.0) for mechanism in whole_run.MECHANISMS]
        own = [
            {
                key: value
                for key, value in fixed(settings_of(cell)).items()
                if key not in ("mechanism.name", "workload")
            }
            for cell in cells
        ]
        assert all(settings == own[0] for settings in own)
        assert own[0]["privacy.epsilon"] == 2.0
        assert own[0]["compression.keep_probability"] == 0.1
    assert {(settings_of(cell).mechanism.name, settings_of(cell).workload.name) for cell in cells} == {
        ("independent", "prefix_sum"),
        ("honaker_online", "prefix_sum"),
        ("optimal", "prefix_sum"),
        ("optimal", "momentum"),
        ("optimal", "run"),
    }


def test_the_page_says_how_many_runs_there_are_where_some_are_missing(tmp_path):
    fill(tmp_path, {"independent": [0.8, 0.81, 0.79]})
    whole_run.reproduce(tmp_path, Means(compute=False))
    page = (tmp_path / "whole_run.md").read_text()
    assert row(page, 0.1, 8)[2] == "**80.0 ± 0.6** (3)"
    assert row(page, 0.1, 4)[2:] == ["–"] * (len(row(page, 0.1, 4)) - 2)


def test_the_page_can_be_made_before_any_run_has_ended_and_changes_no_result(tmp_path):
    whole_run.reproduce(tmp_path, Means(compute=False))
    assert "No run has ended yet" in (tmp_path / "whole_run.md").read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["whole_run.md"]
    (tmp_path / "whole_run.jsonl").write_text('{"task": "torn')  # another process is writing
    whole_run.reproduce(tmp_path, Means(compute=False))
    assert (tmp_path / "whole_run.jsonl").read_text() == '{"task": "torn'


def test_the_command_writes_the_page_and_the_table_from_the_runs_that_are_there(tmp_path, capsys):
    fill(tmp_path, {"independent": [0.8, 0.82]})
    code, out, _ = called(
        capsys, "name=whole_run", f"directory={tmp_path}", "compute=false", "output=json", "size=small"
    )
    document = json.loads(out)
    assert code == 0
    assert document["worst_relative_error"] is None
    (found,) = document["rows"]
    assert (found["mechanism"], found["seeds"], found["learning rate"]) == ("independent", 2, 0.45)
    assert found["accuracy, %"] == pytest.approx(81.0)
    assert found["standard error, %"] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["name=whole_run", "size=huge"], "size is 'huge'; it must be one of full, small."),
        (["name=whole_run", "workers=0"], "workers is 0"),
        (["name=whole_run", "data=/nowhere.npz"], "data is /nowhere.npz, which does not exist"),
        (["name=whole_run", "data="], "data is empty; it must name the file of the data."),
        (
            ["name=whole_run", f"data={Path(__file__).parent}"],
            "which is no file; it must name the file of the data.",
        ),
        (["name=sgmf_figure1", "size=laptop"], "size is laptop, but sgmf_figure1 comes in one size"),
        (["name=sgmf_figure1", "workers=2"], "workers is 2, but sgmf_figure1 trains no models"),
    ],
)
def test_mistakes_are_refused_before_anything_is_written(tmp_path, capsys, arguments, said):
    code, _, err = called(capsys, f"directory={tmp_path}/new", *arguments)
    assert code == 2
    assert said in err
    assert not (tmp_path / "new").exists()


def test_what_a_refused_call_made_of_its_folder_goes_again_and_nothing_else(tmp_path, capsys):
    kept = tmp_path / "there"
    kept.mkdir()
    arguments = ("name=whole_run", "size=huge")
    assert called(capsys, f"directory={kept}/a/b", *arguments)[0] == 2
    assert called(capsys, f"directory={kept}", *arguments)[0] == 2
    assert list(tmp_path.iterdir()) == [kept]
    assert list(kept.iterdir()) == []


def fail_in(directory, error, content):
    """Fail in a folder, with a file in it if there is content for one."""
    with folder(directory):
        if content:
            (directory / "runs.jsonl").write_text(content)
        raise error


def test_a_call_that_fails_keeps_a_folder_in_which_something_is(tmp_path):
    for error in (SettingError, KeyboardInterrupt):
        for name in ("empty", "full"):
            new = tmp_path / name / "new"
            with pytest.raises(error):
                fail_in(new, error, "hours of work" if name == "full" else None)
        assert not (tmp_path / "empty").exists()
        assert (tmp_path / "full" / "new" / "runs.jsonl").read_text() == "hours of work"


def test_a_folder_that_cannot_be_made_leaves_none_of_its_path(tmp_path):
    for path in (tmp_path / "new" / ("x" * 300), tmp_path / "a" / ".." / "b"):
        with pytest.raises((OSError, SettingError)):
            fail_in(path, SettingError("refused"), None)
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", ["other", "arrays missing", "text", "damaged", "locked"])
def test_data_of_another_kind_are_refused_before_the_first_run(tmp_path, capsys, content):
    path = tmp_path / "data.npz"
    arrays = {name: np.zeros(3, "u1") for name in whole_run.ARRAYS}
    if content == "other":
        np.savez(path, **arrays)
    elif content == "arrays missing":
        np.savez(path, x=arrays["x"])
    elif content in ("damaged", "locked"):
        np.savez_compressed(path, **{name: np.arange(5000) for name in arrays})
        stored = bytearray(path.read_bytes())
        if content == "damaged":
            stored[100:200] = b"\xff" * 100  # of what zlib reads
        else:
            stored[stored.index(b"PK\1\2") + 8] |= 1  # the flag of a password
        path.write_bytes(stored)
    else:
        path.write_text("x,y")
    code, _, err = called(capsys, f"directory={tmp_path}/new", "name=whole_run", f"data={path}")
    assert code == 2
    assert str(path) in err
    assert "pickle" not in err  # what NumPy says of files of another kind is a bad advice
    assert "other data than" in err if content == "other" else "is no file of x, y, user, split" in err
    assert not (tmp_path / "new").exists()


def test_a_smaller_size_writes_a_page_of_its_own(tmp_path):
    whole_run.reproduce(tmp_path, Means(compute=False))
    before = (tmp_path / "whole_run.md").read_bytes()
    whole_run.reproduce(tmp_path, Means(size="small", compute=False))
    assert (tmp_path / "whole_run.md").read_bytes() == before
    assert (tmp_path / "whole_run_small.md").exists()


def test_without_the_data_only_digits_is_computed_and_this_is_said(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(
        whole_run, "carry_out", lambda chains, *_, **named: asked.append((len(chains), named["runs"]))
    )
    monkeypatch.setattr(whole_run, "check_data", lambda path: None)
    notes = whole_run.compute(tmp_path, Means(), FULL)
    every = whole_run.compute(tmp_path, Means(data=Path("there.npz")), FULL)
    chains, cells = 2 * len(whole_run.MECHANISMS), 8 * len(whole_run.MECHANISMS)
    assert asked == [(chains, 10 * cells), (3 * chains, 30 * cells)]
    assert "Not computed: writers, logistic; writers, mlp" in notes[0]
    assert every == ()

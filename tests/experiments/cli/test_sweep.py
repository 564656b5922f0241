"""A sweep: what its sweeper is told is checked before, one line a job, the failures counted, and the command that compares what came of it."""

import json
import math
import sys
from enum import Enum
from pathlib import Path

import pytest
from omegaconf import OmegaConf

import runs
from experiments.cli.sweep import LONGEST_WORDS, Tally, tally
from experiments.run_files.reader import read_run
from experiments.settings.output import Output
from experiments.settings.reference import PACKAGE, called
from experiments.settings.sweep import SweepJob, check_sweeper, check_value, sweep_job
from experiments.simulate import job
from fedmf.errors import SettingError

SMALL = ("dataset=synthetic", "dataset.clients=40", "dataset.features=4", "population.cohort_size=10",
         "population.epochs=1", "population.rounds_per_epoch=2")  # fmt: skip
BASIC = {"_target_": "hydra._internal.core_plugins.basic_sweeper.BasicSweeper", "params": None}
OPTUNA = {
    "_target_": "hydra_plugins.hydra_optuna_sweeper.optuna_sweeper.OptunaSweeper",
    "n_trials": 20,
    "params": None,
}


def hydra(number, task, sweeper=BASIC):
    """Return Hydra's settings of a job, as far as they matter."""
    settings = {
        "job": {"num": number},
        "sweeper": sweeper,
        "overrides": {"task": task},
        "sweep": {"dir": "multirun"},
    }
    return OmegaConf.create(settings)


def test_a_job_is_named_by_its_number_of_all_and_by_what_is_swept_alone():
    arguments = ["-m", "mechanism=blt,optimal", "privacy.epsilon=2,4,8", "seed=range(0,2)", "model=mlp"]
    task = ["mechanism=blt", "privacy.epsilon=2", "seed=0", "model=mlp"]
    named = sweep_job(hydra(2, task), arguments)
    assert (named.label, named.words) == ("job 3/12", "mechanism=blt epsilon=2 seed=0")
    both = ["client.learning_rate=1,2", "optimizer.learning_rate=1,2"]
    task = ["client.learning_rate=1", "optimizer.learning_rate=2"]
    assert sweep_job(hydra(0, task), both).words == "client.learning_rate=1 optimizer.learning_rate=2"


def test_what_the_sweepers_own_settings_sweep_counts_too():
    sweeper = {**BASIC, "params": {"seed": "1,2,3"}}
    assert sweep_job(hydra(0, ["seed=1"], sweeper), []).label == "job 1/3"


def test_a_sweeper_that_learns_has_as_many_jobs_as_trials():
    arguments = ["hydra/sweeper=optuna", "optimizer.learning_rate=tag(log,interval(0.1,1))"]
    named = sweep_job(hydra(4, ["optimizer.learning_rate=0.3"], OPTUNA), arguments)
    assert (named.label, named.words) == ("job 5/20", "learning_rate=0.3")
    grid = {**OPTUNA, "sampler": {"_target_": "optuna.samplers.GridSampler"}}
    assert sweep_job(hydra(4, [], grid), arguments).label == "job 5"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run in a sweep's directory."""
    return read_run(runs.run(tmp_path_factory.mktemp("sweep") / "0", *SMALL, "metrics=[f1]"))


def at(number, root, total=4, words="mechanism=blt epsilon=2"):
    return SweepJob(number, total, words, Path(root))


def test_a_job_has_one_line_on_stdout_and_a_failed_one_on_stderr(tmp_path, capsys, finished):
    counted = Tally(tmp_path / "t")
    counted.finished(at(3, "s", total=12), Output.text, finished, "accuracy")
    counted.finished(at(4, "s", total=12), Output.text, finished, "f1")
    counted.failed(at(5, "s", total=12, words="x" * 200), SettingError("seed is -1; it must be positive."))
    said = capsys.readouterr()
    figures = finished.summary
    assert said.out.splitlines() == [
        f"job 3/12, mechanism=blt epsilon=2: {100 * figures['accuracy']:.1f} %",
        f"job 4/12, mechanism=blt epsilon=2: f1 {figures['f1']:.4g}",
    ]
    assert said.err == f"job 5/12, {'x' * (LONGEST_WORDS - 1)}…: failed: seed is -1; it must be positive.\n"


def test_the_end_counts_failures_and_gives_the_command_that_compares(tmp_path, capsys, finished, monkeypatch):
    root = finished.directory.parent
    monkeypatch.chdir(root.parent)
    monkeypatch.setattr(sys, "argv", [str(PACKAGE / "simulate.py")])
    with tally() as counted:
        counted.finished(at(1, root), Output.text, finished, "accuracy")
        counted.failed(at(2, root), SettingError("no."))
        counted.failed(at(4, root), SettingError("no."))
        capsys.readouterr()
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "4 jobs: 1 finished, 2 failed (jobs 2, 4), 1 not run"
    assert said[1] == f"compare: python -m experiments.compare directory={root.name}"
    assert "runs on the same clients compose" in said[2]
    assert not counted.file.exists()


def test_the_command_is_that_of_the_console_where_it_was_called_so(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/usr/bin/fedmf simulate", "-m"])
    assert called("compare") == "fedmf compare"


def test_where_runs_lie_elsewhere_the_command_names_the_folder_that_holds_them(tmp_path, capsys, finished):
    with tally() as counted:
        counted.finished(at(1, tmp_path / "multirun"), Output.text, finished, "accuracy")
        capsys.readouterr()
    assert str(finished.directory) in capsys.readouterr().out


def test_with_json_stdout_is_left_to_the_documents(tmp_path, capsys, finished):
    with tally() as counted:
        counted.finished(at(1, tmp_path), Output.json, finished, "accuracy")
    said = capsys.readouterr()
    assert said.out == ""
    assert "4 jobs: 1 finished" in said.err


def test_a_single_run_says_nothing_of_a_sweep(capsys):
    with tally():
        pass
    assert capsys.readouterr().out == ""


def test_a_job_prints_one_line_instead_of_table_and_statement_also_when_it_had_finished(tmp_path, capsys):
    counted = Tally(tmp_path / "t")
    for again in ((), ("sweep.resume=true",)):
        settings = runs.composed(*SMALL, f"run.directory={tmp_path / 'r'}", *again)
        job(settings, tmp_path / "r", at(1, tmp_path), counted)
        said = capsys.readouterr()
        assert [line.partition(":")[0] for line in said.out.splitlines()] == [
            "job 1/4, mechanism=blt epsilon=2"
        ]
        assert "round 2/2" not in said.err


@pytest.mark.slow
@pytest.mark.parametrize("launcher", [(), ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2")])
def test_a_sweep_with_a_failing_job_on_the_command_line(tmp_path, launcher):
    ended = runs.command(
        "-m", *launcher, *SMALL, "hydra.sweep.dir=sweep", "population.cohort_size=10,5000", "privacy.epsilon=2,8",
        cwd=tmp_path,
    )  # fmt: skip
    assert ended.returncode == 2, ended.stderr
    lines = ended.stdout.splitlines()
    assert sorted(line.partition(":")[0] for line in lines[:2]) == [
        "job 1/4, cohort_size=10 epsilon=2", "job 2/4, cohort_size=10 epsilon=8",
    ]  # fmt: skip
    assert lines[2:4] == [
        "4 jobs: 2 finished, 2 failed (jobs 3, 4)",
        "compare: python -m experiments.compare directory=sweep",
    ]
    assert ended.stderr.count("failed: population.cohort_size is 5000") == 2
    assert "Result" not in ended.stdout


@pytest.mark.slow
def test_a_sweep_of_optuna_has_a_line_for_every_trial(tmp_path):
    ended = runs.command(
        "-m", "hydra/sweeper=optuna", *SMALL, "hydra.sweep.dir=sweep", "hydra.sweeper.n_trials=2",
        "hydra.sweeper.direction=maximize", "run.optimized_metric=accuracy", "output=json",
        "optimizer.learning_rate=interval(0.1,1)", cwd=tmp_path,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert "job 1/2, learning_rate=0." in ended.stderr
    assert "2 jobs: 2 finished, 0 failed" in ended.stderr
    documents = ended.stdout.replace("}\n{", "}\x00{").split("\x00")
    assert ["accuracy" in json.loads(text) for text in documents] == [True, True]


class Direction(Enum):
    """As the plugin has it."""

    minimize = 1
    maximize = 2


@pytest.mark.parametrize(
    ("metric", "right", "wrong"), [("f1", "maximize", "minimize"), ("loss", "minimize", "maximize")]
)
def test_a_sweep_towards_the_worst_settings_is_refused(metric, right, wrong):
    for form in (str, Direction.__getitem__):
        check_sweeper(OmegaConf.create({**OPTUNA, "direction": form(right)}), metric)
        with pytest.raises(SettingError, match=f"direction is {wrong}.*set hydra.sweeper.direction={right}"):
            check_sweeper(OmegaConf.create({**OPTUNA, "direction": form(wrong)}), metric)
        check_sweeper(
            OmegaConf.create({**OPTUNA, "direction": form(wrong)}), "recall"
        )  # one of the user's own


@pytest.mark.parametrize("name", ["optuna", "nevergrad", "ax"])
def test_a_sweeper_that_learns_needs_to_know_from_what(name):
    sweeper = OmegaConf.create({"_target_": f"hydra_plugins.hydra_{name}_sweeper.X", "direction": "maximize"})
    with pytest.raises(SettingError, match=rf"hydra/sweeper is {name}, .* run\.optimized_metric is null"):
        check_sweeper(sweeper, None)
    check_sweeper(sweeper, "accuracy")
    check_sweeper(OmegaConf.create(BASIC), None)  # which learns nothing


def test_several_directions_are_refused():
    with pytest.raises(SettingError, match="a run gives one value"):
        check_sweeper(OmegaConf.create({**OPTUNA, "direction": ["maximize", "minimize"]}), "accuracy")


def test_a_value_that_is_not_defined_fails_its_job_with_a_sentence():
    check_value(0.5, "recall", Path("r"))
    check_value(None, None, Path("r"))
    with pytest.raises(SettingError, match="recall, which the run in r recorded as null"):
        check_value(math.nan, "recall", Path("r"))

"""The command line: what a mistake is answered with, exit codes, broken pipes, sweeps, and what is printed of a finished run."""

import json
import math
import os
import re
import shlex
import signal
import subprocess
import sys
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import get_type_hints

import pytest
import yaml
from rich.console import Console

import experiments
import runs
from experiments.cli.command import guard, run
from experiments.cli.console import PACKAGE, ending_quietly
from experiments.cli.result import show, statement_lines
from experiments.pages.run_page import run_page
from experiments.run_files.reader import read_run
from experiments.session.resume import run_settings, start_of
from experiments.settings.jobs import run_jobs
from experiments.settings.reference import SETTINGS
from experiments.simulate import job


@pytest.mark.parametrize("defect", [ValueError("a number"), OSError("no file in sight")])
def test_a_defect_of_our_own_is_not_dressed_up_as_a_mistake(defect):
    def fail():
        raise defect

    with pytest.raises(type(defect), match=str(defect)):
        guard(fail)


LINES = [
    line.split(" | ", 1)
    for line in Path(__file__).with_name("wrong_lines.txt").read_text().splitlines()
    if not line.startswith("#")
]


def never(*_):
    raise AssertionError("a command line with a mistake was run")


def exit_code(name, arguments, monkeypatch):
    """Return the exit code of a command in this process, as its module starts it."""
    if name == "simulate":
        monkeypatch.setattr(sys, "argv", ["fedmf simulate", *arguments])
        return guard(partial(run_jobs, never, run_settings, start_of))
    is_package = (Path(experiments.__file__).parent / name).is_dir()
    module = import_module(f"experiments.{name}.__main__" if is_package else f"experiments.{name}")
    if name == "plan":
        main = module.main
    else:
        function = getattr(module, name)
        main = partial(run, function, name, get_type_hints(function)["settings"], module.__doc__)
    with pytest.raises(SystemExit) as end:
        main(arguments)
    return end.value.code


@pytest.mark.parametrize(("line", "said"), LINES, ids=[line for line, _ in LINES])
def test_a_mistake_is_answered_with_what_was_meant_and_exits_2(line, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    name, *arguments = shlex.split(line)
    assert exit_code(name, arguments, monkeypatch) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: ")
    assert printed.err.count("\n") == 1
    assert re.search(".*".join(map(re.escape, said.split("..."))), printed.err), printed.err
    assert "Hydra" not in printed.err
    assert "-m" in line or not [file for file in tmp_path.rglob("*") if not file.is_dir()]


def test_the_table_tries_every_command_and_each_has_help(monkeypatch, capsys):
    assert {line.split()[0] for line, _ in LINES} == set(SETTINGS)
    for name in set(SETTINGS) - {"simulate"}:
        assert exit_code(name, ["--help"], monkeypatch) == 0
        assert "Settings, given as key=value" in capsys.readouterr().out


START = f"import sys; sys.path.insert(0, {str(PACKAGE.parent)!r}); from experiments.cli.console import main; main()"


def cut_short(*arguments, stream="stdout", program=START):
    """Return the exit code of `fedmf`, one of whose streams is not read, and what it says on the other."""
    reading, writing = os.pipe()
    os.close(reading)
    other = {"stdout": "stderr", "stderr": "stdout"}[stream]
    streams = {stream: writing, other: subprocess.PIPE}
    done = subprocess.run([sys.executable, "-c", program, *arguments], **streams, timeout=300, check=False)
    os.close(writing)
    return done.returncode, getattr(done, other).decode()


@pytest.mark.parametrize(
    ("line", "stream"), [("--help", "stdout"), ("plan epsilon=2", "stdout"), ("nonsense", "stderr")]
)
def test_help_results_and_mistakes_that_are_not_read_end_by_sigpipe(line, stream):
    """`fedmf` prints the help itself; the result is a table of rich."""
    assert cut_short(*line.split(), stream=stream) == (-signal.SIGPIPE, "")


def test_a_pipe_of_the_programs_own_that_breaks_is_not_passed_over():
    reading, writing = os.pipe()
    os.close(reading)
    with pytest.raises(BrokenPipeError):
        ending_quietly(lambda: os.write(writing, b"x"))
    os.close(writing)


SMALL = ("dataset=synthetic", "dataset.clients=40", "dataset.features=4", "population.cohort_size=10",
         "population.epochs=1", "population.rounds_per_epoch=2")  # fmt: skip


def test_a_job_prints_one_line_with_whether_it_did_not_learn_also_when_it_had_finished(tmp_path, capsys):
    for again in ((), ("sweep.resume=true",)):
        settings = runs.composed(*SMALL, f"run.directory={tmp_path / 'r'}", *again)
        job(settings, tmp_path / "r", "job 1")
        said = capsys.readouterr()
        assert [line[:15] for line in said.out.splitlines()] == ["job 1: accuracy"]
        assert "round 2/2" not in said.err
        found = runs.summary(tmp_path / "r")
        assert said.out.endswith(", NOT learnt\n") is not found["learnt"]
        (tmp_path / "r/summary.json").write_text(json.dumps(found | {"learnt": not found["learnt"]}))


@pytest.mark.slow
@pytest.mark.parametrize("launcher", [(), ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2")])
def test_a_sweep_with_a_failing_job_on_the_command_line(tmp_path, launcher):
    ended = runs.command(
        "-m", *launcher, *SMALL, "hydra.sweep.dir=sweep", "population.cohort_size=10,5000", "privacy.epsilon=2,8",
        cwd=tmp_path,
    )  # fmt: skip
    assert ended.returncode == 2, ended.stderr
    assert sorted(line[:15] for line in ended.stdout.splitlines()) == ["job 0: accuracy", "job 1: accuracy"]
    assert "`python -m experiments.compare directory=sweep` compares its runs" in ended.stderr
    assert ended.stderr.count("failed: population.cohort_size is 5000") == 2
    assert "job 3: " in ended.stderr


def finished(directory, *overrides):
    return read_run(runs.run(directory, *SMALL, *overrides))


SPENT, SAID = 5.7164028, "5.717"
DELTA, SAID_DELTA = 0.00015634, "0.0001564"
BOTH = {SAID, SAID_DELTA}

# The target of a calibration that this accountant meets from below: the run spends no less than 5.7164.
TARGET = "privacy.epsilon=5.71640279"


@pytest.fixture(scope="module")
def private(tmp_path_factory):
    directory = tmp_path_factory.mktemp("private") / "r"
    return finished(directory, TARGET, f"privacy.delta={DELTA}", "metrics=[f1]")


@pytest.mark.long
def test_the_end_of_a_run_is_a_table_for_people_and_the_statement_in_short_whatever_the_width(
    private, capsys, monkeypatch
):
    monkeypatch.setattr("experiments.cli.output.console", lambda: Console(width=80))  # a terminal's width
    show("text", private)
    said, figures = capsys.readouterr().out, private.summary
    assert f"{100 * figures['accuracy']:.1f} %" in said
    assert f"{figures['f1']:.4g}" in said
    assert "Renyi" not in said  # the long paragraph is in its file and on the page
    assert tuple(said.rstrip().splitlines()[-5:]) == statement_lines(private)


@pytest.mark.long
@pytest.mark.parametrize(
    ("overrides", "claimed", "warned"),
    [
        (["run.reproducible=true", "privacy.delta=0.001"],
         "NOT private as run (secrets: reproducible, NOT private). With secret keys: epsilon", 3),
        (["privacy.epsilon=null", "privacy.noise_multiplier=0"],
         "This run is NOT private: it adds no noise, so that epsilon is infinite", None),
        (["run.unprotected_metrics=true", "privacy.delta=0.1", "privacy.adjacency=replace"],  # of noise, delta, clients unasked and the metrics
         "under replacement adjacency", 4),
        (["privacy.accountant=tight", "compression.keep_probability=0.5", "clipping.linf_norm=0.05"],
         "by this project's own bound, which is not refereed", 1),
    ],
)  # fmt: skip
def test_what_limits_the_claim_is_said_in_its_line_and_each_warning_in_its_own(
    tmp_path, overrides, claimed, warned
):
    run = finished(tmp_path / "r", *overrides)
    claim, _, *warnings, _ = statement_lines(run)
    assert claimed in claim
    assert claim.startswith("Privacy" if claimed[0] in "ub" else claimed)
    assert all(line.count("Warning: ") == 1 and line.startswith("Warning: ") for line in warnings)
    assert {f"Warning: {sentence}" for sentence in run.mechanism["misgivings"]} <= set(warnings)
    assert warned is None or len(warnings) == warned


def said_in(text):
    """Return what a text says that begins as the epsilon and delta of the run do."""
    return set(re.findall(r"5\.71\d*|0\.000156\d*", text))


def test_statement_page_and_terminal_say_the_same_rounded_up(private, capsys):
    run = private
    assert 5.7164 < run.privacy["epsilon"] <= SPENT
    assert said_in(run.privacy["paragraph"]) == BOTH
    page = run_page(run)
    for section in page.sections[:-1]:  # the last is config.yaml as it is
        caption = section.plot.caption if section.plot else ""
        assert said_in(str(replace(section, plot=None)) + caption) <= BOTH
    assert said_in(str(page.key_figures)) == BOTH
    assert said_in(" ".join(statement_lines(run))) == BOTH
    capsys.readouterr()
    show("text", run)
    assert said_in(capsys.readouterr().out) == BOTH


TRIAL = (*SMALL, "output=json")
SWEEP = ("-m", "hydra/sweeper=optuna", "hydra.sweep.dir=sweep")
SEEDED = (*SWEEP, "hydra.sweeper.sampler.seed=1")

PICKY = """
def picky(outputs, targets) -> float:
    return float("nan") if outputs.abs().max() > 30 else 1 + float((outputs.argmax(-1) == targets).float().mean())
"""


def summaries(directory):
    """Return {job: summary} of a sweep's finished jobs."""
    return {int(file.parent.name): json.loads(file.read_text()) for file in directory.glob("*/summary.json")}


def results(directory):
    return yaml.safe_load((directory / "optimization_results.yaml").read_text())


@pytest.mark.slow
def test_the_best_value_of_a_sweep_is_that_of_a_run_and_resuming_it_trains_nothing_again(tmp_path):
    arguments = (*SEEDED, *TRIAL, "hydra.sweeper.n_trials=3", "hydra.sweeper.direction=maximize", "metrics=[f1]",
                 "run.optimized_metric=f1", "optimizer.learning_rate=tag(log,interval(0.01,3))")  # fmt: skip
    first = runs.command(*arguments, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert first.stderr.count("Choosing settings by the f1 of runs like this one is not covered") == 1
    assert first.stderr.count("dataset synthetic: ") == 1
    assert not re.search(r"learning_rate=\d\.\d{12}", first.stderr)
    documents = first.stdout.replace("}\n{", "}\x00{").split("\x00")  # output=json prints one for each trial
    assert ["f1" in json.loads(text) for text in documents] == [True] * 3
    done, chosen = summaries(tmp_path / "sweep"), results(tmp_path / "sweep")
    best = max(done, key=lambda job: done[job]["f1"])
    assert chosen["best_value"] == done[best]["f1"]
    assert f"best: job {best}: f1 {done[best]['f1']:.4g} with optimizer.learning_rate=" in first.stderr
    config = yaml.safe_load((tmp_path / "sweep" / str(best) / "config.yaml").read_text())
    assert chosen["best_params"] == {"optimizer.learning_rate": config["optimizer"]["learning_rate"]}
    (tmp_path / "sweep" / "optimization_results.yaml").unlink()
    again = runs.command(*arguments, "sweep.resume=true", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert again.stderr.count("nothing was changed") == 3
    assert (summaries(tmp_path / "sweep"), results(tmp_path / "sweep")) == (done, chosen)


@pytest.mark.slow
def test_a_run_that_diverges_or_has_no_value_is_a_failed_trial_that_is_not_chosen(tmp_path):
    (tmp_path / "own.py").write_text(PICKY)
    rates = "optimizer.learning_rate=choice(0.1,1000.0,1e38)"
    arguments = (*SWEEP, *TRIAL, "hydra/sweeper/sampler=random", "hydra.sweeper.n_trials=4", "hydra.sweeper.sampler.seed=9",
                 "hydra.sweeper.direction=maximize", "metrics=[own:picky]", "run.optimized_metric=picky", rates)  # fmt: skip
    going_on = runs.command(*arguments, "hydra.sweeper.max_failure_rate=1", cwd=tmp_path)
    assert going_on.returncode == 0, going_on.stderr
    assert going_on.stderr.count("Failed experiment: ") == 3  # of 1000, 1e38, 0.1, 1e38
    assert "training diverged" in going_on.stderr
    assert "run.optimized_metric is picky, which the run in" in going_on.stderr
    chosen = results(tmp_path / "sweep")
    assert chosen["best_params"] == {"optimizer.learning_rate": 0.1}
    assert math.isfinite(chosen["best_value"])


@pytest.mark.slow
def test_a_sweep_that_could_learn_nothing_ends_before_its_first_run(tmp_path):
    rate = "optimizer.learning_rate=interval(0.1,1)"
    refused = runs.command(*SEEDED, *TRIAL, rate, "run.optimized_metric=accuracy", cwd=tmp_path)
    said = "error: hydra.sweeper.direction is minimize; it must be maximize for accuracy.\n"
    assert (refused.returncode, refused.stderr, list(tmp_path.iterdir())) == (2, said, [])

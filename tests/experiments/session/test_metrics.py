"""A run's own metrics: recorded everywhere, refused before anything is written, and never a danger to the run."""

import json
from dataclasses import replace

import numpy as np
import pytest

import runs
from client.metrics import TAKEN
from experiments import run
from experiments.evaluate import EvaluateSettings, evaluate
from experiments.run_files.reader import read_run
from experiments.settings.compose import compose
from experiments.settings.schema import SweepSettings
from experiments.simulate import job
from fedmf.accounting.caveats import CHOOSING
from fedmf.errors import RunDirectoryError, SettingError

pytestmark = pytest.mark.long

SMALL = ("dataset=synthetic", "dataset.clients=40", "dataset.features=4", "population.cohort_size=10",
         "population.epochs=1", "run.reproducible=true", "seed=4")  # fmt: skip

OWN = """
calls = 0

def recall(outputs, targets) -> float:
    return float((outputs.argmax(-1) == targets)[targets == 0].float().mean())

def undefined(outputs, targets) -> float:
    return float("nan")

def broken(outputs, targets) -> float:
    raise KeyError("no such thing")

def tires(outputs, targets) -> float:
    global calls
    calls += 1
    if calls > 3:
        raise ValueError("tired of this")
    return 0.5
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Return the name of a module of metrics of one's own, new in every test."""
    name = f"own_metrics_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    return name


def test_metrics_stand_in_every_row_the_summary_the_result_and_what_is_printed(own, tmp_path, capsys):
    names = ["f1", "top5", "perplexity", "recall"]
    entries = f"metrics=[accuracy,f1,top5,perplexity,{own}:recall]"
    directory = runs.run(tmp_path / "r", *SMALL, entries)
    printed = capsys.readouterr()
    last = runs.metrics(directory)[-1]
    assert all(0 < row[name] < 200 for row in runs.metrics(directory) for name in names[:3])
    assert last["perplexity"] == pytest.approx(np.exp(last["loss"]), rel=1e-6)
    for document in (runs.summary(directory), json.loads(printed.out)):
        assert {name: document[name] for name in names} == {name: last[name] for name in names}
    result = run.load(directory)
    assert list(result.scores) == ["accuracy", "loss", *names]
    assert result.scores == {name: last[name] for name in result.scores}
    line = printed.err.splitlines()[-1]
    for name in names[:2]:  # what fits into one short line
        assert f"| {name} {last[name]:.4g}" in line


def test_a_metric_that_cannot_score_the_first_model_is_refused_and_nothing_is_written(own, tmp_path):
    says = f"{own}:broken, which cannot score the model before training: KeyError: 'no such thing'"
    with pytest.raises(SettingError, match=says):
        runs.run(tmp_path / "r", *SMALL, f"metrics=[{own}:broken]")
    assert not (tmp_path / "r").exists()


def test_a_metric_that_is_not_defined_is_null_and_one_that_fails_later_is_null_and_named_once(
    own, tmp_path, capsys
):
    entries = f"metrics=[f1,{own}:undefined,{own}:tires]"
    directory = runs.run(tmp_path / "r", *SMALL, entries)
    rows = runs.metrics(directory)
    # The first call was before the first round.
    assert [(row["tires"], row["undefined"]) for row in rows] == [(0.5, None)] * 2 + [(None, None)] * 2
    assert all(row["f1"] > 0 for row in rows)
    assert runs.summary(directory)["rounds"] == 4
    assert (runs.summary(directory)["tires"], runs.summary(directory)["undefined"]) == (None, None)
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("metric ")]
    assert said == ["metric tires failed after round 3 and is recorded as null: ValueError: tired of this"]


def test_no_metric_can_take_the_place_of_a_key_that_a_run_writes(tmp_path, capsys):
    directory = runs.run(tmp_path / "r", *SMALL, "run.unprotected_metrics=true")
    capsys.readouterr()
    evaluate(compose("evaluate", [f"directory={directory}", "output=json"], EvaluateSettings))
    evaluated = json.loads(capsys.readouterr().out)
    written = {*runs.summary(directory), *evaluated}.union({"seconds"}, *runs.metrics(directory))
    assert written - {"accuracy", "loss"} <= TAKEN
    config = read_run(directory).config
    assert {key for key, value in config.items() if not isinstance(value, dict)} - {"metrics"} <= TAKEN


@pytest.fixture(scope="module")
def optimized(tmp_path_factory):
    """A run whose f1 goes to a sweep: its directory and what its job returned."""
    directory = tmp_path_factory.mktemp("optimized") / "r"
    settings = runs.composed(*SMALL, "metrics=[f1]", "run.optimized_metric=f1", f"run.directory={directory}")
    return settings, directory, job(settings, directory)


def test_a_job_returns_the_last_value_of_the_optimized_metric_also_where_it_had_finished(optimized, capsys):
    settings, directory, value = optimized
    assert value == runs.summary(directory)["f1"] == runs.metrics(directory)[-1]["f1"]
    assert 0 < value < 1
    before = (directory / "summary.json").read_text()
    (directory / "summary.json").write_text(json.dumps(runs.summary(directory) | {"f1": 0.125}))
    assert job(replace(settings, sweep=SweepSettings(resume=True)), directory) == 0.125
    assert "nothing was changed" in capsys.readouterr().err
    with pytest.raises(RunDirectoryError, match="another seed"):
        job(replace(settings, seed=5, sweep=SweepSettings(resume=True)), directory)
    (directory / "summary.json").write_text(before)


def test_statement_log_and_page_say_that_choosing_is_not_covered(optimized, tmp_path, capsys):
    _, directory, _ = optimized
    choice = "choosing settings by the f1 of several runs"
    privacy = json.loads((directory / "privacy.json").read_text())
    assert any(choice in item for item in privacy["not_covered"])
    assert choice in privacy["paragraph"].partition("Not covered: ")[2]
    assert CHOOSING.format(metric="f1") in (directory / "report.html").read_text()
    chosen = runs.run(tmp_path / "chosen", *SMALL, "run.optimized_metric=loss")
    assert capsys.readouterr().err.startswith(CHOOSING.format(metric="loss") + "\n")
    assert "by the f1" not in (chosen / "privacy.json").read_text()

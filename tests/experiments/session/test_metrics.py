"""What a run says and records: scores of the test split alone, custom metrics, progress, and the clients that failed, in no file."""

import json
import os
import re
import shutil
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import runs
import users_own
from client.metrics import TAKEN
from experiments import run
from experiments.engines.grid import Failure
from experiments.evaluate import EvaluateSettings, evaluate
from experiments.run_files.reader import read_run
from experiments.session.progress import FailureCount, standing
from experiments.session.recorder import is_scored
from experiments.settings.compose import compose
from experiments.settings.schema import SweepSettings
from experiments.simulate import job
from fedmf.errors import RunDirectoryError, SettingError
from plans import small_plan

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
    last = runs.metrics(directory)[-1]
    assert all(0 < row[name] < 200 for row in runs.metrics(directory) for name in names[:3])
    assert last["perplexity"] == pytest.approx(np.exp(last["loss"]), rel=1e-6)
    for document in (runs.summary(directory), json.loads(capsys.readouterr().out)):
        assert {name: document[name] for name in names} == {name: last[name] for name in names}
    result = run.load(directory)
    assert result.scores == {name: last[name] for name in result.scores}


def test_a_metric_that_cannot_score_the_first_model_is_refused_and_nothing_is_written(own, tmp_path):
    says = "broken, which cannot score the model before training: KeyError: 'no such thing'"
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
    assert runs.summary(directory).items() >= {"rounds": 4, "tires": None, "undefined": None}.items()
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


def test_a_job_returns_the_last_value_of_the_optimized_metric_also_where_it_had_finished(tmp_path, capsys):
    directory = tmp_path / "r"
    settings = runs.composed(*SMALL, "metrics=[f1]", "run.optimized_metric=f1", f"run.directory={directory}")
    value = job(settings, directory)
    assert value == runs.summary(directory)["f1"] == runs.metrics(directory)[-1]["f1"]
    assert 0 < value < 1
    assert "choosing settings by the f1 of several runs" in (directory / "privacy.json").read_text()
    (directory / "summary.json").write_text(json.dumps(runs.summary(directory) | {"f1": 0.125}))
    again = replace(settings, sweep=SweepSettings(resume=True))
    assert job(again, directory) == 0.125
    assert "nothing was changed" in capsys.readouterr().err
    with pytest.raises(RunDirectoryError, match="another seed"):
        job(replace(again, seed=5), directory)


def test_a_run_is_scored_twenty_times_by_default_evenly_spread_and_after_its_last_round():
    evaluations = runs.composed().run.evaluations
    rounds = [number for number in range(1, 177) if is_scored(number, 176, evaluations)]
    assert (len(rounds), rounds[-1]) == (20, 176)
    assert set(np.diff([0, *rounds])) <= {8, 9}


def test_the_scores_are_those_of_the_test_split_alone_and_the_last_that_of_the_last_model(tmp_path):
    """Two files that differ in test labels alone: the models are the same, the scores opposite."""
    rng = np.random.default_rng(0)
    x, is_test = rng.random((70, 8)).astype("f4"), np.arange(70) >= 40
    y = (x[:, 0] > 0.5).astype("i8")
    data = (
        "dataset=by_user_npz",
        "population.cohort_size=10",
        "population.epochs=1",
        "run.reproducible=true",
    )
    directories = []
    for name, labels in {"true": y, "inverted": np.where(is_test, 1 - y, y)}.items():
        np.savez(tmp_path / f"{name}.npz", x=x, y=labels, user=np.arange(70), split=is_test.astype("i8"))
        directories.append(runs.run(tmp_path / name, *data, f"dataset.path={tmp_path / name}.npz"))
    one, other = directories
    np.testing.assert_array_equal(runs.model(one), runs.model(other))
    accuracies = [[row["accuracy"] for row in runs.metrics(directory)] for directory in directories]
    np.testing.assert_allclose(np.add(*accuracies), 1)
    with np.load(one / "model.npz") as arrays:
        logits = x.astype("f8") @ arrays["1.weight"].T + arrays["1.bias"]
    losses = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(70), y]
    for shown in (runs.summary(one), runs.metrics(one)[-1]):
        assert shown["accuracy"] == (logits.argmax(1) == y)[is_test].mean()
        assert shown["loss"] == pytest.approx(losses[is_test].mean(), rel=1e-5)
    assert abs(losses.mean() - losses[is_test].mean()) > 1e-3


PLAN = small_plan(clients=12, cohort_size=3, rounds_per_epoch=4, epochs=5)


def said(spent=(5.4712, 7.9996), scored=8, values=None, *, reproducible=False, plan=PLAN):
    return standing(plan, 9, spent, scored, values or {"accuracy": 0.928}, reproducible=reproducible)


def test_a_line_names_the_last_score_its_round_further_metrics_and_what_is_not_private():
    assert said() == "round 9/20 | epoch 3/5 | epsilon 5.472 of 8 | accuracy 92.8 % (round 8)"
    assert "accuracy" not in said(scored=None, values={"f1": None})
    values = {"accuracy": 0.5, "f1": 0.25, "top5": None}
    assert said(values=values).endswith("(round 8) | f1 0.25 | top5 –")
    assert "NOT private" not in said(spent=(5.0, 19.99))
    for given in ({"spent": (5.0, 1e6)}, {"reproducible": True}, {"plan": small_plan(noise_multiplier=0)}):
        assert "NOT private" in said(**given)


OPTIONS = (
    *("dataset=custom", "dataset.name=users_own:people", "model=custom", "model.name=users_own:Switched"),
    *("population.cohort_size=3", "population.epochs=2", "run.reproducible=true", "output=json"),
)
WHY = "ValueError: the secret 42 ("
SENT = "clients failed and count as zeros"


@pytest.fixture
def turning(monkeypatch):
    """Give clients another turn of `users_own`; those with a value from `least` on."""

    def give(name, least=0.0):
        monkeypatch.setattr(users_own, "turn", getattr(users_own, name))
        monkeypatch.setattr(users_own, "LEAST", least)

    return give


@pytest.mark.long
@pytest.mark.parametrize("workers", [1, 2])
def test_failures_are_counted_in_the_round_and_at_the_end_and_workers_do_not_rehearse(
    tmp_path, capfd, monkeypatch, turning, workers
):
    turning("raising")
    monkeypatch.setenv("OWN_TURN", "raising")  # in workers
    monkeypatch.setenv("OWN_REHEARSALS", str(tmp_path / "rehearsed"))
    runs.run(tmp_path / "r", *OPTIONS, f"engine.workers={workers}")
    usual = r"round \d+/|dataset|warning: the|warning: along|warning: 6 of 10 classes have no test|this run did not learn"
    first, last = (line for line in capfd.readouterr().err.splitlines() if not re.match(usual, line))
    assert len(runs.metrics(tmp_path / "r")) == 4
    assert first.startswith(f"round 1: 3 of 3 {SENT}; the first in round 1: {WHY}")
    assert last.startswith(f"12 of 12 {SENT}; the first in round 1: {WHY}")
    assert first.rstrip(")").endswith(f"users_own.py:{users_own.raising.__code__.co_firstlineno + 1}")
    assert set((tmp_path / "rehearsed").read_text().split()) == {str(os.getpid())}


@pytest.mark.long
@pytest.mark.parametrize("fails", ["raising", "not_finite"])
def test_no_file_of_a_run_tells_a_client_that_failed_from_one_that_sent_zeros(
    tmp_path, monkeypatch, capsys, turning, fails
):
    monkeypatch.setattr("time.perf_counter", lambda: 0.0)
    monkeypatch.setattr("experiments.run_files.provenance._now", lambda: "2026-01-01T00:00:00Z")
    monkeypatch.setattr("secrets.token_hex", lambda count=32: "0" * 2 * count)
    found, errors = {}, {}
    for name in (fails, "zero", "honest"):
        turning(name, least=77)
        runs.run(tmp_path / "r", *OPTIONS)
        errors[name] = capsys.readouterr().err
        found[name] = runs.contents(tmp_path / "r")
        shutil.rmtree(tmp_path / "r")
    assert found[fails] == found["zero"]
    model = tmp_path / "r/model.npz"
    assert found["honest"][model] != found["zero"][model]
    assert (SENT in errors[fails], SENT in errors["zero"]) == (True, False)


@pytest.mark.long
def test_whether_a_line_can_be_written_decides_nothing(monkeypatch):
    def write(text):
        raise BrokenPipeError

    monkeypatch.setattr(sys, "stderr", SimpleNamespace(write=write, flush=lambda: None))
    count = FailureCount()
    count.add(Failure("a", "reason"))
    count.on_heard(1, ["a", "b"])

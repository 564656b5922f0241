"""Scores of the test split alone, and a run's own metrics: recorded everywhere, and never a danger to the run."""

import json
from dataclasses import replace

import numpy as np
import pytest

import runs
from client.metrics import TAKEN
from experiments import run
from experiments.evaluate import EvaluateSettings, evaluate
from experiments.run_files.reader import read_run
from experiments.session.recorder import is_scored
from experiments.settings.compose import compose
from experiments.settings.schema import SweepSettings
from experiments.simulate import job
from fedmf.errors import RunDirectoryError, SettingError
from runs import cut

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
    privacy = json.loads((directory / "privacy.json").read_text())
    assert "choosing settings by the f1 of several runs" in privacy["paragraph"]
    before = (directory / "summary.json").read_text()
    (directory / "summary.json").write_text(json.dumps(runs.summary(directory) | {"f1": 0.125}))
    assert job(replace(settings, sweep=SweepSettings(resume=True)), directory) == 0.125
    assert "nothing was changed" in capsys.readouterr().err
    with pytest.raises(RunDirectoryError, match="another seed"):
        job(replace(settings, seed=5, sweep=SweepSettings(resume=True)), directory)
    (directory / "summary.json").write_text(before)


SMALL_SCORES = (
    *("population.cohort_size=20", "population.rounds_per_epoch=6", "population.epochs=1"),
    *("run.reproducible=true", "run.evaluations=2"),
)


def due(rounds, evaluations):
    return [number for number in range(1, rounds + 1) if is_scored(number, rounds, evaluations)]


def test_a_run_is_scored_twenty_times_by_default_evenly_spread_and_after_its_last_round():
    rounds = due(176, runs.composed().run.evaluations)
    assert (len(rounds), rounds[-1]) == (20, 176)
    assert set(np.diff([0, *rounds])) <= {8, 9}
    assert due(7, 20) == [1, 2, 3, 4, 5, 6, 7]
    assert due(176, 1) == [176]


def test_a_resumed_run_scores_in_the_rounds_of_an_undisturbed_one_and_still_shows_the_last_score(
    tmp_path, monkeypatch, capsys
):
    undisturbed, resumed = runs.run(tmp_path / "a", *SMALL_SCORES), cut(tmp_path / "b", *SMALL_SCORES)
    monkeypatch.setattr("experiments.session.progress._PAUSE", -1.0)
    capsys.readouterr()
    runs.run(resumed, *SMALL_SCORES, "run.resume=true")
    assert runs.metrics(resumed) == runs.metrics(undisturbed)
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("round ")]
    assert [line.partition("(")[2].partition(")")[0] for line in lines] == ["round 3", "round 6"]


def write(path, *, test_labels):
    """Write 40 users' training examples, whose labels can be learnt, and 30 test examples of the labels given."""
    rng = np.random.default_rng(0)
    x = rng.random((70, 8)).astype("f4")
    y = (x[:, 0] > 0.5).astype("i8")
    y[40:] = test_labels(y[40:])
    np.savez(path, x=x, y=y, user=np.arange(70), split=(np.arange(70) >= 40).astype("i8"))
    return x, y


def by_hand(directory, x, y):
    """Accuracy and loss of a run's logistic model."""
    with np.load(directory / "model.npz") as arrays:
        logits = x.astype("f8") @ arrays["1.weight"].T + arrays["1.bias"]
    logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return float((logits.argmax(1) == y).mean()), float(-logits[np.arange(len(y)), y].mean())


def test_the_scores_are_those_of_the_test_split_alone_and_the_last_that_of_the_last_model(tmp_path):
    """Two files that differ in test labels alone: the models are the same, the scores opposite. A limit ends both early."""
    scores = {}
    for name, labels in {"true": lambda y: y, "inverted": lambda y: 1 - y}.items():
        x, y = write(tmp_path / f"{name}.npz", test_labels=labels)
        data = ("dataset=by_user_npz", f"dataset.path={tmp_path / name}.npz", "population.cohort_size=10")
        limit = ("population.epochs=2", "privacy.epsilon=8", "privacy.max_epsilon=7", "privacy.delta=1e-3")
        directory = runs.run(tmp_path / name, *data, *limit, "run.reproducible=true")
        assert runs.summary(directory)["epochs"] == 1
        accuracy, loss = by_hand(directory, x[40:], y[40:])
        for shown in (runs.summary(directory), runs.metrics(directory)[-1]):
            assert shown["accuracy"] == pytest.approx(accuracy, abs=1e-12)
            assert shown["loss"] == pytest.approx(loss, rel=1e-5)
        scores[name] = [row["accuracy"] for row in runs.metrics(directory)]
        for others in (slice(0, 40), slice(0, 70)):
            assert abs(by_hand(directory, x[others], y[others])[1] - loss) > 1e-3
    assert len(scores["true"]) == 4
    np.testing.assert_allclose(np.add(scores["true"], scores["inverted"]), 1)

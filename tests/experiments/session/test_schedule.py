"""A run is scored about twenty times, between on a fixed part of a large test set, at the end on all of it."""

import json

import numpy as np
import pytest
from scipy.stats import hypergeom

import runs
from client.data import load
from client.models import build
from client.scoring import score
from crashes import behind_round
from experiments import run
from experiments.session.recorder import Recorder
from experiments.session.scoring import Schedule, last_scored
from fedmf.errors import SettingError

pytestmark = pytest.mark.long

SMALL = (
    "population.cohort_size=20",
    "population.rounds_per_epoch=6",
    "population.epochs=1",
    "run.reproducible=true",
)
TWICE = ("run.evaluations=2", "run.evaluation_examples=50")
BETWEEN = ("run.evaluations=3", "run.evaluation_examples=50")
OWN = """
def mean_target(outputs, targets) -> float:
    return float(targets.double().mean())
"""


def schedule(rounds=176, evaluations=20, every=None, test_examples=360, between=360):
    return Schedule(rounds, evaluations, every, test_examples, between)


def due(of):
    return [number for number in range(1, of.rounds + 1) if of.is_due(number)]


def scored(directory):
    """Return {round: (accuracy, test examples)} of the scored rows."""
    rows = runs.metrics(directory)
    return {row["round"]: (row["accuracy"], row["test_examples"]) for row in rows if "accuracy" in row}


def test_a_run_is_scored_twenty_times_by_default_evenly_spread_and_after_its_last_round():
    settings = runs.composed().run
    rounds = due(Schedule.of(settings, 176, 360))
    assert len(rounds) == 20
    assert rounds[-1] == 176
    assert set(np.diff([0, *rounds])) <= {8, 9}


def test_a_run_of_fewer_rounds_is_scored_after_each_and_one_evaluation_is_the_last():
    assert due(schedule(rounds=7)) == [1, 2, 3, 4, 5, 6, 7]
    assert due(schedule(rounds=20)) == list(range(1, 21))
    assert due(schedule(evaluations=1)) == [176]


def test_evaluate_every_counts_in_place_of_evaluations_and_the_run_says_so(tmp_path, capsys):
    directory = runs.run(tmp_path / "r", *SMALL, "run.evaluate_every=4", "run.evaluations=3")
    assert list(scored(directory)) == [4, 6]
    assert "run.evaluate_every counts, run.evaluations does not" in capsys.readouterr().err


@pytest.mark.parametrize("key", ["evaluations", "evaluate_every", "evaluation_examples"])
def test_none_of_the_keys_takes_zero(key):
    with pytest.raises(SettingError, match=rf"run\.{key} is 0"):
        runs.composed(f"run.{key}=0")


def test_rows_before_the_last_are_of_the_same_examples_whatever_the_seed_and_the_last_of_all(
    tmp_path, monkeypatch
):
    (tmp_path / "own_targets.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    targets, means = load("digits").test.y, []
    for seed in (1, 2):
        directory = runs.run(
            tmp_path / str(seed), *SMALL, *BETWEEN, f"seed={seed}", "metrics=[own_targets:mean_target]"
        )
        rows = [row for row in runs.metrics(directory) if "accuracy" in row]
        assert [(row["round"], row["test_examples"]) for row in rows] == [(2, 50), (4, 50), (6, 360)]
        assert rows[-1]["mean_target"] == pytest.approx(targets.mean())
        means += [row["mean_target"] for row in rows[:-1]]
        figures = runs.summary(directory)
        assert (figures["test_examples"], figures["evaluation_examples"]) == (360, 50)
        assert figures["accuracy"] == rows[-1]["accuracy"]
    assert len(set(means)) == 1
    assert means[0] != pytest.approx(targets.mean())


def test_the_subsample_is_without_repetition_and_scored_as_its_examples_are_alone():
    of, test = schedule(test_examples=360, between=50), load("digits").test
    rows = of.rows
    assert len(set(rows.tolist())) == 50
    model = build("logistic", input_shape=(8, 8), classes=10, seed=3)
    alone, chosen = score(model, test.take(rows)), score(model, test, rows=rows, batch_size=7)
    assert (chosen.accuracy, chosen.counted) == (alone.accuracy, 50)
    assert chosen.loss == pytest.approx(alone.loss, rel=1e-6)


def test_its_standard_error_is_that_of_a_draw_without_replacement_and_small_by_default():
    of = schedule(test_examples=400, between=100)
    assert of.standard_error == pytest.approx(hypergeom(400, 200, 100).std() / 100)
    assert Schedule.of(runs.composed().run, 176, 10**7).standard_error <= 0.005
    assert schedule().standard_error == 0


def test_a_run_on_a_part_says_how_large_it_is_and_how_far_its_accuracy_may_be_off(tmp_path, capsys):
    runs.run(tmp_path / "part", *SMALL, *BETWEEN)
    said = capsys.readouterr().err
    assert "until the last round 50 of 360 test examples are scored" in said
    assert "6.57 points" in said  # 50 sqrt((360 - 50) / (359 * 50))
    runs.run(tmp_path / "whole", *SMALL)
    assert "until the last round" not in capsys.readouterr().err


def test_a_run_that_its_budget_ends_early_has_the_score_of_the_whole_test_set(tmp_path):
    directory = runs.run(
        tmp_path / "r", "population.cohort_size=20", "population.rounds_per_epoch=3", "population.epochs=2",
        "privacy.max_epsilon=6", "run.evaluations=6", "run.evaluation_examples=50",
    )  # fmt: skip
    assert runs.summary(directory)["rounds"] == 3
    assert scored(directory)[3][1] == 50
    whole = score(run.load(directory).model(), load("digits").test)
    assert runs.summary(directory)["accuracy"] == whole.accuracy != scored(directory)[3][0]


@pytest.mark.parametrize("last", [3, 4])
def test_a_resumed_run_scores_in_the_rounds_of_an_undisturbed_one_and_still_shows_the_last_score(
    tmp_path, monkeypatch, capsys, last
):
    undisturbed = runs.run(tmp_path / "a", *SMALL, *TWICE)
    with behind_round(Recorder, "on_release", last, KeyboardInterrupt):
        runs.run(tmp_path / "b", *SMALL, *TWICE)
    monkeypatch.setattr("experiments.session.progress._LEAST_PAUSE", -1.0)
    capsys.readouterr()
    runs.run(tmp_path / "b", *SMALL, *TWICE, "run.resume=true")
    assert runs.metrics(tmp_path / "b") == runs.metrics(undisturbed)
    said = capsys.readouterr().err
    assert "test examples are scored" not in said  # that was said when the run began
    lines = [line for line in said.splitlines() if line.startswith("round ")]
    assert [line.partition("(")[2].partition(")")[0] for line in lines] == ["round 3", "round 3", "round 6"][
        last - 3 :
    ]


def test_the_last_score_of_an_earlier_session_is_read_from_its_metrics(tmp_path):
    sent = {"replies": 6, "uplink_bytes": 10.0}
    rows = [{"round": 1, **sent, "accuracy": 0.25, "f1": None}, {"round": 2, **sent}]
    assert last_scored(tmp_path, ("accuracy",)) is None
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert last_scored(tmp_path, ("accuracy", "f1")) == (1, {"accuracy": 0.25, "f1": None})

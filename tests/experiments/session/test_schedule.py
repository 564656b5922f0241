"""A run is scored about twenty times, evenly spread, and after its last round."""

import numpy as np
import pytest

import runs
from client.data import load
from client.scoring import score
from crashes import behind_round
from experiments import run
from experiments.session.recorder import Recorder, is_scored

pytestmark = pytest.mark.long

SMALL = (
    "population.cohort_size=20",
    "population.rounds_per_epoch=6",
    "population.epochs=1",
    "run.reproducible=true",
)
TWICE = "run.evaluations=2"


def due(rounds, evaluations):
    return [number for number in range(1, rounds + 1) if is_scored(number, rounds, evaluations)]


def scored(directory):
    """Return {round: accuracy} of the scored rows."""
    return {row["round"]: row["accuracy"] for row in runs.metrics(directory) if "accuracy" in row}


def test_a_run_is_scored_twenty_times_by_default_evenly_spread_and_after_its_last_round():
    rounds = due(176, runs.composed().run.evaluations)
    assert len(rounds) == 20
    assert rounds[-1] == 176
    assert set(np.diff([0, *rounds])) <= {8, 9}


def test_a_run_of_fewer_rounds_is_scored_after_each_and_one_evaluation_is_the_last():
    assert due(7, 20) == [1, 2, 3, 4, 5, 6, 7]
    assert due(20, 20) == list(range(1, 21))
    assert due(176, 1) == [176]


def test_a_run_that_its_budget_ends_early_has_the_score_of_its_last_model(tmp_path):
    directory = runs.run(
        tmp_path / "r", "population.cohort_size=20", "population.rounds_per_epoch=3", "population.epochs=2",
        "privacy.max_epsilon=6", "run.evaluations=6",
    )  # fmt: skip
    assert runs.summary(directory)["rounds"] == 3
    whole = score(run.load(directory).model(), load("digits").test)
    assert runs.summary(directory)["accuracy"] == whole.accuracy == scored(directory)[3]


@pytest.mark.parametrize("last", [3, 4])
def test_a_resumed_run_scores_in_the_rounds_of_an_undisturbed_one_and_still_shows_the_last_score(
    tmp_path, monkeypatch, capsys, last
):
    undisturbed = runs.run(tmp_path / "a", *SMALL, TWICE)
    with behind_round(Recorder, "on_release", last, KeyboardInterrupt):
        runs.run(tmp_path / "b", *SMALL, TWICE)
    monkeypatch.setattr("experiments.session.progress._PAUSE", -1.0)
    capsys.readouterr()
    runs.run(tmp_path / "b", *SMALL, TWICE, "run.resume=true")
    assert runs.metrics(tmp_path / "b") == runs.metrics(undisturbed)
    said = capsys.readouterr().err
    lines = [line for line in said.splitlines() if line.startswith("round ")]
    assert [line.partition("(")[2].partition(")")[0] for line in lines] == ["round 3", "round 3", "round 6"][
        last - 3 :
    ]

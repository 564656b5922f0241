"""A run is scored on the test split and nothing else, about twenty times, evenly spread, and after its last round."""

import numpy as np
import pytest

import runs
from crashes import cut
from experiments.session.recorder import is_scored

pytestmark = pytest.mark.long

SMALL = (
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
    undisturbed, resumed = runs.run(tmp_path / "a", *SMALL), cut(tmp_path / "b", *SMALL)
    monkeypatch.setattr("experiments.session.progress._PAUSE", -1.0)
    capsys.readouterr()
    runs.run(resumed, *SMALL, "run.resume=true")
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

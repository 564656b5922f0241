"""Which examples a run's figures come from: those of the test split, all of them, and no others."""

import numpy as np
import pytest

from runs import metrics, run, summary

OPTIONS = ("population.cohort_size=10", "population.epochs=2", "privacy.epsilon=null", "privacy.noise_multiplier=0",
           "run.reproducible=true", "dataset=by_user_npz")  # fmt: skip


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


def test_a_run_is_scored_on_the_test_split_and_on_nothing_else(tmp_path):
    """Two files that differ in test labels alone: the models are the same, the figures opposite."""
    figures = {}
    for name, labels in {"true": lambda y: y, "inverted": lambda y: 1 - y}.items():
        x, y = write(tmp_path / f"{name}.npz", test_labels=labels)
        directory = run(tmp_path / name, *OPTIONS, f"dataset.path={tmp_path / name}.npz")
        accuracy, loss = by_hand(directory, x[40:], y[40:])
        for shown in (summary(directory), metrics(directory)[-1]):
            assert shown["accuracy"] == pytest.approx(accuracy, abs=1e-12)
            assert shown["loss"] == pytest.approx(loss, rel=1e-5)
        figures[name] = [row["accuracy"] for row in metrics(directory)]
        for others in (slice(0, 40), slice(0, 70)):
            assert abs(by_hand(directory, x[others], y[others])[1] - loss) > 1e-3
    assert len(figures["true"]) == 8
    np.testing.assert_allclose(np.add(figures["true"], figures["inverted"]), 1)

"""Regression and multi-label: found from what is public, scored by their own metrics, trained as anything else is."""

import csv
import math
import re

import numpy as np
import pytest
import torch
from sklearn import metrics as theirs

import runs
from client.data import Public, from_arrays, load
from client.metrics import BETTER_IF_LARGER, find_metrics, r2
from experiments import run
from experiments.deployment import apps
from experiments.deployment.node import Node, node_settings
from experiments.pages.run_page import run_page
from experiments.settings.experiment import build
from fedmf.errors import DataError, SettingError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(600, 4))
USER = np.arange(600) // 10
AMOUNTS = np.stack([X[:, 0] - X[:, 1], 0.5 * X[:, 2]], axis=1)
LABELS = (X[:, :3] > [0, 0.5, -0.5]).astype(int)
FEW = (
    "population.cohort_size=25",
    "population.epochs=6",
    "run.reproducible=true",
    "compression.keep_probability=1",
    "privacy.epsilon=null",
    "privacy.noise_multiplier=0",
)
BAD = {
    1: "",
    2: "1e300",
    3: "1e38",
}  # of these users: missing, infinite as float32, and huge, which is clipped as any other


def table(path, y, bad):
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["user", "a", "b", "c", "d", "up", "down", "split"])
        for user, x, (up, down) in zip(USER, X, y, strict=True):
            writer.writerow([user, *x, bad.get(user, up), down, int(user >= 50)])
    return path


def test_a_regression_learns_from_columns_of_a_table_and_a_bad_target_is_a_zero_of_its_user_alone(
    tmp_path, capsys
):
    data = (
        "dataset=by_user_csv",
        f"dataset.path={table(tmp_path / 'a.csv', AMOUNTS, BAD)}",
        "dataset.label=[up,down]",
    )
    result = run(*data, *FEW, "metrics=[mae]", run={"directory": str(tmp_path / "r")})
    assert "12 of 300 clients failed and count as zeros" in capsys.readouterr().err
    assert result.summary["r2"] > 0.25, result.summary
    assert re.match(
        "Learnt: R² .*, better than always answering the mean of the test targets .0.; ", result.learning
    )
    assert result.evaluate(metrics=["mse"])["mse"] == pytest.approx(result.loss)
    assert result.export(format="onnx", to=str(tmp_path / "m.onnx")).exists()
    with pytest.raises(SettingError, match=r"no accuracy; it is judged by scores\['r2'\]"):
        _ = result.accuracy
    plots = [part.plot for part in run_page(result.run).sections if part.plot]
    assert "accuracy" not in "".join(f"{plot.caption} {plot.y_label}" for plot in plots).lower()
    groups = run.compare(tmp_path)
    assert (groups["r2"][0], "accuracy" in groups) == (result.summary["r2"], False)
    with pytest.raises(SettingError, match=r"run\.optimized_metric is 'accuracy', .* it records r2, loss"):
        run(*data, *FEW, "run.optimized_metric=accuracy")


def test_a_node_trains_for_the_task_as_a_simulation_does(tmp_path):
    data = (
        f"dataset=by_user_csv dataset.path={table(tmp_path / 'a.csv', AMOUNTS, {})} dataset.label=[up,down]"
    )
    settings = runs.composed(*data.split(), "population.cohort_size=20")
    node = Node(node_settings(f"clients=50 {data} public={{shape:[4],classes:2,task:regression}}"))
    held, start = node.dataset.clients[0], np.zeros(10, np.float32)
    one, other = (
        trainer.update(start, held.x, held.y, order=np.random.default_rng(0))
        for trainer in (apps._trainer(settings, node), build(settings).make_trainer())
    )
    assert one.any()
    np.testing.assert_array_equal(one, other)


def test_a_multilabel_run_beats_the_commonest_values_with_its_own_metrics(tmp_path):
    data = from_arrays(X, LABELS, USER)
    result = run(dataset=data, metrics=["exact_match", "f1"], run={"directory": str(tmp_path / "r")}, population={"cohort_size": 20, "epochs": 4}, privacy={"epsilon": None, "noise_multiplier": 0.0})  # fmt: skip
    assert result.summary["label_accuracy"] > result.summary["chance"] + 0.2
    assert list(result.scores) == ["label_accuracy", "loss", "exact_match", "f1"]


def test_metrics_are_those_of_scikit_learn():
    for task, y, names in (
        ("regression", AMOUNTS, {"r2": theirs.r2_score, "mse": theirs.mean_squared_error, "mae": theirs.mean_absolute_error}),
        ("multilabel", LABELS, {"label_accuracy": lambda *given: 1 - theirs.hamming_loss(*given), "exact_match": theirs.accuracy_score, "f1": lambda *given: theirs.f1_score(*given, average="macro")}),
    ):  # fmt: skip
        made = find_metrics([*names], classes=y.shape[1], task=task)
        targets, outputs = (
            torch.tensor(part, dtype=torch.float32) for part in (y, y + RNG.normal(size=y.shape) - 0.5)
        )
        answers = outputs if task == "regression" else outputs > 0
        for name, function in names.items():
            metric = made[name]()
            metric.add(outputs, targets)
            assert metric.value() == pytest.approx(function(targets.numpy(), answers.numpy()), rel=1e-5), name
    y = torch.tensor([[1.0, 0.0], [1.0, 4.0]])  # the first of which does not vary
    assert (r2(y, y), math.isnan(r2(y[:, :1], y[:, :1]))) == (1, True)
    assert [name for name, better in BETTER_IF_LARGER.items() if not better] == [
        "loss",
        "perplexity",
        "mse",
        "mae",
    ]
    with pytest.raises(SettingError, match="holds r2, which is not of the task classification"):
        find_metrics(["r2"], classes=9)


@pytest.mark.parametrize(("y", "settings", "found"), [
    (AMOUNTS[:, 0], {}, ("regression", 1)),
    (AMOUNTS, {}, ("regression", 2)),
    (LABELS, {}, ("multilabel", 3)),
    (LABELS[:, 0], {}, ("classification", 2)),
    (USER, {"task": "regression"}, ("regression", 1)),
    (USER * 1.0, {}, "whole numbers as floats in the test rows"),
    (LABELS[:, 0] > 0, {}, "holds true and false in the test rows"),
    (np.eye(3)[USER % 3], {}, "rows of whole numbers .* set task to multilabel or regression"),
    (LABELS, {"task": "regression", "classes": 3}, "classes is 3, but the task is regression"),
    (np.where(USER == 7, np.nan, AMOUNTS[:, 0]), {}, "holds targets that are not finite"),
    (2 * LABELS, {"task": "multilabel"}, "holds labels other than 0 and 1"),
])  # fmt: skip
def test_the_task_is_what_public_targets_make_plain_and_a_setting_decides(tmp_path, y, settings, found):
    np.savez(tmp_path / "a.npz", x=X, y=y, user=USER)
    if isinstance(found, str):
        with pytest.raises((DataError, SettingError), match=found):
            load("by_user_npz", path=str(tmp_path / "a.npz"), **settings)
        return
    data = load("by_user_npz", path=str(tmp_path / "a.npz"), **settings)
    assert (data.task, data.classes) == found
    public = Public.of(data.public.setting())  # as a node is given it
    assert public == data.public
    there = load("by_user_npz", path=str(tmp_path / "a.npz"), public=public)
    np.testing.assert_array_equal(there.clients[3].y, data.clients[3].y)

"""`evaluate` on a run directory written by hand."""

import json
import sys

import numpy as np
import pytest
import torch
import yaml
from torch.nn.functional import cross_entropy

from client.data import load
from client.models import build
from experiments.evaluate import EvaluateSettings, evaluate
from experiments.settings.compose import compose
from runs import refused

WEIGHT, BIAS = "1.weight", "1.bias"
CONFIG = {"dataset": {"name": "digits", "path": None}, "model": {"name": "logistic"}, "seed": 1}


@pytest.fixture
def directory(tmp_path):
    """A run directory with a random logistic model on digits."""
    model = build("logistic", input_shape=(8, 8), classes=10, seed=4)
    arrays = {name: value.detach().numpy() for name, value in model.named_parameters()}
    np.savez(tmp_path / "model.npz", **arrays)
    record(tmp_path)
    return tmp_path


def record(directory, **changed):
    """Write the run's config.yaml, with some groups changed."""
    (directory / "config.yaml").write_text(yaml.safe_dump({**CONFIG, **changed}))


def evaluated(directory, *overrides):
    evaluate(compose("evaluate", [f"directory={directory}", *overrides], EvaluateSettings))


@pytest.fixture
def scores(directory, capsys):
    """A function of overrides that returns the JSON document."""

    def call(*overrides):
        capsys.readouterr()
        evaluated(directory, *overrides, "output=json")
        return json.loads(capsys.readouterr().out)

    return call


@pytest.fixture
def mistake(directory, capsys):
    """A function of overrides that returns the sentence about them."""
    return lambda *overrides: refused(capsys, directory, *overrides, call=evaluated)


def by_hand(directory, x, y):
    """Return accuracy and loss of the stored logistic model."""
    with np.load(directory / "model.npz") as arrays:
        logits = x.reshape(len(x), -1).astype(float) @ arrays[WEIGHT].T + arrays[BIAS]
    loss = cross_entropy(torch.from_numpy(logits), torch.from_numpy(y))
    return float((logits.argmax(1) == y).mean()), float(loss)


def test_scores_are_those_of_the_stored_model_on_the_runs_data_or_another(directory, scores, capsys):
    found, test = scores(), load("digits").test
    accuracy, loss = by_hand(directory, test.x, test.y)
    assert found["accuracy"] == accuracy
    assert found["loss"] == pytest.approx(loss, rel=1e-5)
    assert (found["examples"], found["parameters"], found["dataset"]) == (360, 650, "digits")
    evaluated(directory)
    assert f"{100 * accuracy:.1f} %" in capsys.readouterr().out
    rng = np.random.default_rng(0)
    x, y = rng.random((50, 8, 8)), np.arange(50) % 10
    np.savez(directory / "other.npz", x=x, y=y, user=np.arange(50), split=(np.arange(50) < 20).astype(int))
    found = scores("dataset=by_user_npz", f"dataset.path={directory / 'other.npz'}")
    assert (found["accuracy"], found["examples"]) == (by_hand(directory, x[:20], y[:20])[0], 20)


SPY = """
from pathlib import Path
from torch import nn
from client.data import Dataset, load as of_fedmf

Path({marker!r}).touch()  # what importing runs

def load() -> Dataset:
    return of_fedmf("digits")

def net(input_shape, classes) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))

def half(outputs, targets) -> float:
    return 0.5

def unsaid():
    Path({marker!r}).with_suffix(".called").touch()
"""


@pytest.fixture
def spy(tmp_path_factory, monkeypatch):
    """A file that is there once the module `spy_of_evaluate` was imported."""
    folder = tmp_path_factory.mktemp("spy")
    (folder / "spy_of_evaluate.py").write_text(SPY.format(marker=str(folder / "imported")))
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "spy_of_evaluate", raising=False)
    return folder / "imported"


def test_code_that_only_the_directory_names_is_imported_when_trusted_or_named_alone(
    directory, spy, mistake, scores
):
    code = {"dataset": {"name": "spy_of_evaluate:load"}, "model": {"name": "spy_of_evaluate:net"}}
    record(directory, **code)
    says = mistake()
    assert all(part in says for part in ("dataset.name", "spy_of_evaluate:load", "trust_code=true"))
    assert "model.name" in mistake("dataset=digits")
    record(directory, metrics=["spy_of_evaluate:half"])
    assert "metrics[0] of" in mistake()
    assert "half" not in scores("metrics=[f1]")  # another list leaves it alone
    record(directory, client={"loss": "spy_of_evaluate:half"})
    assert "client.loss of" in mistake()
    assert not spy.exists()
    record(directory, **code, metrics=["spy_of_evaluate:half"])
    named = scores(
        "dataset=custom", "dataset.name=spy_of_evaluate:load", "model=custom", "model.name=spy_of_evaluate:net",
        "metrics=[spy_of_evaluate:half]",
    )  # fmt: skip
    assert scores("trust_code=true") == named
    assert (named["examples"], named["parameters"], named["half"]) == (360, 650, 0.5)


@pytest.mark.parametrize("path", ["os:system", "spy_of_evaluate:unsaid"])
def test_what_says_of_itself_no_loader_and_no_model_is_never_called(directory, spy, mistake, path):
    for group in ("dataset", "model"):
        command = f"touch {spy.with_suffix('.called')}"
        record(directory, **{group: {"name": path, "settings": {"command": command}}})
        says = mistake("trust_code=true")
        assert f"{group}.name is '{path}', which does not say that it makes a" in says
    assert not spy.with_suffix(".called").exists()


def test_mistakes_are_one_sentence_and_exit_2(directory, mistake):
    assert "holds no config.yaml" in mistake(f"directory={directory / 'none'}")
    assert "does not use it" in mistake("dataset.path=/somewhere")
    assert "batch_size is 0" in mistake("batch_size=0")
    np.savez(directory / "model.npz", **{WEIGHT: np.zeros((10, 49), "f4"), BIAS: np.zeros(10, "f4")})
    assert "of the shape that the run was trained on" in mistake()
    (directory / "model.npz").unlink()
    assert "a run writes it when it finishes" in mistake()


def test_a_run_that_is_not_private_is_said_to_be(directory, capsys):
    for changed in ({}, {"run": {"reproducible": True}}, {"privacy": {"noise_multiplier": 0}}):
        record(directory, **changed)
        evaluated(directory)
        said = capsys.readouterr().err
        assert (said[:9] == "warning: ", "is a run that is NOT private" in said) == (bool(changed),) * 2

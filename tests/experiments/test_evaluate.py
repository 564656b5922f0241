"""`evaluate` on a run directory written by hand."""

import json
from pathlib import Path

import numpy as np
import pytest
from omegaconf import OmegaConf

from client.data import load
from client.models import build
from experiments.cli import command
from experiments.evaluate import EvaluateSettings, evaluate
from experiments.settings.compose import compose

WEIGHT, BIAS = "1.weight", "1.bias"


def run(directory: Path, *overrides: str) -> None:
    """Call the command as the command line would."""
    overrides = (f"directory={directory}", *overrides)
    evaluate(compose("evaluate", overrides, EvaluateSettings))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A run directory with a random logistic model on digits."""
    model = build("logistic", input_shape=(8, 8), classes=10, seed=4)
    arrays = {name: parameter.detach().numpy() for name, parameter in model.named_parameters()}
    np.savez(tmp_path / "model.npz", **arrays)
    config = {"dataset": {"name": "digits", "path": None}, "model": {"name": "logistic"}, "seed": 1}
    OmegaConf.save(OmegaConf.create(config), tmp_path / "config.yaml")
    return tmp_path


def by_hand(directory: Path, x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Return accuracy and loss of the stored logistic model."""
    with np.load(directory / "model.npz") as arrays:
        logits = x.reshape(len(x), -1).astype(float) @ arrays[WEIGHT].T + arrays[BIAS]
    logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return float((logits.argmax(1) == y).mean()), float(-logits[np.arange(len(y)), y].mean())


def test_scores_are_those_of_the_stored_model(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(directory, "output=json")
    printed = json.loads(capsys.readouterr().out)
    test = load("digits").test
    accuracy, loss = by_hand(directory, test.x, test.y)
    assert printed["accuracy"] == accuracy
    assert printed["loss"] == pytest.approx(loss, rel=1e-5)
    assert (printed["examples"], printed["parameters"], printed["dataset"]) == (360, 650, "digits")


def test_another_data_set_replaces_the_runs_own(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.random((50, 8, 8)), rng.integers(0, 10, 50)
    y[:10] = range(10)
    np.savez(directory / "other.npz", x=x, y=y, user=np.arange(50), split=(np.arange(50) < 20).astype(int))
    run(directory, "dataset=by_user_npz", f"dataset.path={directory / 'other.npz'}", "output=json")
    printed = json.loads(capsys.readouterr().out)
    accuracy, _ = by_hand(directory, x[:20], y[:20])
    assert (printed["accuracy"], printed["examples"]) == (accuracy, 20)


def test_text_output_names_the_run(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(directory)
    assert "accuracy" in capsys.readouterr().out


def mistake(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return the sentence printed for a mistake, after checking that it exits 2."""
    with pytest.raises(SystemExit) as stop:
        command.run(evaluate, "evaluate", EvaluateSettings, argv=arguments)
    assert stop.value.code == 2
    return capsys.readouterr().err


def test_mistakes_are_one_sentence_and_exit_2(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "holds no config.yaml" in mistake(capsys, f"directory={directory / 'none'}")
    assert "does not use it" in mistake(capsys, f"directory={directory}", "dataset.path=/somewhere")
    assert "dataset" in mistake(capsys, f"directory={directory}", "dataset=nothing")
    np.savez(directory / "model.npz", **{WEIGHT: np.zeros((10, 49), "f4"), BIAS: np.zeros(10, "f4")})
    assert "of the shape that the run was trained on" in mistake(capsys, f"directory={directory}")
    assert "dataset.seize is no setting" in mistake(capsys, f"directory={directory}", "+dataset.seize=3")
    for size in (0, -1):
        assert f"batch_size is {size}" in mistake(capsys, f"directory={directory}", f"batch_size={size}")
    (directory / "model.npz").write_text("no model")
    assert "cannot be read as a model" in mistake(capsys, f"directory={directory}")
    (directory / "model.npz").unlink()
    assert "has not released a model" in mistake(capsys, f"directory={directory}")

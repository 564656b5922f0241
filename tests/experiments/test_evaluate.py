"""`evaluate` on a run directory written by hand."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
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


SPY = """
from pathlib import Path
from torch import nn
from client.data import Dataset, load as of_fedmf

Path({marker!r}).touch()  # what importing runs


def load() -> Dataset:
    return of_fedmf("digits")


def net(input_shape, classes) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))


def unsaid():
    Path({marker!r}).with_suffix(".called").touch()
"""


@pytest.fixture
def spy(directory: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that is there once the module `spy_of_evaluate`, which the directory's config.yaml names, was run."""
    folder = tmp_path_factory.mktemp("spy")
    (folder / "spy_of_evaluate.py").write_text(SPY.format(marker=str(folder / "imported")))
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "spy_of_evaluate", raising=False)
    config = {
        "dataset": {"name": "spy_of_evaluate:load"},
        "model": {"name": "spy_of_evaluate:net"},
        "seed": 1,
    }
    OmegaConf.save(OmegaConf.create(config), directory / "config.yaml")
    return folder / "imported"


def test_code_that_only_the_directory_names_is_not_even_imported(
    directory: Path, spy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    says = mistake(capsys, f"directory={directory}")
    assert "dataset.name" in says
    assert "spy_of_evaluate:load" in says
    assert "trust_code=true" in says
    assert "model.name" in mistake(capsys, f"directory={directory}", "dataset=digits")
    assert not spy.exists()


def test_code_runs_when_it_is_trusted_or_named_on_the_command_line(
    directory: Path, spy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = ("dataset=custom", "dataset.name=spy_of_evaluate:load", "model=custom")
    run(directory, *own, "model.name=spy_of_evaluate:net", "output=json")
    named = json.loads(capsys.readouterr().out)
    run(directory, "trust_code=true", "output=json")
    assert json.loads(capsys.readouterr().out) == named
    assert (named["examples"], named["parameters"]) == (360, 650)


@pytest.mark.parametrize("path", ["os:system", "builtins:exec", "subprocess:run", "spy_of_evaluate:unsaid"])
def test_what_says_of_itself_no_loader_and_no_model_is_never_called(
    directory: Path, spy: Path, capsys: pytest.CaptureFixture[str], path: str
) -> None:
    for group in ("dataset", "model"):
        config = {"dataset": {"name": "digits"}, "model": {"name": "logistic"}, "seed": 1}
        config[group] = {"name": path, "settings": {"command": f"touch {spy.with_suffix('.called')}"}}  # type: ignore[dict-item]
        OmegaConf.save(OmegaConf.create(config), directory / "config.yaml")
        says = mistake(capsys, f"directory={directory}", "trust_code=true")
        assert f"{group}.name is '{path}', which does not say that it makes a" in says
    assert not spy.with_suffix(".called").exists()


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
    assert "has not released a round yet" in mistake(capsys, f"directory={directory}")


@pytest.mark.parametrize(("released", "said"), [(1, "1 round,"), (105, "105 rounds,")])
def test_a_run_that_was_stopped_is_told_from_one_that_released_nothing(
    directory: Path, capsys: pytest.CaptureFixture[str], released: int, said: str
) -> None:
    """Its releases have been seen; its model is in the checkpoint alone, which is secret. What was written half does not count."""
    (directory / "model.npz").unlink()
    (directory / "metrics.jsonl").write_text('{"round": 1}\n' * released + '{"round"')
    sentence = mistake(capsys, f"directory={directory}")
    assert f"the run has released {said} and its model is written when it finishes" in sentence
    assert "run.resume=true" in sentence
    (directory / "summary.json").write_text("{}")
    assert "has finished, and wrote it: restore the file" in mistake(capsys, f"directory={directory}")


def record_metrics(directory: Path, entries: list[str]) -> None:
    """Let the run in `directory` have recorded `entries`."""
    config = yaml.safe_load((directory / "config.yaml").read_text())
    (directory / "config.yaml").write_text(yaml.safe_dump({**config, "metrics": entries}))


def test_the_runs_own_metrics_are_printed_or_those_that_are_given(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record_metrics(directory, ["accuracy", "top5"])
    run(directory, "output=json")
    own = json.loads(capsys.readouterr().out)
    assert own["accuracy"] < own["top5"] < 1
    assert "f1" not in own
    run(directory, "output=json", "metrics=[f1,perplexity]")
    given = json.loads(capsys.readouterr().out)
    assert given["perplexity"] == pytest.approx(np.exp(given["loss"]), rel=1e-6)
    assert 0 < given["f1"] < 1
    assert "top5" not in given


def test_a_metric_that_only_the_directory_names_is_not_imported(
    directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "imported"
    text = (
        f"from pathlib import Path\nPath({str(mark)!r}).touch()\ndef half(o, t) -> float:\n    return 0.5\n"
    )
    (tmp_path / "spying_metric.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    record_metrics(directory, ["spying_metric:half"])
    assert "metrics[0] of" in mistake(capsys, f"directory={directory}")
    run(directory, "output=json", "metrics=[f1]")  # another list leaves it alone
    assert not mark.exists()
    capsys.readouterr()
    for consent in ("trust_code=true", "metrics=[spying_metric:half]"):
        run(directory, "output=json", consent)
        assert json.loads(capsys.readouterr().out)["half"] == 0.5


def test_a_metric_that_cannot_be_computed_is_one_sentence(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "'f2', which is no metric" in mistake(capsys, f"directory={directory}", "metrics=[f2]")
    says = mistake(capsys, f"directory={directory}", "metrics=[math:dist]")
    assert "does not say that it gives a float" in says
    for odd in ("f1", {"a": 1}, [3]):
        record_metrics(directory, odd)  # type: ignore[arg-type]
        assert "which is no list of names" in mistake(capsys, f"directory={directory}")

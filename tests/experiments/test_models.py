"""`export` and `evaluate`: the exported model computes what the run's own does; a stored one is scored, its code only when trusted."""

import io
import json
import re
import sys
from contextlib import redirect_stdout

import numpy as np
import pytest
import torch
import yaml
from torch.nn.functional import cross_entropy

from client.data import load
from client.models import build
from experiments import run as door
from experiments.evaluate import EvaluateSettings, evaluate
from experiments.export import ExportSettings, export
from experiments.settings.compose import compose
from fedmf.errors import RunDirectoryError, SettingError
from runs import page_section, refused, run

pytestmark = pytest.mark.long

ONE = ("population.epochs=1", "population.rounds_per_epoch=1", "population.cohort_size=64")
FILES = {"torch": "model.pt", "safetensors": "model.safetensors", "onnx": "model.onnx"}
TEXT = page_section("extend.md", "Export")


def exported(directory, *overrides):
    export(compose("export", [f"directory={directory}", *overrides], ExportSettings))


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """A short run of the default model."""
    return run(tmp_path_factory.mktemp("digits") / "r", *ONE)


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A run of a model of one's own that trains in part and has buffers."""
    custom = ("model=custom", "model.name=test_export_models:Net", "model.trainable=['head.*']")
    folder = tmp_path_factory.mktemp("own")
    (folder / "test_export_models.py").write_text(NET)
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(str(folder))
        yield run(folder / "r", *ONE, *custom)
        sys.modules.pop("test_export_models", None)


NET = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, input_shape, classes, width=6):
        super().__init__()
        self.backbone = nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.BatchNorm1d(width), nn.ReLU())
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        return self.head(self.backbone(x))

class Draws(Net):
    def forward(self, x):
        return super().forward(x) + torch.rand(10)

class Branches(Net):
    def forward(self, x):
        return super().forward(x) if x.mean() > 0.5 else -super().forward(x)
"""


@pytest.fixture(scope="module")
def written(digits, tmp_path_factory):
    """A folder with the model in each format, and what the command printed of each."""
    folder, printed = tmp_path_factory.mktemp("written"), {}
    for name, file in FILES.items():
        with redirect_stdout(io.StringIO()) as out:
            exported(digits, f"format={name}", f"to={folder / file}", "output=json")
        printed[name] = json.loads(out.getvalue())
    return folder, printed


def test_the_documented_lines_load_each_format_with_the_runs_own_numbers(digits, written, monkeypatch):
    monkeypatch.chdir(written[0])
    scope, blocks = {}, re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    ours, x = door.load(digits).model(), load("digits").test.x[:7]
    expected = ours(torch.from_numpy(x)).detach().numpy()
    for lines in blocks[:2]:  # torch and safetensors
        exec(lines, scope)
        np.testing.assert_array_equal(scope["model"](torch.from_numpy(x)).detach().numpy(), expected)
        torch.nn.init.zeros_(next(scope["model"].parameters()))
    for lines in blocks[2:]:  # onnx, and what is said with it
        exec(lines, scope)
    assert scope["scores"].shape == (2, 10)
    np.testing.assert_allclose(scope["session"].run(None, {"x": x})[0], expected, rtol=1e-4, atol=1e-5)


def test_the_statement_goes_along_in_every_format_and_is_printed_in_short(digits, written, tmp_path, capsys):
    import onnx
    from safetensors import safe_open

    (folder, printed), statement = written, json.loads((digits / "privacy.json").read_text())
    for name, file in FILES.items():
        assert printed[name]["files"][0] == str(folder / file)
        assert printed[name]["statement"] == statement["paragraph"]
    assert json.loads((folder / "model.pt.json").read_text())["privacy"] == statement
    with safe_open(folder / "model.safetensors", framework="numpy") as file:
        assert json.loads(file.metadata()["privacy"]) == statement
    properties = {one.key: one.value for one in onnx.load(folder / "model.onnx").metadata_props}
    assert json.loads(properties["fedmf.privacy"]) == statement
    assert properties["fedmf.statement"] == statement["paragraph"]
    exported(digits, "format=torch", f"to={tmp_path / 'model.pt'}")
    said = capsys.readouterr().err
    assert "It does NOT cover" in said
    assert statement["paragraph"] not in said


def test_parameters_and_buffers_are_those_of_the_run_without_its_code(own, tmp_path):
    """Neither the module nor the data is needed: the import path of this run leads nowhere here."""
    from safetensors.torch import load_file

    sys.modules.pop("test_export_models", None)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "path", [path for path in sys.path if str(own.parent) != path])
        for form, file in list(FILES.items())[:2]:
            exported(own, f"format={form}", f"to={tmp_path / file}")
        assert "test_export_models" not in sys.modules
    tensors = load_file(tmp_path / "model.safetensors")
    with np.load(own / "model.npz") as arrays:
        for state in (torch.load(tmp_path / "model.pt", weights_only=True), tensors):
            assert set(state) == set(arrays.files)
            for name in arrays.files:
                np.testing.assert_array_equal(state[name].numpy(), arrays[name])
                assert state[name].numpy().dtype == arrays[name].dtype
    assert {"backbone.2.running_var", "backbone.2.num_batches_tracked", "head.bias"} <= set(tensors)


@pytest.mark.slow
def test_a_model_of_ones_own_is_written_as_onnx_only_where_it_is_named(own, tmp_path):
    from onnx.reference import ReferenceEvaluator

    file = tmp_path / "a.onnx"
    with pytest.raises(SettingError, match=r"test_export_models:Net.*trust_code=true"):
        exported(own, "format=onnx", f"to={file}")
    named = ("format=onnx", f"to={file}", "model=custom", "model.name=test_export_models:")
    for wrong, says in (("Draws", "other outputs than in torch"), ("Branches", "cannot be written as ONNX")):
        with pytest.raises(SettingError, match=says):
            exported(own, *named[:3], named[3] + wrong)
    assert not file.exists()
    x = load("digits").test.x[:4]
    expected = door.load(own, trust_code=True).model()(torch.from_numpy(x)).detach().numpy()
    for consent in (("trust_code=true",), ("model=custom", "model.name=test_export_models:Net")):
        exported(own, "format=onnx", f"to={file}", *consent)
        (scores,) = ReferenceEvaluator(str(file)).run(None, {"x": x})
        np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-5)
        file.unlink()


def test_nothing_is_written_over(digits, tmp_path):
    for name, place in (*FILES.items(), ("torch", "model.pt.json")):
        (tmp_path / place).symlink_to(tmp_path / "nowhere")
        with pytest.raises(RunDirectoryError, match=f"{place} exists; nothing was written"):
            exported(digits, f"format={name}", f"to={tmp_path / FILES[name]}")
        (tmp_path / place).unlink()
    assert not list(tmp_path.iterdir())


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
    for changed, named, key in (
        (code, (), "dataset.name of .*spy_of_evaluate:load"),
        (code, ("dataset=digits",), "model.name of"),
        ({"metrics": ["spy_of_evaluate:half"]}, (), r"metrics\[0\] of"),
        ({"client": {"loss": "spy_of_evaluate:half"}}, (), "client.loss of"),
    ):
        record(directory, **changed)
        assert re.search(rf"{key}.*trust_code=true", mistake(*named)), key
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
        assert f"{group}.name is '{path}', which promises no " in says
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
        assert ("warning: " in said, "is a run that is NOT private" in said) == (bool(changed),) * 2

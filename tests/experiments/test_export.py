"""The exported model computes what the run's own does, and carries the run's statement."""

import io
import json
import re
import sys
from contextlib import redirect_stdout

import numpy as np
import pytest
import torch

from client.data import load
from experiments import run as door
from experiments.export import ExportSettings, export
from experiments.settings.compose import compose
from fedmf.errors import RunDirectoryError, SettingError
from runs import page_section, run

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


def test_the_statement_goes_along_in_every_format(digits, written):
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

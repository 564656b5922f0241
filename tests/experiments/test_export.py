"""The exported model computes what the run's own does, and carries the run's statement."""

import io
import json
import re
import shutil
import sys
from contextlib import redirect_stdout

import numpy as np
import pytest
import torch

from client.data import load
from experiments import run as door
from experiments.export import ExportSettings, export
from experiments.settings.compose import compose
from experiments.settings.data import arguments, load_dataset
from experiments.settings.reference import CONF
from fedmf.errors import FedmfError, RunDirectoryError, SettingError
from runs import run

pytestmark = pytest.mark.long

ONE = ("population.epochs=1", "population.rounds_per_epoch=1", "population.cohort_size=64")
FILES = {"torch": "model.pt", "safetensors": "model.safetensors", "onnx": "model.onnx"}
TEXT = CONF.parent / "docs" / "export.md"


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

class NotWritten(Net):
    def forward(self, x):
        return super().forward(x) if x.mean() > 0.5 else -super().forward(x)
"""


def contents(directory):
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


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
    scope = {}
    torch_lines, safetensors_lines, onnx_lines, metadata = re.findall(
        r"```python\n(.*?)```", TEXT.read_text(), re.DOTALL
    )
    ours, x = door.load(digits).model(), load("digits").test.x[:7]
    expected = ours(torch.from_numpy(x)).detach().numpy()
    for lines in (torch_lines, safetensors_lines):
        exec(lines, scope)
        np.testing.assert_array_equal(scope["model"](torch.from_numpy(x)).detach().numpy(), expected)
        with torch.no_grad():
            for parameter in scope["model"].parameters():
                parameter.zero_()
    exec(onnx_lines, scope)
    assert scope["scores"].shape == (2, 10)
    np.testing.assert_allclose(scope["session"].run(None, {"x": x})[0], expected, rtol=1e-4, atol=1e-5)
    exec(metadata, scope)


def test_the_statement_goes_along_in_every_format(digits, written):
    import onnx
    from safetensors import safe_open

    (folder, printed), statement = written, json.loads((digits / "privacy.json").read_text())
    for name, file in FILES.items():
        assert printed[name]["files"][0] == str(folder / file)
        assert printed[name]["statement"] == statement["paragraph"]
    beside = json.loads((folder / "model.pt.json").read_text())
    assert (beside["statement"], beside["privacy"]) == (statement["paragraph"], statement)
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
        exported(own, "format=torch", f"to={tmp_path / 'a.pt'}")
        exported(own, "format=safetensors", f"to={tmp_path / 'a.safetensors'}")
        assert "test_export_models" not in sys.modules
    with np.load(own / "model.npz") as arrays:
        for state in (
            torch.load(tmp_path / "a.pt", weights_only=True),
            load_file(tmp_path / "a.safetensors"),
        ):
            assert set(state) == set(arrays.files)
            for name in arrays.files:
                np.testing.assert_array_equal(state[name].numpy(), arrays[name])
                assert state[name].numpy().dtype == arrays[name].dtype
    assert {"backbone.2.running_var", "backbone.2.num_batches_tracked", "head.bias"} <= set(state)
    ours = door.load(own, trust_code=True).model()
    assert not ours.load_state_dict(state).missing_keys


@pytest.mark.slow
def test_a_model_of_ones_own_is_written_as_onnx_only_where_it_is_named(own, tmp_path):
    from onnx.reference import ReferenceEvaluator

    before = contents(tmp_path)
    with pytest.raises(SettingError, match=r"test_export_models:Net.*trust_code=true"):
        exported(own, "format=onnx", f"to={tmp_path / 'a.onnx'}")
    assert contents(tmp_path) == before
    named = ("model=custom", "model.name=test_export_models:Net")
    x = load("digits").test.x[:4]
    expected = door.load(own, trust_code=True).model()(torch.from_numpy(x)).detach().numpy()
    for consent in (("trust_code=true",), named):
        file = tmp_path / f"{len(consent)}.onnx"
        exported(own, "format=onnx", f"to={file}", *consent)
        (scores,) = ReferenceEvaluator(str(file)).run(None, {"x": x})
        np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-5)
    for wrong, says in (
        ("Draws", "other outputs than in torch"),
        ("NotWritten", "cannot be written as ONNX"),
    ):
        with pytest.raises(SettingError, match=says):
            exported(own, "format=onnx", f"to={tmp_path / 'b.onnx'}", "model=custom", f"model.name=test_export_models:{wrong}")  # fmt: skip
        assert not (tmp_path / "b.onnx").exists()


TEXTS = "dataset=by_user_text dataset.path={path} dataset.vocabulary={words} model.embedding=4 model.hidden=5 model="


@pytest.mark.slow
@pytest.mark.parametrize("settings", ["model=cnn", "model=mlp model.hidden=9", f"{TEXTS}lstm", f"{TEXTS}char_lstm"])  # fmt: skip
def test_every_model_as_onnx_gives_what_it_gives_in_torch(tmp_path, settings):
    """Export itself compares them, on inputs of its own; here on the run's test examples."""
    from onnx.reference import ReferenceEvaluator

    lines = [{"user": f"u{n % 8}", "text": "a b c d a b c a b"} for n in range(64)]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "words").write_text("a\nb\nc\nd\n")
    chosen = settings.format(path=tmp_path / "t.jsonl", words=tmp_path / "words").split()
    directory = run(tmp_path / "r", *ONE, "population.cohort_size=4", "privacy.delta=1e-3", *chosen)
    exported(directory, "format=onnx")
    loaded = door.load(directory)
    config = loaded.run.config
    x = np.asarray(load_dataset(arguments(config["dataset"]), config["model"]["name"]).test.x[:5])
    (scores,) = ReferenceEvaluator(str(directory / "model.onnx")).run(None, {"x": x})
    ours = loaded.model()(torch.from_numpy(x)).detach().numpy()
    np.testing.assert_allclose(scores, ours, rtol=1e-3, atol=1e-5)


def test_nothing_is_written_over(digits, tmp_path):
    for name, file in FILES.items():
        for place in (tmp_path / file, *([tmp_path / "model.pt.json"] if name == "torch" else [])):
            place.symlink_to(tmp_path / "nowhere")
            with pytest.raises(RunDirectoryError, match=f"{place} exists; nothing was written"):
                exported(digits, f"format={name}", f"to={tmp_path / file}")
            place.unlink()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("module", ["safetensors", "onnxscript"])
def test_a_missing_extra_is_one_sentence_with_the_command(digits, tmp_path, monkeypatch, module):
    name = module.removesuffix("script")
    for loaded in [loaded for loaded in sys.modules if loaded.split(".")[0] == module]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, module, None)
    says = rf"format={name} needs the package {module}.*pip install 'fedmf\[{name}\]'"
    with pytest.raises(SettingError, match=says):
        exported(digits, f"format={name}", f"to={tmp_path / 'x'}")


def test_the_default_place_is_the_run_directory_and_mistakes_leave_nothing(digits, tmp_path, capsys):
    directory = shutil.copytree(digits, tmp_path / "r")
    before = contents(tmp_path)
    for override, says in (("format=pickle", "format is 'pickle'"), ("to=none/model.pt", "is no folder")):
        with pytest.raises(FedmfError, match=says):
            exported(directory, override)
    assert contents(tmp_path) == before
    exported(directory)
    shown = capsys.readouterr()
    assert shown.out == f"{directory / 'model.pt'}\n"
    assert "epsilon = " in shown.err
    assert (directory / "model.pt").exists()

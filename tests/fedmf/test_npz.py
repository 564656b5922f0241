"""A file of arrays that unpacks to far more than it has is refused by its heads: nothing of that size is ever in memory."""

import io
import tracemalloc
import zipfile

import numpy as np
import pytest

from client import models
from client.parameters import start_from
from experiments import run as door
from experiments.cli.command import guard
from experiments.evaluate import EvaluateSettings, evaluate
from experiments.export import ExportSettings, export
from experiments.settings.compose import compose
from fedmf.npz import read_npz
from runs import run

LARGE = (100, 1 << 18)  # 105 MB of float32, in a file of 0.1 MB
MOST = 20_000_000  # bytes that may be held meanwhile
WEIGHT, BIAS = "1.weight", "1.bias"


@pytest.fixture(scope="module")
def bomb(tmp_path_factory):
    """Zeros, compressed, under the names of a logistic model."""
    file = tmp_path_factory.mktemp("bomb") / "model.npz"
    np.savez_compressed(file, **{WEIGHT: np.zeros(LARGE, "f4"), BIAS: np.zeros(10, "f4")})
    assert file.stat().st_size < 1_000_000
    return file


@pytest.fixture(scope="module")
def directory(bomb, tmp_path_factory):
    """A finished run whose model is the bomb."""
    made = run(tmp_path_factory.mktemp("run") / "r", "population.epochs=1", "population.rounds_per_epoch=2",
               "population.cohort_size=6", "model=logistic", "run.reproducible=true")  # fmt: skip
    (made / "model.npz").write_bytes(bomb.read_bytes())
    door.load(made).model  # noqa: B018  all that is imported is imported before memory is counted
    return made


def most_held(action):
    """Return the most bytes that `action` held at once."""
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_an_export_a_score_and_a_start_take_no_more_than_the_file(bomb, directory, capsys):
    model = models.build("logistic", input_shape=(8, 8), classes=10, seed=0)
    exported = compose("export", [f"directory={directory}", "format=torch"], ExportSettings)
    scored = compose("evaluate", [f"directory={directory}", "output=json"], EvaluateSettings)
    for action, shape in (
        (lambda: export(exported), "no larger than the file"),  # no model is made
        (lambda: evaluate(scored), "(10, 64)"),
        (lambda: start_from(model, bomb), "(10, 64)"),
    ):
        codes = []
        assert most_held(lambda action=action, codes=codes: codes.append(guard(action))) < MOST
        assert codes == [2]
        assert f"{WEIGHT} has the shape {LARGE} of float32; it must be {shape}" in capsys.readouterr().err


def test_wide_values_and_lying_heads_are_refused_as_well():
    lying = as_array(np.zeros(3)).replace(b"(3,), }        ", b"(300000003,), }")
    other = as_array(np.zeros(2), version=(2, 0))  # another format, whose own length is not believed
    for data, shapes, said in (
        (stored({"a": np.array(["x" * 9, "y"])}), {"a": (2,)}, r"a has the shape .*; it must be \(2,\)"),
        (stored({"a": np.zeros(3)}), {"a": (2,)}, r"a has the shape .*; it must be \(2,\)"),
        (archived(lying), None, r"\(300000003,\) of float64; it must be no larger than the file"),
        (archived(other), None, "header|literal"),
    ):
        with pytest.raises(ValueError, match=said):
            read_npz(data, shapes)


def test_whatever_is_of_the_models_shape_is_read_packed_or_not(tmp_path):
    arrays = {"a": np.zeros((1000, 9), "f8"), "b": np.float32(2)}
    np.savez_compressed(tmp_path / "a.npz", **arrays)
    read = read_npz(tmp_path / "a.npz", {"a": (1000, 9), "b": ()})
    assert {name: array.tolist() for name, array in read.items()} == {
        name: array.tolist() for name, array in arrays.items()
    }
    assert [*read_npz(stored(arrays), names=["b"])] == ["b"]


def stored(arrays):
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def as_array(array, version=(1, 0)):
    """Return the bytes of an .npy file."""
    file = io.BytesIO()
    np.lib.format.write_array(file, array, version=version)
    return file.getvalue()


def archived(content):
    """Return an archive whose array "a" has these bytes."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a.npy", content)
    return file.getvalue()

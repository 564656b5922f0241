"""A config.yaml of someone else's, or one with a slip, is refused with one sentence by every command that reads it."""

import shutil

import pytest
import yaml

from experiments import run as door
from experiments.cli.command import guard
from experiments.compare import CompareSettings, compare
from experiments.evaluate import EvaluateSettings, evaluate
from experiments.settings.compose import compose
from runs import SMALL, run

VALUES = {
    "an argument that the data decide": ("model.settings", {"input_shape": [1]}, "hold input_shape, which follows"),
    "the same without settings": ("model.classes", 3, "hold classes, which follows"),
    "settings without texts as keys": ("model.settings", {3: 4}, "config.yaml"),
    "a model without a name": ("model.name", None, "names its model None"),
    "a number as a name": ("model.name", 7, "names its model 7"),
    "a list as a name": ("model.name", ["logistic"], "names its model"),
    "a list as a data set": ("dataset.name", ["digits"], "names its dataset"),
    "a list as a path": ("dataset.path", [1], "it should be a valid string"),
    "a truth as a path": ("dataset.path", True, "dataset.path is true; it takes neither"),
    "text as a count": ("dataset.examples_per_client", "many", "it should be a valid integer"),
    "a relative module": ("dataset.name", ".:x", "'.:x', which "),
    "a module of no name": ("dataset.name", ":x", "':x', which "),
    "a number as a group": ("engine", 3, "engine, which must be a mapping"),
    "a list as a group": ("run", [1], "run, which must be a mapping"),
}  # fmt: skip
TEXTS = {
    "a reference to itself": ("model: {name: logistic}\ndataset: &a {name: digits, settings: *a}\n", "nests more"),
    "a list in itself": ("model: {name: logistic}\ndataset: {name: digits}\nmore: &a [*a]\n", "nests more"),
    "deep": (f"dataset: {'{a: ' * 3000}1{'}' * 3000}\nmodel: {{name: x}}\n", "cannot be read as YAML"),
    "less deep": (f"dataset: {{name: digits, a: {'[' * 50}{']' * 50}}}\nmodel: {{name: x}}\n", "nests more"),
    "a date": ("dataset: {name: digits, path: 2020-01-01}\nmodel: {name: x}\n", "holds a date"),
    "a date of no calendar": ("dataset: {name: digits, path: 2020-13-01}\nmodel: {name: x}\n", "cannot be read"),
    "a huge document": (
        "dataset: {name: digits}\nmodel: {name: x}\nz0: &z0 [1, 2]\n"
        + "".join(f"z{i}: &z{i} [{', '.join([f'*z{i - 1}'] * 9)}]\n" for i in range(1, 9)),
        "holds more than",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return run(tmp_path_factory.mktemp("finished") / "r", *SMALL)


def changed(finished, case):
    """Return the text of config.yaml in a case."""
    if case in TEXTS:
        return TEXTS[case][0]
    path, value, _ = VALUES[case]
    document = yaml.safe_load((finished / "config.yaml").read_text())
    group, _, key = path.rpartition(".")
    (document[group] if group else document)[key] = value
    return yaml.safe_dump(document)


@pytest.mark.parametrize("case", [*VALUES, *TEXTS])
def test_what_a_config_holds_is_refused_with_one_sentence_and_exit_code_2(finished, tmp_path, capsys, case):
    directory = shutil.copytree(finished, tmp_path / "r")
    (directory / "config.yaml").write_text(changed(finished, case))
    named = {**VALUES, **TEXTS}[case][-1]
    given = [f"directory={directory}", "trust_code=true"]
    calls = {
        "evaluate": lambda: evaluate(compose("evaluate", given, EvaluateSettings)),
        "model": lambda: door.load(directory, trust_code=True).model(),
        "plan": lambda: door.load(directory, trust_code=True).plan,
        "resume": lambda: door.resume(directory, trust_code=True),
    }
    for command, call in calls.items():
        if command == "resume":
            (directory / "summary.json").unlink()
        capsys.readouterr()
        assert guard(call) == 2, command
        said = capsys.readouterr().err
        assert (said[:7], said.count("\n")) == ("error: ", 1), (command, said)
        if command in ("evaluate", "model"):
            assert named in said, (command, said)


@pytest.mark.parametrize("case", TEXTS)
def test_a_comparison_leaves_such_a_run_out_by_name(finished, tmp_path, capsys, case):
    shutil.copytree(finished, tmp_path / "good")
    (shutil.copytree(finished, tmp_path / "bad") / "config.yaml").write_text(TEXTS[case][0])
    compare(compose("compare", [f"directory={tmp_path}"], CompareSettings))
    assert "left out, bad" in capsys.readouterr().out

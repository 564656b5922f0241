"""The Python door: `from experiments import run`."""

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from flwr.supercore.task_identity import TaskIdentity
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra

import runs
import users_own
from client import from_arrays
from experiments import run
from experiments.pages.comparison import read_comparison
from experiments.settings.objects import named
from experiments.settings.values import as_overrides
from fedmf.errors import FedmfError, RunDirectoryError, RunStoppedError, SettingError
from fedmf.mechanisms import Family
from runs import cut

pytestmark = pytest.mark.long

SMALL = ("dataset=synthetic", "dataset.clients=40", "dataset.features=4", "population.cohort_size=10")
ONE = (*SMALL, "population.epochs=1", "run.reproducible=true")


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    directory = tmp_path_factory.mktemp("door") / "r"
    return run(*ONE, seed=4, run={"directory": str(directory)})


def test_a_result_is_what_the_run_directory_holds_and_the_run_of_the_command_line(result, tmp_path):
    summary = json.loads((result.directory / "summary.json").read_text())
    privacy = json.loads((result.directory / "privacy.json").read_text())
    for name in ("accuracy", "loss", "epsilon", "delta"):
        assert getattr(result, name) == summary[name]
    assert result.statement == privacy["paragraph"]
    assert [row["round"] for row in result.metrics] == [1, 2, 3, 4]
    runs.assert_equal(runs.run(tmp_path / "c", *ONE, "seed=4"), result.directory)
    model = result.model()
    flat = torch.nn.utils.parameters_to_vector(model.parameters()).detach().numpy()
    np.testing.assert_array_equal(flat, runs.model(result.directory))
    assert not model.training


def test_runs_of_two_threads_are_those_of_one(result, tmp_path):
    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(lambda name: run(*ONE, seed=4, run={"directory": f"{tmp_path}/{name}"}), "ab"))
    for other in both:
        np.testing.assert_array_equal(runs.model(other.directory), runs.model(result.directory))


def test_a_cut_run_is_resumed_and_a_finished_one_returned(result, tmp_path):
    directory = cut(tmp_path / "r", *ONE, "seed=4", after=3)
    with pytest.raises(RunDirectoryError, match="has not finished"):
        run.load(directory)
    with pytest.raises(RunDirectoryError, match="unprotected_metrics"):
        run.resume(directory, run={"unprotected_metrics": True})
    resumed = run.resume(directory)
    assert resumed.accuracy == run.load(directory).accuracy == result.accuracy
    before = (directory / "metrics.jsonl").read_bytes()
    assert run.resume(str(directory)).metrics == resumed.metrics
    assert (directory / "metrics.jsonl").read_bytes() == before


def test_a_directory_without_a_run_and_a_config_that_hides_its_code_are_refused(result, tmp_path):
    """Code named by way of another setting would take its place after the name has been looked at."""
    config = (result.directory / "config.yaml").read_text()
    hidden = config.replace("name: synthetic\n  path: null", "name: ${dataset.path}\n  path: os:system", 1)
    assert hidden != config
    for door in (run.load, run.resume):
        with pytest.raises(RunDirectoryError, match=r"holds no config\.yaml"):
            door(tmp_path)
    (tmp_path / "config.yaml").write_text(hidden)
    with pytest.raises(FedmfError, match="a run records values only"):
        run.resume(tmp_path)


def test_code_that_a_run_directory_names_is_imported_only_if_trusted(result, tmp_path):
    mine = run(*ONE, seed=4, run={"directory": f"{tmp_path}/r"})  # whose own code is trusted, and no other
    config = mine.directory / "config.yaml"
    text = config.read_text()
    config.write_text(text.replace("  name: logistic", "  name: logistic\n  settings: {name: os:system}", 1))
    with pytest.raises(SettingError, match="is a setting of the group"):
        run.load(mine.directory).model()
    config.write_text(text.replace("name: logistic", "name: os:system", 1))
    loaded = run.load(mine.directory)
    for use in (loaded.model, lambda: run.resume(mine.directory), mine.model):
        with pytest.raises(SettingError, match=r"os:system.*trust_code=True"):
            use()
    assert loaded.accuracy == result.accuracy  # reading imports nothing


@pytest.mark.parametrize("directory", ["it's a=b, c", r"a\'b", "[1]", "null"])
def test_keywords_become_overrides_that_hydra_reads_back(directory):
    rate = {"learning_rate": np.float64(0.25)}
    given = {"seed": np.int64(3), "run": {"directory": directory, "resume": False}, "optimizer": rate}
    composed = runs.composed(*as_overrides(given))
    assert (composed.seed, composed.run.directory, composed.run.resume) == (3, directory, False)
    assert composed.optimizer.learning_rate == 0.25
    own = as_overrides({"dataset": {"name": "a:b", "settings": {"n": [1, 2]}}})
    assert runs.composed("dataset=custom", *own).dataset.settings == {"n": [1, 2]}


def test_nothing_global_is_left_behind(tmp_path):
    def everything():
        identity = TaskIdentity._task_id, TaskIdentity._run_id, TaskIdentity._node_id
        hydra = GlobalHydra.instance().hydra, "config_schema.yaml" in ConfigStore.instance().repo
        return identity, hydra, dict(os.environ), torch.random.get_rng_state().tolist()

    before = everything()
    run(*ONE, run={"directory": f"{tmp_path}/a"})
    with pytest.raises(SettingError):
        run("seed=x")
    assert everything() == before


def given(width=3):
    """Return a model and a dataset as a program or a notebook has them, in no module that others could import."""

    class Net(torch.nn.Sequential):
        def __init__(self, input_shape, classes):
            hidden = torch.nn.Linear(*input_shape, width)
            super().__init__(hidden, torch.nn.ReLU(), torch.nn.Linear(width, classes))

    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(120, 4)).astype("float32"), np.arange(120) % 2
    data = from_arrays(x, y, np.arange(120) // 3, test=(x[:20], y[:20]))
    return {"model": Net, "dataset": data, "metrics": ["f1", lambda outputs, targets: 0.5]}


WITH_OBJECTS = ("population.cohort_size=10", "population.epochs=2", "run.reproducible=true", "seed=3")


@pytest.fixture(scope="module")
def with_objects(tmp_path_factory):
    return run(*WITH_OBJECTS, **given(), run={"directory": str(tmp_path_factory.mktemp("objects") / "whole")})


def test_a_result_shows_itself_and_does_what_the_commands_do(with_objects, tmp_path):
    summary = with_objects.summary
    assert with_objects.scores["lambda"] == summary["lambda"] == 0.5
    assert repr(with_objects).startswith(
        f"<Result whole: accuracy {100 * summary['accuracy']:.1f} %. NOT private as run"
    )
    html, shown = with_objects._repr_html_(), ("on the test set", "zero-out", str(with_objects.directory))
    assert all(words in html for words in shown)
    assert with_objects.frame()["round"].tolist() == [*range(1, 9)]
    assert with_objects.plot("epsilon")._repr_png_().startswith(b"\x89PNG")
    with pytest.raises(SettingError, match="no round with a value of top5"):
        with_objects.plot("top5")
    with pytest.raises(SettingError, match="ndarray is no override"):
        with_objects.evaluate(np.zeros(2))
    assert with_objects.evaluate(metrics=["f1"])["f1"] == pytest.approx(summary["f1"])
    weights = torch.load(with_objects.export(), weights_only=True)
    assert set(weights) == set(dict(with_objects.model().named_parameters()))
    onnx = run.load(with_objects.directory).export(
        format="onnx", to=f"{tmp_path}/m.onnx", model=given()["model"]
    )
    assert onnx.stat().st_size > 0
    folder = with_objects.directory.parent
    assert [found.accuracy for found in run.load_all(folder)] == [with_objects.accuracy]
    assert run.compare(folder).to_dict("records") == [group.row for group in read_comparison(folder).groups]
    loaded = run.load(with_objects.directory, **given())
    assert (loaded.evaluate()["accuracy"], *loaded.model().state_dict()) == (with_objects.accuracy, *weights)


def test_a_plan_from_python_is_that_of_the_command(with_objects):
    asked = {"population": {"cohort_size": 10, "epochs": 2}, "seed": 3}
    planned = run.plan(**given(), **asked)
    keys = ("epsilon", "noise_multiplier", "parameters", "rounds")
    assert [planned[key] for key in keys] == [with_objects.summary[key] for key in keys]
    assert len(run.plan(clients=60, dimension=9, epsilon=2, epochs=2, keep_probability=1)["table"]) == 1
    with pytest.raises(SettingError, match="clients: figures of a plan, next to model"):
        run.plan(clients=60, model="mlp")


def test_a_callback_sees_released_rows_and_stops_a_run_that_continues_as_if_it_had_not(
    with_objects, tmp_path
):
    seen, directory = [], tmp_path / "whole"

    def watch(row):
        on_disk = (directory / "metrics.jsonl").read_text().splitlines()
        assert json.loads(on_disk[-1]) == row
        seen.append(row.pop("round"))
        return len(seen) == 6

    where = {"run": {"directory": str(directory)}}
    stopped = run(*WITH_OBJECTS, **given(), callbacks=[watch, lambda row: 1], **where)
    assert seen == [1, 2, 3, 4, 5, 6]
    assert repr(stopped).startswith("<Result whole, stopped after round 6: accuracy ")
    assert "report.html" not in stopped._repr_html_()
    assert stopped.epsilon == stopped.metrics[-1]["epsilon"] == runs.statement(directory)["epsilon"]
    assert "choice to stop after round 6" in stopped.statement
    assert (len(stopped.model().state_dict()), runs.statement(directory)["epochs"]) == (4, 2)
    file = stopped.export(to=f"{tmp_path}/model.pt")
    assert (
        "choice to stop after round 6" in json.loads(file.with_name("model.pt.json").read_text())["statement"]
    )
    with pytest.raises(RunStoppedError, match=r"a callback failed after round 7: ZeroDivisionError"):
        run.resume(directory, callbacks=[lambda row: 1 / 0], **given())
    resumed = run.resume(directory, callbacks=[watch, lambda row: row["round"] == 8], **given())
    assert (seen[-1], resumed.stopped) == (8, None)
    runs.assert_equal(resumed.directory, with_objects.directory)


def test_a_callback_sees_no_unprotected_metrics(tmp_path):
    seen = []
    shown = run(
        *ONE, "run.unprotected_metrics=true", callbacks=[seen.append], run={"directory": f"{tmp_path}/r"}
    )
    assert all(
        "measured_value_bytes" in row.keys() - here for row, here in zip(shown.metrics, seen, strict=True)
    )


def test_other_objects_than_a_run_was_given_are_noticed(tmp_path):
    cut = run(*WITH_OBJECTS, **given(), callbacks=[lambda row: True], run={"directory": str(tmp_path / "r")})
    x = np.zeros((120, 4), "float32")
    other_test = from_arrays(x, np.arange(120) % 2, np.arange(120) // 3, test=(x[:20], np.arange(20) % 2))
    other_rows = from_arrays(
        x, np.arange(120) % 2, np.arange(120) // 3, test=(given()["dataset"].test.x, np.arange(20) % 2)
    )
    for changed, error, says in (
        ({"model": given(width=4)["model"]}, SettingError, "none or another was given"),
        ({"dataset": other_test}, SettingError, "none or another was given"),
        ({"dataset": other_rows}, RunDirectoryError, "began with other clients"),
        (
            {"metrics": ["f1", lambda outputs, targets: 0.25]},
            SettingError,
            r"metrics\[1\] of .*metrics=\.\.\.",
        ),
    ):
        with pytest.raises(error, match=says):
            run.resume(cut.directory, **(given() | changed))
    with pytest.raises(
        SettingError, match=r"dataset\.name of .* is 'python-[0-9a-f]{12}:Dataset', an object of the Python"
    ):
        run.resume(cut.directory)


class Constant:
    """A metric that is an object of this program, in no module under its name."""

    def __init__(self, value):
        self.value = value

    def __call__(self, outputs, targets):
        return self.value


def test_the_path_of_an_object_or_a_mechanism_changes_with_what_it_does():
    def path(**given):
        (found,) = named(given)[1]
        return found

    def fit(workload):
        return 1

    def other_fit(workload):
        return 2

    for key, objects in (
        ("metrics", [[Constant(0.5)], [Constant(0.25)]]),
        ("metrics", [[Constant(value).__call__] for value in (0.5, 0.25)]),
        ("mechanism", [Family("mine", fit), Family("mine", other_fit)]),
        ("mechanism", [Family("mine", fit), Family("other", fit)]),
    ):
        first, second = objects
        assert path(**{key: first}) == path(**{key: first}) != path(**{key: second})

    def loading(rows):
        return lambda: rows

    for key in ("dataset", "dataset.name"):  # what a loader holds may be private, and config.yaml is shown
        assert path(**{key: loading((0, 1))}) == path(**{key: loading((0, 2))})


def test_what_cannot_be_given_is_said_in_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules["__main__"], "Linear", users_own.Linear, raising=False)
    where = {"run": {"directory": str(tmp_path / "r")}}
    for asked, says in (
        ({"model": torch.nn.Linear(4, 2)}, "model is a Linear that is made already; give its class"),
        ({"callbacks": [3]}, "callbacks holds an object of type int; "),
        (
            {"dataset": (np.zeros((2, 2)), [0, 1])},
            "^No setting is an object of type ndarray; .* dataset=from_arrays",
        ),
        ({"dataset": [[0, 1]]}, "^dataset is of type list; it is chosen as dataset=NAME, "),
        ({"callbacks": len}, "callbacks is of type builtin_function_or_method; it must be a list"),
        ({"client.loss": [0] * 99}, r"^client\.loss is of type list; it should be a valid string"),
        ({"engine": {"workers": 2}}, r"dataset\.name is Dataset, .* worker processes cannot import it"),
        (
            {
                "engine": {"workers": 2},
                "dataset": users_own.load,
                "model": "custom",
                "model.name": "__main__:Linear",
            },
            r"model\.name is Linear, .* cannot import",
        ),
    ):
        with pytest.raises(SettingError, match=says):
            run(*WITH_OBJECTS, **(given() | asked), **where)
    with pytest.raises(SettingError, match=r"^An object of type ndarray is no override"):
        run(np.zeros(2))
    assert not (tmp_path / "r").exists()

"""The Python door: `from experiments import run`."""

import json
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from flwr.supercore.task_identity import TaskIdentity
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra

import runs
from experiments import run
from experiments.session.python_api import as_overrides
from fedmf.errors import FedmfError, RunDirectoryError, SettingError
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
    with pytest.raises(SettingError, match="no argument of its own"):
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

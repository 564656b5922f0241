"""Ray: what workers must have in common with the process that asks them; clusters on this machine give the same bits."""

import contextlib
import json
import os
import shutil
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from experiments.cli.command import guard
from experiments.deployment.loopback import free_port
from experiments.engines import engine
from experiments.engines.engine import check_same, said_of, sample_of, source_digest
from experiments.engines.ray import import_ray
from experiments.settings.experiment import build
from experiments.settings.groups import RaySettings
from fedmf import compiling
from fedmf.errors import SettingError
from ray_clusters import cluster, in_a_process, write_data
from runs import composed, metrics, model, simulate

pytest.importorskip("ray")


def test_a_run_in_a_cluster_that_is_not_there_is_a_users_mistake_and_leaves_nothing(
    tmp_path, capsys, monkeypatch
):
    """Ray by itself would try for minutes, and then end the process."""
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    address = f"127.0.0.1:{free_port()}"
    given = composed(f"run.directory={tmp_path / 'r'}", "engine=ray", f"engine.address={address}")
    assert guard(lambda: simulate(given)) == 2
    assert f"error: engine.address is {address}, but that Ray cluster could" in capsys.readouterr().err
    assert not (tmp_path / "r").exists()


def test_a_cluster_of_the_runs_own_is_never_started_without_a_token(monkeypatch):
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False))
    with pytest.raises(SettingError, match="has imported Ray already, without a token"):
        import_ray(RaySettings("ray"))
    assert "RAY_AUTH_TOKEN" not in os.environ
    import_ray(RaySettings("ray", address="auto"))


PLAY = "import sys, ray_clusters; ray_clusters.play(*sys.argv[1:])"


def played(folders, directory, runs, code=PLAY, **environment):
    """Return the exit codes of `runs`, what each printed on stderr, and what all printed on stdout."""
    done = in_a_process(code, directory, json.dumps(runs), MOUNTED=str(folders / "here"), **environment)
    assert done.returncode == 0, done.stderr
    said = {part.partition("\n")[0]: part.partition("\n")[2] for part in done.stderr.split("== ")[1:]}
    return json.loads(done.stdout.splitlines()[-1]), said, done.stdout


@pytest.fixture
def folders(tmp_path):
    """What this process and the two nodes have mounted; the second node of the cluster is not the head."""
    folder = tmp_path / "folders"
    folder.mkdir()
    for name in ("here", "head", "second"):
        write_data(folder / name)
    return folder


@pytest.mark.ray
@pytest.mark.slow
def test_two_nodes_give_the_bits_of_one_process_and_other_data_or_no_token_are_an_error(tmp_path, folders):
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "ab" * 32}
    nodes = [{"MOUNTED": str(folders / name), "MARKED_CLIENT": "", **token} for name in ("head", "second")]
    with cluster(*nodes) as address:
        own = ["engine=ray", f"engine.address={address}"]
        runs = {"local": [], "ray": own, "three": [*own, "engine.workers=3"]}
        codes, said, _ = played(folders, tmp_path, runs, **token)
        assert codes == {"local": 0, "ray": 0, "three": 2}
        np.testing.assert_array_equal(model(tmp_path / "ray"), model(tmp_path / "local"))
        assert metrics(tmp_path / "ray") == metrics(tmp_path / "local")
        assert "Traceback" not in said["ray"]
        assert "asks for 3 workers of 1 CPUs" in said["three"]
        assert not (tmp_path / "three").exists()

        shutil.rmtree(folders / "second")
        write_data(folders / "second", seed=1)
        codes, said, _ = played(folders, tmp_path, {"other": own}, **token)
        assert codes == {"other": 2}
        assert "error: the Ray worker " in said["other"]
        assert "differs from this process in the clients: " in said["other"]
        assert "Traceback" not in said["other"]
        assert not (tmp_path / "other").exists()

        codes, said, _ = played(folders, tmp_path, {"outside": own})
        assert codes == {"outside": 2}
        assert f"error: engine.address is {address}, but that Ray cluster could not be" in said["outside"]


OUTSIDER = """
import sys, grpc, ray_clusters
from experiments.engines import ray as engine
join = engine.join

def watched(ray, settings):
    join(ray, settings)
    address = ray.get_runtime_context().gcs_address
    try:
        grpc.insecure_channel(address).unary_unary("/ray.rpc.NodeInfoGcsService/GetClusterId")(b"", timeout=300)
    except grpc.RpcError as error:
        print("an outsider is", error.code().name.lower())

engine.join = watched
ray_clusters.play(*sys.argv[1:])
"""


@pytest.mark.ray
@pytest.mark.slow
def test_a_client_that_kills_its_process_takes_no_other_with_it_and_without_its_token_nobody_joins(
    tmp_path, folders
):
    """In a cluster of the run's own, a process of which runs several clients of a message."""
    once = "population.epochs=1"
    runs = {"raises": [once], "dies": [once, "engine=ray"]}
    codes, said, printed = played(folders, tmp_path, runs, OUTSIDER)
    assert codes == {"raises": 0, "dies": 0}
    assert "an outsider is unauthenticated" in printed
    np.testing.assert_array_equal(model(tmp_path / "dies"), model(tmp_path / "raises"))
    total = said["dies"].strip().splitlines()[-1]
    assert total.startswith("1 of 40 clients failed and count as zeros")
    assert "its process died" in total


NAME = "the Ray worker 17 on node b (0123abcd)"


def check(ours, *answers):
    """Compare what this process says with the answers of workers, the last of which has a name."""
    check_same([worker(lambda answer=answer: answer, NAME) for answer in answers], (), ours)


def worker(answer, name):
    """A worker that says what `answer` returns, or cannot for what it raises."""
    return SimpleNamespace(name=name, call=lambda function, *given: SimpleNamespace(result=answer))


def said(*overrides, sample=None):
    settings = composed("engine=ray", *overrides)
    experiment = build(settings)
    return said_of(settings, experiment, sample or sample_of(experiment.dataset.clients))


def test_what_differs_is_seen_and_the_first_difference_is_named_with_its_worker(monkeypatch):
    sample = sample_of(build(composed()).dataset.clients)
    ours = said(sample=sample)
    assert said("dataset.max_test_examples=100", sample=sample) == ours  # of which workers see nothing
    for override, thing in {
        "clipping.l2_norm=2": "what a client enforces",
        "compression.keep_probability=0.2": "what a client enforces",
        "model=mlp": "the model",
        "dataset=synthetic": "the shape of an example",
    }.items():
        theirs = said(override, sample=sample)
        with pytest.raises(SettingError, match=rf"17 on node b .* differs from this process in {thing}: "):
            check(ours, dict(ours), theirs)
    # Installed it may be: its rotations are numpy's, and differ in the last bits from 2^15 coordinates on.
    monkeypatch.setattr(compiling, "version", lambda: "0")
    with pytest.raises(SettingError, match=r"in numba: 0 there, .* here"):
        check(ours, said(sample=sample))


MODEL = """import torch


class Net(torch.nn.Linear):
    def __init__(self, input_shape, classes):
        super().__init__(4, classes)

    def forward(self, x):
        return super().forward(x.flatten(1))
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of a module `own_module_m1` and a package `own_package_m1`, found first."""
    (tmp_path / "own_package_m1/inner").mkdir(parents=True)
    for name in ("__init__.py", "inner/__init__.py", "inner/nets.py", "helper.py", "../own_module_m1.py"):
        (tmp_path / "own_package_m1" / name).write_text("" if "__" in name else MODEL)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith(("own_module_m1", "own_package_m1"))]:
        del sys.modules[name]


def test_every_python_file_of_a_package_counts_wherever_it_lies(folder, tmp_path_factory, monkeypatch):
    path = "own_package_m1.inner.nets:Net"
    seen, other = [source_digest(path)], tmp_path_factory.mktemp("elsewhere")
    package = shutil.copytree(folder / "own_package_m1", other / "own_package_m1")
    (package / ".#helper.py").symlink_to("somebody@somewhere.1")  # an editor's lock
    monkeypatch.syspath_prepend(str(other))
    assert source_digest(path) == seen[0]
    for file in ("helper.py", "inner/nets.py", "__init__.py"):
        (package / file).write_text("changed = True\n")
        seen.append(source_digest(path))
    for file in (*package.rglob("__init__.py"), *folder.rglob("__init__.py")):
        file.unlink()  # without one it counts whole too
    seen.append(source_digest(path))
    assert len({*seen}) == 5
    assert source_digest("no_such_module_m1.inner:f") == "of no file"
    assert source_digest("torch.nn.functional:mse_loss") == "as the software"


def test_a_worker_with_another_source_of_the_users_own_is_an_error_that_names_it(folder, monkeypatch):
    def theirs():
        (folder / "own_module_m1.py").write_text(MODEL.replace("flatten(1)", "flatten(2)"))
        return said_of(settings, experiment, engine_sample[0])

    engine_sample, real = [], engine.sample_of
    monkeypatch.setattr(
        engine, "sample_of", lambda clients: engine_sample.append(real(clients)) or engine_sample[0]
    )
    monkeypatch.setattr(engine, "ray_processes", lambda *given: contextlib.nullcontext([worker(theirs, "b")]))
    own = ("model=custom", "model.name=own_module_m1:Net", "dataset=custom", "dataset.name=poison:load")
    settings = composed("engine=ray", *own, "population.cohort_size=3")
    experiment = build(settings)
    with (
        pytest.raises(SettingError, match=r"^b differs from this process in the code of own_module_m1:Net: "),
        engine.engine_worker(settings, experiment),
    ):
        pytest.fail("it began")

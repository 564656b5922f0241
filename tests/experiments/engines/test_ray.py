"""Runs in Ray clusters on this machine, one of two nodes and one of a run's own: the same bits, and what is an error."""

import contextlib
import json
import os
import shutil
import sys
from concurrent.futures import Future
from types import SimpleNamespace

import cloudpickle
import numpy as np
import pytest

from cluster_runs import write_data
from experiments.cli.command import guard
from experiments.engines import ray
from experiments.engines.processes import CannotBegin
from experiments.engines.ray import RayProcess, import_ray
from experiments.settings.engine import RaySettings
from fedmf.errors import SettingError
from ray_clusters import cluster, free_port, in_a_process
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


def test_a_process_that_does_not_come_back_in_time_cannot_begin():
    """Or comes back, and builds what it runs clients with."""
    asked = []

    def call(*given):
        asked.append(given[1])
        return SimpleNamespace(future=Future)

    name = SimpleNamespace(options=lambda max_task_retries: SimpleNamespace(remote=lambda: "name"))
    actor = SimpleNamespace(name=name, call=SimpleNamespace(remote=call))
    for up in ([], ["name"]):
        fake = SimpleNamespace(wait=lambda names, timeout, up=up: (up, []))
        with contextlib.nullcontext() if up else pytest.raises(CannotBegin, match="not again within"):
            RayProcess(fake, actor, "app", "").begin()
    assert asked == ["app"]


def test_a_workers_code_travels_without_our_package_and_keeps_the_machines_own_places(monkeypatch, tmp_path):
    packed, by_name = cloudpickle.dumps(ray.worker_class()), cloudpickle.dumps(RayProcess)
    for module in [name for name in sys.modules if name.partition(".")[0] == "experiments"]:
        monkeypatch.setitem(sys.modules, module, None)  # as where it is not installed
    with pytest.raises(ImportError):
        cloudpickle.loads(by_name)
    worker = cloudpickle.loads(packed)
    monkeypatch.setattr(sys, "path", ["there", "both"])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    worker(["ours", "both"], "/no/such/folder", 1)
    assert sys.path == ["ours", "both", "there"]


PLAY = "import sys, cluster_runs; cluster_runs.play(*sys.argv[1:])"


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
import sys, grpc, cluster_runs
from experiments.engines import ray as engine
join = engine.join

def watched(ray, settings):
    join(ray, settings)
    address = ray.get_runtime_context().gcs_address
    try:
        grpc.insecure_channel(address).unary_unary("/ray.rpc.NodeInfoGcsService/GetClusterId")(b"", timeout=10)
    except grpc.RpcError as error:
        print("an outsider is", error.code().name.lower())

engine.join = watched
cluster_runs.play(*sys.argv[1:])
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

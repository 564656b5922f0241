"""Runs in a Ray cluster of two nodes on this machine: the same bits, and what is refused before anything is asked."""

import json
import shutil

import numpy as np
import pytest

from cluster_runs import write_data
from ray_clusters import cluster, in_a_process
from runs import metrics, model

pytestmark = [pytest.mark.ray, pytest.mark.slow]
PLAY = "import sys, cluster_runs; cluster_runs.play(*sys.argv[1:])"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """What this process and the two nodes have mounted; the second node of the cluster is not the head."""
    folder = tmp_path_factory.mktemp("folders")
    for name in ("here", "head", "second"):
        write_data(folder / name)
    return folder


@pytest.fixture(scope="module")
def address(folders):
    nodes = [{"MOUNTED": str(folders / name), "MARKED_CLIENT": ""} for name in ("head", "second")]
    with cluster(*nodes) as address:
        yield address


def played(folders, directory, runs, **environment):
    """Return the exit codes of `runs` and what each said on stderr."""
    done = in_a_process(PLAY, directory, json.dumps(runs), MOUNTED=str(folders / "here"), **environment)
    assert done.returncode == 0, done.stderr
    said = {part.partition("\n")[0]: part.partition("\n")[2] for part in done.stderr.split("== ")[1:]}
    return json.loads(done.stdout.splitlines()[-1]), said


def test_two_nodes_give_the_bits_of_one_process(tmp_path, folders, address):
    ray = ["engine=ray", f"engine.address={address}"]
    codes, said = played(folders, tmp_path, {"local": [], "ray": ray, "three": [*ray, "engine.workers=3"]})
    assert codes == {"local": 0, "ray": 0, "three": 2}
    np.testing.assert_array_equal(model(tmp_path / "ray"), model(tmp_path / "local"))
    assert metrics(tmp_path / "ray") == metrics(tmp_path / "local")
    assert "Traceback" not in said["ray"]
    assert "asks for 3 workers of 1 CPUs each, but the Ray cluster has room for 2: node " in said["three"]
    assert not (tmp_path / "three").exists()


def test_a_node_with_other_data_is_refused_by_name_before_anything_is_written(tmp_path, folders, address):
    shutil.copy(folders / "second/data.npz", folders / "kept.npz")
    write_data(folders / "second", seed=1)
    try:
        codes, said = played(folders, tmp_path, {"ray": ["engine=ray", f"engine.address={address}"]})
    finally:
        shutil.move(folders / "kept.npz", folders / "second/data.npz")
    assert codes == {"ray": 2}
    assert "error: the Ray worker " in said["ray"]
    assert "differs from this process in the clients: digest " in said["ray"]
    assert "Traceback" not in said["ray"]
    assert not (tmp_path / "ray").exists()


def test_a_client_that_kills_its_process_takes_no_other_with_it(tmp_path, folders):
    """In a cluster of the run's own, one process of which plays all clients of a message."""
    once = "population.epochs=1"
    codes, said = played(folders, tmp_path, {"raises": [once], "dies": [once, "engine=ray"]})
    assert codes == {"raises": 0, "dies": 0}
    np.testing.assert_array_equal(model(tmp_path / "dies"), model(tmp_path / "raises"))
    total = said["dies"].strip().splitlines()[-1]
    assert total.startswith("1 of 40 clients failed and count as zeros; the first in round")
    assert "its process died" in total


JOIN = """
import sys, grpc
from experiments.cli.command import guard
from experiments.engines.ray import Reservation, joined

def outsider(address):
    try:
        grpc.insecure_channel(address).unary_unary("/ray.rpc.NodeInfoGcsService/GetClusterId")(b"", timeout=10)
    except grpc.RpcError as error:
        return error.code().name.lower()

def join(address):
    with joined(Reservation(1, address)) as ray:
        at = ray.get_runtime_context().gcs_address
        print("joined", at, outsider(at))

print([guard(lambda: join(address)) for address in (sys.argv[1], None, sys.argv[1])])
"""


def test_without_its_token_nobody_joins_a_cluster_of_a_runs_own_or_one_that_asks_for_one():
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "ab" * 32}
    with cluster(token) as address:
        done = in_a_process(JOIN, address)
        lines = done.stdout.splitlines()
        assert lines[-1] == "[2, 0, 2]"
        assert lines[0].startswith("joined ")
        assert lines[0].endswith(" unauthenticated")
        assert (
            done.stderr.count(
                f"error: engine.address is {address}, but that Ray cluster asks for another token"
            )
            == 2
        )
        assert in_a_process(JOIN, address, **token).stdout.splitlines()[-1] == "[0, 0, 0]"

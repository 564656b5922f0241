"""A deployment of a model that trains in part: every node builds the backbone itself, and it must be the server's."""

import numpy as np
import pytest
import torch

from experiments.deployment.apps import run_settings
from experiments.deployment.server import deploy
from nodes import DATA, network
from own_training import Probe
from runs import metrics

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("in_this_process")]

MODEL = "model=custom model.name=own_training:Probe model.trainable=[head.*]"
RUN = f"{DATA} {MODEL} population.cohort_size=4 population.epochs=1 population.min_available=12 engine.node_timeout=0.05"


def backbone(path, seed):
    torch.manual_seed(seed)
    state = Probe((5,), 3).state_dict()
    np.savez(path, **{name: value.numpy() for name, value in state.items() if "head" not in name})
    return path


def deployed(directory, start, held):
    """Deploy without noise from `start`; the one node has its own copy of the file at `held`, or none."""
    run = (
        f"{RUN} privacy.epsilon=null privacy.noise_multiplier=0 model.start={start} run.directory={directory}"
    )
    own = f" model.start={held}" if held else ""
    deploy(run_settings(run), network(run, {"a": f"clients=12 {DATA}{own}"}))
    return [dict(np.load(directory / name)) for name in ("model_initial.npz", "model.npz")]


def test_a_node_trains_on_its_own_copy_of_the_servers_backbone(tmp_path, caplog):
    start = backbone(tmp_path / "server.npz", 0)
    before, after = deployed(tmp_path / "r", start, backbone(tmp_path / "node.npz", 0))
    assert not np.array_equal(before["head.weight"], after["head.weight"])
    assert np.array_equal(before["backbone.1.weight"], after["backbone.1.weight"])
    assert "zero update" not in caplog.text


def test_a_node_with_another_backbone_sends_zeros_and_its_log_says_why(tmp_path, caplog):
    start, other = backbone(tmp_path / "server.npz", 0), backbone(tmp_path / "node.npz", 1)
    before, after = deployed(tmp_path / "r", start, other)
    assert [row["replies"] for row in metrics(tmp_path / "r")] == [4] * 3
    assert all(np.array_equal(before[name], after[name]) for name in before)
    assert "differs from the server's: the file that model.start names" in caplog.text


def test_a_server_names_no_file_of_a_node(tmp_path, caplog):
    before, after = deployed(tmp_path / "r", backbone(tmp_path / "server.npz", 0), None)
    assert all(np.array_equal(before[name], after[name]) for name in before)
    assert "add model.start=FILE to its --node-config" in caplog.text

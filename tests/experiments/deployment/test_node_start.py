"""What is looked at before a node starts: nothing that one client's data decide keeps it from starting."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

import small_files
from experiments.cli.command import guard
from experiments.deployment.node import NodeSettings, readiness_claim
from experiments.node_check import node_check
from experiments.settings.compose import compose
from fedmf.updates import wire

PUBLIC = "public={shape:[4],classes:3}"
ROOT = Path(__file__).resolve().parents[3]
UNIT = (ROOT / "docs/systemd/fedmf-supernode.service").read_text()


def checked(*words):
    """Return the exit code of the check with `words`."""
    return guard(lambda: node_check(compose("node_check", words, NodeSettings)))


def noted(folder, *data):
    """Return the exit code of the unit's check, and what the node then states of itself."""
    assert "node_check ready=/run/fedmf-node/ready $FEDMF_NODE" in UNIT
    code, claim = checked(f"ready={folder / 'ready'}", *data), readiness_claim({"ready": f"{folder}/ready"})
    return code, claim[wire.READY]


def of_one_client(name, split, value):
    """Return the arrays of the small file with one value of one row of the second client in its place."""
    held = small_files.arrays()
    row = int(np.flatnonzero((held["user"] == np.unique(held["user"])[1]) & (held["split"] == split))[0])
    array = held[name].astype(float if name == "x" else int)
    array[row] = value
    return {name: array}


@pytest.mark.parametrize(
    ("spoilt", "code"),
    [(("x", 0, np.nan), 2), (("y", 0, 77), 2), (("x", 1, np.nan), 0)],
    ids=["value", "label", "test row"],
)
def test_one_clients_bad_value_neither_keeps_a_node_away_nor_makes_it_unready(tmp_path, capsys, spoilt, code):
    path = small_files.npz(tmp_path / "data.npz", **of_one_client(*spoilt))
    data = ("clients=3", "dataset=by_user_npz", f"dataset.path={path}", PUBLIC)
    assert noted(tmp_path, *data) == (0, True)
    assert capsys.readouterr().out == "This node is ready.\n"
    assert checked(*data) == code  # by hand the operator is told of every client; a node needs no test row


def test_the_check_says_that_a_node_is_not_ready_and_lets_it_start(tmp_path, capsys):
    (tmp_path / "ready").touch()  # as of an earlier start
    data = ("clients=3", "dataset=by_user_npz", f"dataset.path={tmp_path / 'no.npz'}", PUBLIC)
    assert noted(tmp_path, *data) == (0, False)
    said = capsys.readouterr().out
    assert re.search(r"not ready: its data cannot be loaded: \S+no.npz does not exist", said)
    assert said.count(". It starts nevertheless, and says so.\n") == 1
    assert noted(tmp_path, *data, "output=json") == (0, False)
    assert json.loads(capsys.readouterr().out)["ready"] is False
    assert readiness_claim({}) == {}  # not tested: it states nothing

"""What is looked at before a node starts: nothing that one client's data decide keeps it from starting."""

import json
import re
import shlex
import subprocess
from pathlib import Path

import numpy as np
import pytest
import yaml

import small_files
from experiments.cli.command import guard
from experiments.deployment.node import UNGIVEN, Node, NodeSettings, read_readiness, readiness
from experiments.node_check import node_check
from experiments.settings.compose import compose

PUBLIC = "public={shape:[4],classes:3}"
ROOT = Path(__file__).resolve().parents[3]
UNIT = (ROOT / "docs/systemd/fedmf-supernode.service").read_text()
CONTAINER = yaml.safe_load((ROOT / "docs/containers/node.yaml").read_text())["services"]["node"]["command"][2]


def check_of_the_unit():
    """Return the arguments of the unit's check besides those of the data."""
    (line,) = re.findall(r"(?m)^ExecStartPre=-/opt/fedmf/.venv/bin/fedmf node_check (.*)", UNIT)
    *words, data = line.split()
    assert data == "$FEDMF_NODE"
    return words


def noted(folder, *data):
    """Return the exit code of the unit's check, and what it notes for the node."""
    (ready,) = check_of_the_unit()
    assert ready == "ready=/run/fedmf-node/ready"
    code = checked(f"ready={folder / 'ready'}", *data)
    return code, read_readiness(str(folder / "ready"))


def checked(*words):
    """Return the exit code of the check with `words`."""
    return guard(lambda: node_check(compose("node_check", words, NodeSettings)))


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
    data = ("clients=3", "dataset=by_user_npz", f"dataset.path={tmp_path / 'no.npz'}", PUBLIC)
    assert noted(tmp_path, *data) == (0, False)
    said = capsys.readouterr().out
    assert "not ready: its data cannot be loaded: The data file" in said
    assert said.count(". It starts all the same, and says so.\n") == 1
    assert not readiness(Node(compose("node_check", data, NodeSettings))).endswith(".")
    assert noted(tmp_path, *data, "output=json") == (0, False)
    assert json.loads(capsys.readouterr().out)["ready"] is False


def test_a_mistake_in_the_settings_is_no_reading_of_data(tmp_path, capsys):
    """Without data to look at, the check says what the node is going to refuse."""
    assert noted(tmp_path, "clients=3", "dataset=by_user_npz") == (2, False)
    assert "error: dataset.path is missing; dataset by_user_npz needs it.\n" in capsys.readouterr().err
    assert noted(tmp_path, "clients=3", "dataset=by_user_npz", "dataset.path=no.npz") == (2, False)
    assert "error: public is null; a node reads no test set" in capsys.readouterr().err


def test_what_a_node_says_of_itself_is_what_was_noted_when_it_started(tmp_path, caplog):
    assert read_readiness(None) is None  # nobody looked: it says nothing
    assert read_readiness(str(tmp_path / "ready")) is False  # it should have been there
    for text, said in (("true", True), ("false", False), ("", False), ('"true"', False)):
        (tmp_path / "ready").write_text(text)
        assert read_readiness(str(tmp_path / "ready")) is said
    assert "which cannot be read" in caplog.text


@pytest.mark.parametrize("code", [0, 2, 137])
def test_a_container_starts_its_node_whatever_the_check_ends_with(tmp_path, code):
    for name in ("fedmf", "python"):
        program = f'#!/bin/sh\necho "$1 $2"\n[ "$1" = node_check ] && exit {code}\nexit 0\n'
        (tmp_path / name).write_text(program)
        (tmp_path / name).chmod(0o755)
    program = CONTAINER.replace("$$", "$")
    environment = {"PATH": str(tmp_path), "FEDMF_NODE": ""}
    said = subprocess.check_output(["/bin/sh", "-c", program], env=environment, text=True)
    assert said == "node_check ready=/run/fedmf-node/ready\n-m experiments.deployment.warm\n"
    assert shlex.split(program.partition(";")[0])[2:-1] == check_of_the_unit()


def test_texts_without_a_model_are_checked_and_no_parameters_are_counted(tmp_path, capsys):
    path = small_files.jsonl(tmp_path / "texts.jsonl")
    data = (
        "clients=3",
        "dataset=by_user_text",
        f"dataset.path={path}",
        "public={shape:[20],classes:13,task:next_token}",
    )
    assert checked(*data) == 2
    assert "dataset.vocabulary is null; a node's words must be" in capsys.readouterr().err
    data = (*data, f"dataset.vocabulary={small_files.vocabulary(tmp_path / 'words')}")
    assert compose("node_check", data, NodeSettings).model.name == UNGIVEN
    assert checked(*data, "output=json") == 0
    assert "parameters" not in json.loads(capsys.readouterr().out)
    assert checked(*data, "output=json", "model=lstm") == 0
    assert json.loads(capsys.readouterr().out)["parameters"] > 0

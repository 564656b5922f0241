"""The warm start: Flower's programs are forks with imports done, and end with who asked; what is looked at before a node starts."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Message, MessageType, RecordDict

import small_files
from experiments.cli.command import guard
from experiments.deployment import apps, warm
from experiments.deployment.node import NodeSettings, readiness_claim
from experiments.engines.grid import call_app, set_identity
from experiments.node_check import node_check
from experiments.settings.compose import compose
from experiments.settings.reference import CONF
from fedmf.errors import SettingError
from fedmf.updates import wire
from nodes import Nodes, context
from server.exchange import node_report

WARM = [sys.executable, "-m", "experiments.deployment.warm"]
TASK = """
echo "code of help: $(flwr-clientapp --help > help.txt; echo $?)"
flwr-serverapp --nonsense 2> usage.txt
echo "code of a mistake: $?"
flwr-clientapp --token x --insecure --runtime-api-address 127.0.0.1:1 &
asked=$!
until pgrep -P $PPID -f deployment[.]warm > fork.txt; do sleep 0.1; done
kill -0 $asked && echo "it asks for its task"
kill -9 $asked
while kill -0 $(cat fork.txt) 2> gone.txt; do sleep 0.1; done
echo "its fork has ended too"
flwr-clientapp --token x --insecure --runtime-api-address 127.0.0.1:1 &
until pgrep -P $PPID -f deployment[.]warm > left.txt; do sleep 0.1; done
echo "$0 has ended"
exit 5
"""


@pytest.mark.long
@pytest.mark.slow
def test_a_task_is_flowers_own_program_and_ends_with_who_asked_for_it(tmp_path):
    done = subprocess.run(
        [*WARM, "sh", "-c", TASK, "program"], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.stdout.splitlines() == [
        "code of help: 0",
        "code of a mistake: 2",
        "it asks for its task",
        "its fork has ended too",
        "program has ended",
    ], done.stderr
    assert done.returncode == 5
    assert "usage: flwr-clientapp" in (tmp_path / "help.txt").read_text()
    assert "one of the arguments --token" in (tmp_path / "usage.txt").read_text()
    assert not Path("/proc", (tmp_path / "left.txt").read_text().strip()).exists()


@pytest.mark.long
@pytest.mark.parametrize("how", ["its input ends", pytest.param("it is asked to", marks=pytest.mark.slow)])
def test_the_program_ends_when_its_starter_is_gone_or_asks(how):
    command = [*WARM, warm.UNTIL_EOF, "sh", "-c", "echo $$; exec sleep 1000"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            program = int(process.stdout.readline())
            if how == "its input ends":
                process.stdin.close()
            else:
                process.terminate()
            assert process.wait(300) == 128 + signal.SIGTERM
            assert not Path(f"/proc/{program}").exists()
        finally:
            process.kill()


@pytest.fixture(params=["apps/fedmf.fedmf.0.1.0.abc", "evil.abc"])
def bundle(tmp_path, monkeypatch, request):
    """The folder of a bundle of this code, first on the path: where Flower unpacks it, or where its version leads (0.1.0/../../evil)."""
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    folder = tmp_path / request.param
    for package in ("fedmf", "server", "client", "experiments", "conf"):
        shutil.copytree(CONF.parent / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(CONF.parent / "pyproject.toml", folder)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(apps, "_bundles", [])
    return folder


def test_a_node_does_no_work_for_other_code_than_it_runs(bundle, caplog, monkeypatch):
    def asked(kind):
        set_identity()
        message = Message(RecordDict(), 1, kind)
        message.metadata.__dict__["_message_id"] = "a"
        return call_app(apps.client_app, message, context("", overrides="clients=3 dataset=synthetic"))

    monkeypatch.setattr(apps, "prepare", lambda: None)
    assert not node_report(asked(MessageType.QUERY)).has_other_code
    (bundle / "fedmf" / "errors.py").write_text("# changed\n")
    for kind in (MessageType.QUERY, MessageType.TRAIN):
        assert node_report(asked(kind)).has_other_code
    assert caplog.text.count("This node does no work for the run.") == 2
    with pytest.raises(SettingError, match=r"is not the code installed here .* The run was not started"):
        apps.main(Nodes({}), context())
    monkeypatch.setattr(apps, "own_code", lambda: {"code": "of this morning"})
    assert "has changed since it was imported; start the unit again" in apps.other_code()


def test_nothing_of_a_bundle_is_imported(bundle, monkeypatch):
    """`google` has no __init__.py: its modules are looked for in folders of this name in all of the path."""
    assert sys.modules["google"].__file__ is None
    (bundle / "google").mkdir()
    for name in ("evil", "worse", "google/evil", "google/worse"):
        (bundle / f"{name}.py").write_text("raise SystemExit('it runs')")
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    for name in ("evil", "google.evil"):
        with pytest.raises(SystemExit, match="it runs"):
            import_module(name)
    sys.meta_path.insert(0, warm.NoBundle())
    for name in ("google.evil", "google.worse", "evil", "worse"):
        with pytest.raises(ModuleNotFoundError):
            import_module(name)
    assert str(bundle) not in sys.path  # nor in that of processes which this one starts
    assert apps.bundles() == [str(bundle)]
    assert import_module("wave").__name__ == "wave"  # what is installed is found as before
    library = bundle.parent / "library"
    library.mkdir()
    (library / "of_a_custom_model.py").touch()
    sys.path.append(str(library))  # as installed code may do
    monkeypatch.delitem(sys.modules, "of_a_custom_model", raising=False)
    assert import_module("of_a_custom_model").__file__ == str(library / "of_a_custom_model.py")


def test_what_asks_for_tasks_is_for_this_account_alone():
    others = {"flwr-agentapp", "flwr-connector", "flwr-model", "flwr-simulation"}
    with warm.tasks_socket() as (_, folder):
        assert folder.stat().st_mode & 0o777 == 0o700
        assert {path.name for path in folder.iterdir()} == {*warm.TASKS, *others, "socket"}
        assert all(os.access(folder / task, os.X_OK) for task in warm.TASKS)
        refused = subprocess.run([folder / "flwr-agentapp"], capture_output=True, text=True, check=False)
        assert (refused.returncode, "is not run here" in refused.stderr) == (1, True)
    assert not folder.exists()


@pytest.mark.parametrize(
    "setting",
    [
        "seed='${oc.env:A_TOKEN}'",
        "model='${oc.env:A_TOKEN}'",
        "dataset.path='${oc.env:A_TOKEN}'",
        r"'run.directory=$\{oc.env:A_TOKEN\}'",
        "hydra.searchpath=[/a/bundle] +experiment=its_own",  # a file that could hold such a text
        "+hydra.searchpath=[/a/bundle]",
        "hydra/launcher=basic",
    ],
)
def test_who_submits_a_run_reads_no_variable_of_the_server_or_of_a_node(setting, monkeypatch):
    monkeypatch.setenv("A_TOKEN", "unsaid")
    with pytest.raises(SettingError, match="reads no variable of the machines") as mistake:
        apps.run_settings(setting)
    assert "unsaid" not in str(mistake.value)


# the check before a node starts


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

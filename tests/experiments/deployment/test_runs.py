"""Deployed runs inside the test process: real configuration, real training, no transport."""

import io
import json
import logging
import os
import shlex
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from flwr.app import Message, MessageType, RecordDict

from experiments.deployment import apps
from experiments.deployment.apps import run_settings
from experiments.deployment.loopback import make_node_key
from experiments.deployment.node import Node, examine, node_settings
from experiments.deployment.server import deploy
from experiments.engines.grid import set_identity
from experiments.run_files.directory import ATTENDANCE, read_attendance
from fedmf.errors import DataError, FedmfError, PrivacyBudgetExhausted, RunDirectoryError, SettingError
from fedmf.updates import wire
from nodes import DATA, Nodes, context, key_of, network, playing, write_list
from runs import Crash, composed, metrics, model, simulate, summary
from server.cohort import ROSTER, Roster
from server.copies import read_secrets
from server.exchange import node_report
from users_own import Probe

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("in_this_process")]

PUBLIC = "public={shape:[5],classes:3}"
SIMULATED = (
    f"{DATA} population.cohort_size=4 population.epochs=2 privacy.epsilon=null privacy.noise_multiplier=0.5"
)
ENOUGH = "population.min_available=12 population.max_clients_per_node=100 engine.node_timeout=0.05"
SMALL = f"{SIMULATED} {ENOUGH}"


def dying_in(number, grid, honest=None):
    """Let the server die when it asks node a for a round; None: never again."""
    honest = honest or grid.train["a"]

    def answer(message):
        if message.metadata.group_id == number:
            raise Crash
        return honest(message)

    grid.train["a"] = answer
    return honest


def deployed(directory, more="", dies_in=None, base=SMALL, nodes=None, look=lambda message: None):
    """Deploy with two nodes, or with `nodes`; return the overrides and the grid. The server dies in the round `dies_in`."""
    run = f"run.directory={directory} {base} {more}"
    grid = network(run, **({"nodes": nodes} if nodes else {}), look=look)
    honest = dying_in(dies_in, grid)
    if dies_in is None:
        deploy(run_settings(run), grid)
    else:
        with pytest.raises(Crash):
            deploy(run_settings(run), grid)
        dying_in(None, grid, honest)
    return run, grid


def simulated(directory, *more):
    simulate(composed(f"run.directory={directory}", "output=json", *shlex.split(SIMULATED), *more))


def test_a_deployed_run_leaves_what_a_simulation_leaves(tmp_path, capsys):
    run, _ = deployed(tmp_path / "r", "population.unready_nodes=without")
    simulated(tmp_path / "s")
    names = [{path.name for path in (tmp_path / which).iterdir()} for which in "rs"]
    assert names[0] == names[1] | {ATTENDANCE}
    both = {key_of("a"): 5, key_of("b"): 7}
    assert [(row["epoch"], row["nodes"]) for row in read_attendance(tmp_path / "r")] == [(1, both), (2, both)]
    page = (tmp_path / "r/report.html").read_text()
    assert all(name in page for name in ("Which nodes took part", *both))
    assert [set(row) for row in metrics(tmp_path / "r")] == [set(row) for row in metrics(tmp_path / "s")]
    assert summary(tmp_path / "r")["epsilon"] == summary(tmp_path / "s")["epsilon"]
    assert summary(tmp_path / "r")["clients"] == 12
    statement = json.loads((tmp_path / "r/privacy.json").read_text())
    assert "on the word of the operator of the node" in statement["paragraph"]
    assert "unready_nodes=without" in str(statement["not_covered"])
    # A used directory is an error, and a finished run is left alone.
    with pytest.raises(RunDirectoryError, match="already holds a run"):
        deploy(run_settings(run), Nodes({}))
    deploy(run_settings(run + " run.resume=true"), Nodes({}))
    assert "finished" in capsys.readouterr().err


def test_without_noise_the_deployed_model_is_that_of_the_same_cohorts_simulated(tmp_path):
    """The same client code and the same strategy: only names, and with them masks and data order, differ."""
    exact = ("privacy.noise_multiplier=0", "compression.keep_probability=1", "client.batch_size=100",
             "population.cohort_size=12", "clipping.l2_norm=null", "compression.rotation=identity")  # fmt: skip
    deployed(tmp_path / "r", " ".join(exact))
    simulated(tmp_path / "s", *exact)
    np.testing.assert_allclose(model(tmp_path / "r"), model(tmp_path / "s"), rtol=1e-4, atol=1e-6)
    assert np.abs(model(tmp_path / "r")).max() > 0.01


def test_a_run_is_given_the_list_of_its_nodes_by_a_file(tmp_path):
    """Where it cannot be read, or lists no node, nothing is written; a node that is not in it is not asked."""
    listed, good = tmp_path / "nodes.yaml", tmp_path / "good.yaml"
    write_list(good, hospital_c=(make_node_key(tmp_path, "c").read_text(), 5))  # none of those that are there
    listed.write_text("nodes: [{name: hospital-c, public_key: 3}]")
    for file, says in (
        ("nodes.yaml", "population.nodes is nodes.yaml; a deployment needs an absolute path"),
        (write_list(tmp_path / "empty.yaml"), r"population.nodes is .*, which lists no node"),
        (listed, r"lists .*public_key.*; a node has name, public_key, most_clients"),
        (good, "0 clients behind 0 connected nodes are available"),
    ):
        run = f"run.directory={tmp_path / 'r'} {SMALL} population.nodes={file} run.resume=true"
        grid = network(run)
        with pytest.raises(FedmfError, match=says):
            deploy(run_settings(run), grid)
        assert not grid.asked


def test_a_killed_server_goes_on_with_the_same_clients_and_not_as_a_simulation(tmp_path):
    run, grid = deployed(tmp_path / "r", dies_in="2")
    with pytest.raises(RunDirectoryError, match="engine=deployment is false"):
        simulated(tmp_path / "r", "run.resume=true")
    with pytest.raises(SettingError, match="which `flwr run` starts"):
        simulate(composed(f"run.directory={tmp_path / 'x'}", "engine=deployment"))
    roster = Roster.read(tmp_path / "r/checkpoint" / ROSTER)
    grid.join("c", *2 * (playing(run, f"clients=12 {DATA}"),))
    asked = len(grid.asked)
    deploy(run_settings(run + " run.resume=true"), grid)
    assert [row["round"] for row in metrics(tmp_path / "r")] == list(range(1, 7))
    first_epoch = [message for message in grid.asked[asked:] if message.metadata.group_id in ("2", "3")]
    assert {message.metadata.dst_node_id for message in first_epoch} <= {grid.ids["a"], grid.ids["b"]}
    assert key_of("c") not in roster.nodes
    assert key_of("c") in Roster.read(tmp_path / "r/checkpoint" / ROSTER).nodes


def test_a_resume_whose_overrides_are_not_whole_is_refused_with_those_that_are_missing(tmp_path):
    """A node would train the default model, clip and mask by the default settings, unnoticed."""
    deployed(tmp_path / "r", "model=mlp model.hidden=4", dies_in="2")
    before = metrics(tmp_path / "r")
    alone = "population.min_available=12 run.resume=true"
    refusal = r"add to overrides: .*dataset=synthetic.*model=mlp"
    with pytest.raises(RunDirectoryError, match=refusal) as refused:
        deployed(tmp_path / "r", base=alone)
    missing = str(refused.value).partition("add to overrides: ")[2]
    assert metrics(tmp_path / "r") == before
    deployed(tmp_path / "r", base=f"{alone} engine.node_timeout=0.05 {missing}")
    assert summary(tmp_path / "r")["rounds"] == 6


def test_a_deployed_run_is_extended_and_the_extension_resumed(tmp_path):
    deployed(tmp_path / "r")
    held = summary(tmp_path / "r")
    with pytest.raises(PrivacyBudgetExhausted, match=r"privacy\.max_epsilon="):
        deployed(tmp_path / "r", "run.extend=1")
    assert summary(tmp_path / "r") == held
    more = "privacy.max_epsilon=1000"
    deployed(tmp_path / "r", f"run.extend=1 {more}", dies_in="8")
    with pytest.raises(RunDirectoryError, match=r"add to overrides: privacy\.max_epsilon=1000"):
        deployed(tmp_path / "r", "run.resume=true")
    deployed(tmp_path / "r", f"run.resume=true {more}")
    longer = summary(tmp_path / "r")
    assert (longer["epochs"], longer["rounds"]) == (3, 9)
    assert longer["epsilon"] > held["epsilon"]
    assert longer["noise_multiplier"] == held["noise_multiplier"]


def test_a_state_that_was_restored_in_place_is_stopped_by_what_nodes_remember(tmp_path, monkeypatch, caplog):
    """Run and count come back together, as by rsync: nothing on the server's machine tells."""
    home, state = tmp_path / "home", tmp_path / "home/.local/state/fedmf"
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("FEDMF_STATE")
    run, grid = deployed(home / "r", "population.rounds_per_epoch=3", dies_in="2")
    assert f"released rounds are counted in {state}" in caplog.text
    count = state / read_secrets(home / "r/checkpoint").origin.run  # nodes keep counts there too
    assert count.read_text() == "1\n"
    backup = {path: path.read_bytes() for path in [*(home / "r").rglob("*"), count] if path.is_file()}
    deploy(run_settings(run + " run.resume=true"), grid)
    assert len(metrics(home / "r")) == 6
    for path in (home / "r").rglob("*"):
        if path.is_file() and path not in backup:
            path.unlink()
    for path, data in backup.items():
        path.write_bytes(data)
    stopped = r"has answered round 3 of this epoch, .* asks for its round 2"
    with pytest.raises(RunDirectoryError, match=stopped):
        deploy(run_settings(run + " run.resume=true"), grid)
    assert len(metrics(home / "r")) == 1
    deploy(run_settings(run + " run.resume=true run.accept_copy=true"), grid)
    assert len(metrics(home / "r")) == 6


def trained(directory, more, node):
    """Run an epoch without noise of one node; return the arrays of the first and of the last model."""
    deployed(directory, f"{more} privacy.noise_multiplier=0 population.epochs=1", nodes={"a": node})
    assert [row["replies"] for row in metrics(directory)] == [4] * 3
    return [dict(np.load(directory / name)) for name in ("model_initial.npz", "model.npz")]


def test_a_node_whose_data_cannot_be_loaded_sends_zeros_for_the_clients_it_declared(tmp_path, caplog):
    node = f"clients=12 dataset=by_user_npz dataset.path={tmp_path}/none.npz {PUBLIC}"
    before, after = trained(tmp_path / "r", "", node)
    assert all(np.array_equal(before[name], after[name]) for name in before)
    assert "none.npz does not exist" in caplog.text
    assert "takes part with a zero update" in caplog.text


@pytest.mark.parametrize("is_own", [True, False], ids=["the server's", "another"])
def test_a_node_trains_on_the_servers_backbone_or_sends_zeros_and_says_why(tmp_path, caplog, is_own):
    for name, seed in (("server", 0), ("node", 0 if is_own else 1)):
        torch.manual_seed(seed)
        state = Probe((5,), 3).state_dict()
        np.savez(tmp_path / f"{name}.npz", **{k: v.numpy() for k, v in state.items() if "head" not in k})
    probe = (
        f"model=custom model.name=users_own:Probe model.trainable=[head.*] model.start={tmp_path}/server.npz"
    )
    before, after = trained(tmp_path / "r", probe, f"clients=12 {DATA} model.start={tmp_path}/node.npz")
    assert np.array_equal(before["backbone.1.weight"], after["backbone.1.weight"])
    assert np.array_equal(before["head.weight"], after["head.weight"]) is not is_own
    assert ("zero update" not in caplog.text) is is_own
    assert ("differs from the server's: the file that model.start names" not in caplog.text) is is_own


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("run.reproducible=true", "run.reproducible is true"),
        ("run.directory=null", "an absolute path"),
        ("population.min_available=3", "at most 3 fits"),
        ("population.max_clients_per_node=0", "population.max_clients_per_node is 0"),
        ("faults.drop_out=0.5", "faults"),
    ],
)
def test_what_a_deployment_cannot_do_is_refused_before_anything_is_written(tmp_path, more, says):
    with pytest.raises(FedmfError, match=says):
        deployed(tmp_path / "r", more)
    assert not (tmp_path / "r").exists()


def test_a_mistake_reaches_the_log_of_the_run_as_one_sentence(monkeypatch):
    log, written = logging.getLogger("flwr"), io.StringIO()
    monkeypatch.setattr(log, "filters", log.filters[:])
    monkeypatch.setattr(log, "handlers", [logging.StreamHandler(written)])
    with pytest.raises(SettingError) as mistake:
        apps.server_app(Nodes({}), context("population.bogus=1"))
    for error in (mistake.value, ZeroDivisionError("ours")):  # as Flower logs what ends the app
        log.error("%s raised an exception", "ServerApp", exc_info=error)
    said, *surprise = written.getvalue().splitlines()
    assert said.startswith("population.bogus is no setting of simulate")
    assert surprise == ["ServerApp raised an exception", "ZeroDivisionError: ours"]


def test_a_node_has_its_own_clients_only_and_declares_how_many_without_looking_at_its_data():
    node = Node(node_settings(f"clients=7 first=5 {DATA}"))
    found = examine(node)
    assert (found["clients"], found["clients_in_the_data_set"]) == (7, 12)
    np.testing.assert_array_equal(node.examples_of("key:2").x, node.dataset.clients[7].x)
    for number in (7, -1):
        with pytest.raises(DataError, match="declares 7 clients"):
            node.examples_of(f"key:{number}")
    with pytest.raises(DataError, match="holds 7"):
        examine(Node(node_settings(f"clients=8 first=5 {DATA}")))
    set_identity()
    message = Message(RecordDict(), 1, MessageType.QUERY)
    message.metadata.__dict__["_message_id"] = "a"
    reply = playing("", "clients=479 dataset=by_user_npz dataset.path=/nowhere.npz")(message)
    assert node_report(reply).clients == 479
    for nothing in ("", "clients=0"):
        assert playing("", nothing)(message).has_error()


def people(path, order):
    """Write 12 people's data, numbered in `order`."""
    rng = np.random.default_rng(0)
    x, y = rng.random((12, 3, 5))[order], rng.integers(0, 3, (12, 3))[order]
    y[:, 0] = 2
    user, split = np.repeat(np.arange(12), 3), np.tile([1, 0, 0], 12)
    np.savez(path, x=x.reshape(36, 5), y=y.ravel(), user=user, split=split)


def test_a_node_whose_file_is_renumbered_in_mid_epoch_takes_no_part_until_the_next(tmp_path, caplog):
    """Rounds 1 to 3 are the first epoch: the file is another one from round 2 on."""
    people(tmp_path / "people.npz", np.arange(12))
    data, models = f"dataset=by_user_npz dataset.path={tmp_path}/people.npz", {}

    def look(message):
        if message.metadata.message_type == MessageType.TRAIN:
            number = int(message.metadata.group_id)
            models[number] = message.content.array_records[wire.MODEL][wire.VECTOR].data
            if number == 2:
                people(tmp_path / "people.npz", np.arange(12)[::-1])

    base = f"{SMALL.replace(DATA, data)} privacy.noise_multiplier=0 optimizer.momentum=0"
    deployed(tmp_path / "r", base=base, nodes={"a": f"clients=12 {data} {PUBLIC}"}, look=look)
    moved = [models[number] != models[number + 1] for number in range(1, 6)]
    assert moved == [True, False, False, True, True]
    assert caplog.text.count(f"node {key_of('a')} no longer holds the clients that it declared") == 1
    assert [row["replies"] for row in metrics(tmp_path / "r")] == [4] * 6


def test_what_a_deployed_app_writes_is_for_its_owner_alone(monkeypatch):
    monkeypatch.undo()  # `prepare` is that of the product
    monkeypatch.setattr(apps, "logging", SimpleNamespace(getLogger=lambda name: MagicMock(), INFO=0))
    before = os.umask(0o022)
    apps.prepare()
    assert os.umask(before) == 0o077

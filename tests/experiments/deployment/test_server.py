"""The deployed apps inside the test process: real configuration, real training, no transport."""

import io
import json
import logging
import os
import shlex
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest
from flwr.app import Message, MessageType, RecordDict

from experiments.deployment import apps
from experiments.deployment.apps import run_settings
from experiments.deployment.loopback import make_node_key
from experiments.deployment.node import Node, examine, node_settings
from experiments.deployment.server import deploy
from experiments.engines.grid import set_identity
from experiments.run_files.directory import ATTENDANCE, read_attendance
from fedmf.errors import DataError, FedmfError, RunDirectoryError, SettingError
from fedmf.updates import wire
from nodes import DATA, Nodes, context, key_of, network, playing, write_list
from runs import Crash, composed, metrics, model, simulate, summary
from server.cohort import Roster
from server.copies import read_secrets
from server.exchange import node_report
from server.membership import ROSTER

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("in_this_process")]

PUBLIC = "public={shape:[5],classes:3}"
SIMULATED = (
    f"{DATA} population.cohort_size=4 population.epochs=2 privacy.epsilon=null privacy.noise_multiplier=0.5"
)
SMALL = (
    f"{SIMULATED} population.min_available=12 population.max_clients_per_node=100 engine.node_timeout=0.05"
)


def configured(directory, *more):
    run = " ".join([f"run.directory={directory}", SMALL, *more])
    return run, run_settings(run)


def unmoved(directory):
    """Return whether a run ended with the model that it began with."""
    initial, final = (np.load(directory / name) for name in ("model_initial.npz", "model.npz"))
    return all((initial[name] == final[name]).all() for name in initial.files)


def test_a_deployed_run_leaves_what_a_simulation_leaves(tmp_path, capsys):
    run, config = configured(tmp_path / "r")
    deploy(config, network(run))
    simulate(composed(f"run.directory={tmp_path / 's'}", "output=json", *shlex.split(SIMULATED)))
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
    # A used directory is an error, and a finished run is left alone.
    with pytest.raises(RunDirectoryError, match="already holds a run"):
        deploy(config, Nodes({}))
    deploy(run_settings(run + " run.resume=true"), Nodes({}))
    assert "finished" in capsys.readouterr().err


def test_without_noise_the_deployed_model_is_that_of_the_same_cohorts_simulated(tmp_path):
    """The same client code and the same strategy: only names, and with them masks and data order, differ."""
    exact = ("privacy.noise_multiplier=0", "compression.keep_probability=1", "client.batch_size=100",
             "population.cohort_size=12", "clipping.l2_norm=null", "compression.rotation=identity")  # fmt: skip
    run, config = configured(tmp_path / "r", *exact)
    deploy(config, network(run))
    simulate(composed(f"run.directory={tmp_path / 's'}", "output=json", *shlex.split(SIMULATED), *exact))
    np.testing.assert_allclose(model(tmp_path / "r"), model(tmp_path / "s"), rtol=1e-4, atol=1e-6)
    assert np.abs(model(tmp_path / "r")).max() > 0.01


def test_a_run_is_given_the_list_of_its_nodes_by_a_file(tmp_path):
    """Where it cannot be read, or names nobody, nothing is written; who is not in it is not asked."""
    listed, good = tmp_path / "nodes.yaml", tmp_path / "good.yaml"
    write_list(good, hospital_c=(make_node_key(tmp_path, "c").read_text(), 5))  # none of those that are there
    listed.write_text("nodes: [{name: hospital-c, public_key: 3}]")
    for file, says in (
        ("nodes.yaml", "population.nodes is nodes.yaml; a deployment needs an absolute path"),
        (write_list(tmp_path / "empty.yaml"), r"population.nodes is .*, which lists no node"),
        (listed, r"lists .*public_key.*; a node has name, public_key, most_clients"),
        (good, "0 clients behind 0 connected nodes are available"),
    ):
        run, config = configured(tmp_path / "r", f"population.nodes={file}", "run.resume=true")
        grid = network(run)
        with pytest.raises(FedmfError, match=says):
            deploy(config, grid)
        assert not grid.asked


def dying_in_round_2(train):
    """A node in whose second round the server dies."""

    def answer(message):
        if message.metadata.group_id == "2":
            raise Crash
        return train(message)

    return answer


def killed(directory, *more):
    """Return the overrides and the grid of a run whose server died in round 2, and is not to die again."""
    run, config = configured(directory, *more)
    grid = network(run)
    honest = grid.train["a"]
    grid.train["a"] = dying_in_round_2(honest)
    with pytest.raises(Crash):
        deploy(config, grid)
    grid.train["a"] = honest
    return run, grid


def test_a_killed_server_goes_on_with_the_same_clients_and_not_as_a_simulation(tmp_path):
    run, grid = killed(tmp_path / "r")
    with pytest.raises(RunDirectoryError, match="engine=deployment is false"):
        simulate(composed(f"run.directory={tmp_path / 'r'}", *shlex.split(SIMULATED), "run.resume=true"))
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


def test_a_whole_state_that_was_restored_in_place_is_stopped_by_what_its_nodes_remember(
    tmp_path, monkeypatch, caplog
):
    """Run and count come back together, as by rsync: nothing on the server's machine tells."""
    home, state = tmp_path / "home", tmp_path / "home/.local/state/fedmf"
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("FEDMF_STATE")
    run, grid = killed(home / "r", "population.rounds_per_epoch=3")
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


def test_a_node_whose_data_cannot_be_loaded_sends_zeros_for_the_clients_it_declared(tmp_path, caplog):
    run, config = configured(tmp_path / "r", "privacy.noise_multiplier=0")
    deploy(
        config,
        network(run, {"a": f"clients=12 dataset=by_user_npz dataset.path={tmp_path}/none.npz {PUBLIC}"}),
    )
    assert [row["replies"] for row in metrics(tmp_path / "r")] == [4] * 6
    assert unmoved(tmp_path / "r")
    assert "none.npz does not exist" in caplog.text
    assert "takes part with a zero update" in caplog.text


def people(path, order):
    """Write 12 people's data, numbered in `order`."""
    rng = np.random.default_rng(0)
    x, y = rng.random((12, 3, 5))[order], rng.integers(0, 3, (12, 3))[order]
    y[:, 0] = 2
    user, split = np.repeat(np.arange(12), 3), np.tile([1, 0, 0], 12)
    np.savez(path, x=x.reshape(36, 5), y=y.ravel(), user=user, split=split)


def test_a_node_says_how_many_clients_it_declares_without_looking_at_its_data():
    set_identity()
    message = Message(RecordDict(), 1, MessageType.QUERY)
    message.metadata.__dict__["_message_id"] = "a"
    reply = playing("", "clients=479 dataset=by_user_npz dataset.path=/nowhere.npz")(message)
    assert node_report(reply).clients == 479
    assert playing("", "")(message).has_error()
    assert playing("", "clients=0")(message).has_error()


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("run.reproducible=true", "run.reproducible is true"),
        ("run.directory=relative", "an absolute path"),
        ("run.directory=null", "an absolute path"),
        ("population.min_available=null", "population.min_available is null"),
        ("population.min_available=3", "at most 3 fits"),
        ("population.max_clients_per_node=0", "population.max_clients_per_node is 0"),
        ("faults.drop_out=0.5", "faults"),
    ],
)
def test_what_a_deployment_cannot_do_is_refused_before_anything_is_written(tmp_path, more, says):
    with pytest.raises(FedmfError, match=says):
        deploy(configured(tmp_path / "r", more)[1], Nodes({}))
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


def test_a_node_has_its_own_clients_only_and_its_check_refuses_what_is_declared_beyond():
    config = node_settings(f"clients=7 first=5 {DATA}")
    node = Node(config)
    found = examine(node)
    assert (found["clients"], found["clients_in_the_data_set"]) == (7, 12)
    np.testing.assert_array_equal(node.examples_of("key:2").x, node.dataset.clients[7].x)
    for number in (7, -1):
        with pytest.raises(DataError, match="declares 7 clients"):
            node.examples_of(f"key:{number}")
    config = node_settings(f"clients=8 first=5 {DATA}")
    with pytest.raises(DataError, match="holds 7"):
        examine(Node(config))
    with pytest.raises(SettingError, match="--node-config"):
        node_settings(None)


def test_a_node_whose_file_is_renumbered_in_mid_epoch_takes_no_part_until_the_next(tmp_path, caplog):
    """Rounds 1 to 3 are the first epoch: the file is another one from round 2 on."""
    people(tmp_path / "people.npz", np.arange(12))
    data = f"dataset=by_user_npz dataset.path={tmp_path}/people.npz"
    settings = f"{SMALL.replace(DATA, data)} privacy.noise_multiplier=0 optimizer.momentum=0"
    run, models = f"run.directory={tmp_path / 'r'} {settings}", {}

    def look(message):
        if message.metadata.message_type == MessageType.TRAIN:
            number = int(message.metadata.group_id)
            models[number] = message.content.array_records[wire.MODEL][wire.VECTOR].data
            if number == 2:
                people(tmp_path / "people.npz", np.arange(12)[::-1])

    deploy(run_settings(run), network(run, {"a": f"clients=12 {data} {PUBLIC}"}, look=look))
    assert [models[number] != models[number + 1] for number in range(1, 6)] == [
        True,
        False,
        False,
        True,
        True,
    ]
    assert caplog.text.count(f"node {key_of('a')} no longer holds the clients that it declared") == 1
    assert [row["replies"] for row in metrics(tmp_path / "r")] == [4] * 6


def test_what_a_deployed_app_writes_is_for_its_owner_alone(monkeypatch):
    monkeypatch.undo()  # `prepare` is that of the product
    monkeypatch.setattr(apps, "logging", SimpleNamespace(getLogger=lambda name: MagicMock(), INFO=0))
    before = os.umask(0o022)
    apps.prepare()
    assert os.umask(before) == 0o077

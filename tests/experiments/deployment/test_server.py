"""The deployed apps inside the test process: real configuration, real training, no transport."""

import io
import json
import logging
import os
import shlex

import numpy as np
import pytest
from flwr.app import Message, MessageType, RecordDict

import small_files
from crashes import Crash
from experiments.cli.command import without_traceback
from experiments.deployment import apps
from experiments.deployment.apps import run_settings
from experiments.deployment.loopback import make_node_key
from experiments.deployment.node import Node, examine, node_settings
from experiments.deployment.server import deploy
from experiments.engines.grid import set_identity
from experiments.node_check import node_check
from experiments.run_files.directory import ATTENDANCE, read_attendance
from experiments.settings.experiment import build, build_client_plan
from fedmf.errors import DataError, FedmfError, RunDirectoryError, SettingError
from fedmf.updates import wire
from nodes import DATA, Nodes, context, key_of, network, playing, write_list
from runs import composed, metrics, model, simulate, summary
from server.cohort import Roster
from server.exchange import node_report
from server.members import ROSTER

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


def test_what_a_deployed_app_writes_is_for_its_owner_alone(tmp_path, monkeypatch):
    monkeypatch.undo()  # `prepare` is that of the product
    loggers = [logging.getLogger(name) for name in ("fedmf", "client", "server", "experiments")]
    was = [(logger.handlers, logger.propagate, logger.level) for logger in loggers]
    before = os.umask(0o022)
    try:
        apps.prepare()
        (tmp_path / "file").touch()
    finally:
        os.umask(before)
        for logger, (handlers, propagate, level) in zip(loggers, was, strict=True):
            logger.handlers, logger.propagate = handlers, propagate
            logger.setLevel(level)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600


def test_what_speaks_against_a_deployed_run_stands_in_the_log_of_its_server(tmp_path, capsys):
    run, config = configured(tmp_path / "r", "population.cohort_size=2", "population.rounds_per_epoch=1")
    deploy(config, network(run))
    said = capsys.readouterr().err
    assert said.count("warning: an epoch leaves 10 of 12 clients unasked") == 1
    assert said.count("warning: population.cohort_size is 2") == 1


def test_without_noise_the_deployed_model_is_that_of_the_same_cohorts_simulated(tmp_path):
    """The same client code and the same strategy: only names, and with them masks and data order, differ."""
    exact = ("privacy.noise_multiplier=0", "compression.keep_probability=1", "client.batch_size=100",
             "population.cohort_size=12", "clipping.l2_norm=null", "compression.rotation=identity")  # fmt: skip
    run, config = configured(tmp_path / "r", *exact)
    deploy(config, network(run))
    simulate(composed(f"run.directory={tmp_path / 's'}", "output=json", *shlex.split(SIMULATED), *exact))
    np.testing.assert_allclose(model(tmp_path / "r"), model(tmp_path / "s"), rtol=1e-4, atol=1e-6)
    assert np.abs(model(tmp_path / "r")).max() > 0.01


def test_a_model_that_no_client_could_train_is_refused_before_any_node_is_asked(tmp_path):
    run, config = configured(tmp_path / "r", "model=custom", "model.name=own_models:Raises")
    grid = network(run)
    with pytest.raises(SettingError, match="ValueError: the layers do not fit"):
        deploy(config, grid)
    assert not grid.asked
    assert not (tmp_path / "r").exists()


def test_a_run_is_given_the_list_of_its_nodes_by_a_file(tmp_path):
    """Where it cannot be read, or names nobody, nothing is written; who is not in it is not asked."""
    listed = tmp_path / "nodes.yaml"

    def refused(says, file=listed):
        run, config = configured(tmp_path / "r", f"population.nodes={file}")
        grid = network(run)
        with pytest.raises(FedmfError, match=says):
            deploy(config, grid)
        assert not grid.asked

    refused(r"population.nodes is .*nodes.yaml, which cannot be read as YAML")
    refused("population.nodes is nodes.yaml; a deployment needs an absolute path", "nodes.yaml")
    refused(r"population.nodes is .*, which lists no node", write_list(listed))
    assert not (tmp_path / "r").exists()
    listed.write_text("nodes: [{name: hospital-c, public_key: 3}]")
    refused(r"lists .*public_key.*; a node has name, public_key, most_clients")
    key = make_node_key(tmp_path, "c").read_text()  # none of the nodes that are there
    refused("0 clients behind 0 connected nodes are available", write_list(listed, hospital_c=(key, 5)))
    run, config = configured(tmp_path / "r", "run.resume=true")
    deploy(config, network(run))
    assert len(metrics(tmp_path / "r")) == 6


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
    roster = (tmp_path / "r/checkpoint" / ROSTER).read_text()
    grid.join("c", *2 * (playing(run, f"clients=12 {DATA}"),))
    asked = len(grid.asked)
    deploy(run_settings(run + " run.resume=true"), grid)
    assert [row["round"] for row in metrics(tmp_path / "r")] == list(range(1, 7))
    first_epoch = [message for message in grid.asked[asked:] if message.metadata.group_id in ("2", "3")]
    assert {message.metadata.dst_node_id for message in first_epoch} <= {grid.ids["a"], grid.ids["b"]}
    assert key_of("c") not in Roster.from_json(roster).nodes
    assert key_of("c") in Roster.from_json((tmp_path / "r/checkpoint" / ROSTER).read_text()).nodes


def test_a_whole_state_that_was_restored_in_place_is_stopped_by_what_its_nodes_remember(
    tmp_path, monkeypatch, caplog
):
    """Run and count come back together, as by rsync: nothing on the server's machine tells."""
    home, state = tmp_path / "home", tmp_path / "home/.local/state/fedmf"
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("FEDMF_STATE")
    run, grid = killed(home / "r", "population.rounds_per_epoch=3")
    assert f"released rounds are counted in {state}" in caplog.text
    (count,) = [path for path in state.iterdir() if path.read_text() == "1\n"]
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


def test_a_client_that_was_declared_but_is_not_there_sends_zeros(tmp_path, caplog):
    run, config = configured(tmp_path / "r", "population.cohort_size=13", "population.min_available=13")
    deploy(config, network(run, {"a": f"clients=13 {DATA}"}))
    assert "client number 12 is asked for; this node declares 13 clients" in caplog.text
    assert [row["replies"] for row in metrics(tmp_path / "r")] == [13] * 2


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


@pytest.mark.parametrize(
    ("run", "says"),
    [
        (
            "run.directory=relative",
            "run.directory is relative; a deployment needs an absolute path on the server's",
        ),
        ("population.bogus=1", "population.bogus is no setting of simulate"),
    ],
)
def test_a_mistake_reaches_the_log_of_the_run_as_one_sentence(run, says):
    log, written = logging.getLogger("flwr"), io.StringIO()
    handler = logging.StreamHandler(written)
    log.addHandler(handler)
    try:
        with pytest.raises(Exception, match=r"directory|bogus") as mistake:
            apps.server_app(Nodes({}), context(run))
        for error in (mistake.value, ZeroDivisionError("ours")):  # as Flower logs what ends the app
            log.error("%s raised an exception", "ServerApp", exc_info=error)
    finally:
        log.removeHandler(handler)
        log.removeFilter(without_traceback)
    said, *surprise = written.getvalue().splitlines()
    assert said.startswith(says)
    assert surprise == ["ServerApp raised an exception", "ZeroDivisionError: ours"]


def test_client_and_server_derive_the_same_bounds_rotation_and_mask_probability():
    for more in ("", "compression.value_type=int8", "compression.rotation=identity"):
        config = run_settings(f"{SMALL} {more}")
        experiment = build(config)
        assert build_client_plan(config, experiment.plan.dimension) == experiment.client_plan


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


def test_a_node_takes_no_look_at_the_test_set(tmp_path):
    held = small_files.arrays()
    x = np.where(held["split"][:, None] == 1, np.nan, held["x"])
    path = small_files.npz(tmp_path / "data.npz", x=x)
    settings = node_settings(
        f"clients=3 dataset=by_user_npz dataset.path={path} public={{shape:[4],classes:3}}"
    )
    node = Node(settings)
    np.testing.assert_array_equal(node.examples_of("key:1").y, held["y"][6:11])
    assert len(node.dataset.test) == 0
    node_check(settings)

"""Deployed runs inside the test process: resumed, extended, of a custom model; who took part, and what Prometheus is told of nodes."""

from functools import partial

import numpy as np
import pytest
import torch

from experiments.deployment.apps import run_settings
from experiments.deployment.loopback import make_node_key
from experiments.deployment.server import deploy
from experiments.run_files.directory import ATTENDANCE, read_attendance, record_attendance
from fedmf.errors import PrivacyBudgetExhausted, RunDirectoryError
from nodes import DATA, key_of, network
from own_training import Probe
from runs import Crash, metrics, summary
from scraping import OF_A_SIMULATION, OF_NODES, after_each_round, ports, samples  # noqa: F401  fixtures
from server.cohort import Roster
from server.known_nodes import EVERY_NODE, KnownNode, KnownNodes

SMALL = (
    f"{DATA} population.cohort_size=4 population.epochs=2 privacy.epsilon=null privacy.noise_multiplier=0.5 "
    "population.min_available=12 population.max_clients_per_node=100 engine.node_timeout=0.05"
)


def deployed(directory, more="", dies_in=None, base=SMALL):
    """Deploy with two nodes; the server dies when it asks for the round `dies_in`."""
    run = f"run.directory={directory} {base} {more}"

    def look(message):
        if message.metadata.group_id == dies_in:
            raise Crash

    deploy(run_settings(run), network(run, look=look))


@pytest.mark.long
@pytest.mark.usefixtures("in_this_process")
def test_a_resume_whose_overrides_are_not_whole_is_refused_with_those_that_are_missing(tmp_path):
    """A node would train the default model, clip and mask by the default settings, and nobody would know."""
    with pytest.raises(Crash):
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


@pytest.mark.long
@pytest.mark.usefixtures("in_this_process")
def test_a_deployed_run_is_extended_and_the_extension_resumed(tmp_path):
    deployed(tmp_path / "r")
    held = summary(tmp_path / "r")
    with pytest.raises(PrivacyBudgetExhausted, match=r"privacy\.max_epsilon="):
        deployed(tmp_path / "r", "run.extend=1")
    assert summary(tmp_path / "r") == held
    more = "privacy.max_epsilon=1000"
    with pytest.raises(Crash):
        deployed(tmp_path / "r", f"run.extend=1 {more}", dies_in="8")
    with pytest.raises(RunDirectoryError, match=r"add to overrides: privacy\.max_epsilon=1000"):
        deployed(tmp_path / "r", "run.resume=true")
    deployed(tmp_path / "r", f"run.resume=true {more}")
    longer = summary(tmp_path / "r")
    assert (longer["epochs"], longer["rounds"]) == (3, 9)
    assert longer["epsilon"] > held["epsilon"]
    assert longer["noise_multiplier"] == held["noise_multiplier"]


MODEL = "model=custom model.name=own_training:Probe model.trainable=[head.*]"
RUN = f"{DATA} {MODEL} population.cohort_size=4 population.epochs=1 population.min_available=12 engine.node_timeout=0.05"


def backbone(path, seed):
    torch.manual_seed(seed)
    state = Probe((5,), 3).state_dict()
    np.savez(path, **{name: value.numpy() for name, value in state.items() if "head" not in name})
    return path


def deployed_model(directory, start, held):
    """Deploy without noise from `start`; the one node has its own copy of the file at `held`, or none."""
    run = (
        f"{RUN} privacy.epsilon=null privacy.noise_multiplier=0 model.start={start} run.directory={directory}"
    )
    own = f" model.start={held}" if held else ""
    deploy(run_settings(run), network(run, {"a": f"clients=12 {DATA}{own}"}))
    return [dict(np.load(directory / name)) for name in ("model_initial.npz", "model.npz")]


@pytest.mark.long
@pytest.mark.usefixtures("in_this_process")
def test_a_node_trains_on_its_own_copy_of_the_servers_backbone(tmp_path, caplog):
    start = backbone(tmp_path / "server.npz", 0)
    before, after = deployed_model(tmp_path / "r", start, backbone(tmp_path / "node.npz", 0))
    assert not np.array_equal(before["head.weight"], after["head.weight"])
    assert np.array_equal(before["backbone.1.weight"], after["backbone.1.weight"])
    assert "zero update" not in caplog.text


@pytest.mark.long
@pytest.mark.usefixtures("in_this_process")
def test_a_node_with_another_backbone_sends_zeros_and_its_log_says_why(tmp_path, caplog):
    start, other = backbone(tmp_path / "server.npz", 0), backbone(tmp_path / "node.npz", 1)
    before, after = deployed_model(tmp_path / "r", start, other)
    assert [row["replies"] for row in metrics(tmp_path / "r")] == [4] * 3
    assert all(np.array_equal(before[name], after[name]) for name in before)
    assert "differs from the server's: the file that model.start names" in caplog.text


SMALL_WATCHED = (
    f"{DATA} population.cohort_size=4 population.epochs=2 privacy.epsilon=null privacy.noise_multiplier=0.5 "
    "population.min_available=12 engine.node_timeout=0.05 engine.round_timeout=60 run.metrics_port=0"
)


def configured(directory):
    run = f"run.directory={directory} {SMALL_WATCHED}"
    return run, run_settings(run)


@pytest.mark.long
@pytest.mark.usefixtures("in_this_process")
def test_nodes_are_counted_and_neither_they_nor_clients_are_named(tmp_path, ports, after_each_round):  # noqa: F811
    run, settings = configured(tmp_path / "r")
    seen = []
    after_each_round(lambda: seen.append(samples(ports[-1])))
    deploy(settings, network(run))
    assert len(seen) == 6
    for values, labels in seen:
        assert set(values) == OF_A_SIMULATION | OF_NODES
        assert [*labels.values()].count({}) == len(labels) - 1
        assert labels["fedmf_run_info"].keys() == {"run", "engine", "version"}
        assert values["fedmf_round_nodes"] == values["fedmf_round_nodes_connected"] == 2
        assert values["fedmf_round_nodes_silent"] == values["fedmf_waiting_for_nodes"] == 0
        text = repr((values, labels))
        assert key_of("a") not in text
        assert key_of("b") not in text


@pytest.mark.long
@pytest.mark.usefixtures("in_this_process")
def test_a_node_that_is_away_and_one_that_says_nothing_are_silent(tmp_path, ports, after_each_round):  # noqa: F811
    run, settings = configured(tmp_path / "r")
    grid, seen = network(run), []

    def look():
        values = samples(ports[-1])[0]
        names = ("round_nodes", "round_nodes_connected", "round_nodes_silent", "replies")
        seen.append(tuple(values[f"fedmf_{name}"] for name in names))
        if len(seen) == 1:
            grid.away.add("b")
        if len(seen) == 2:
            grid.away.clear()
            grid.train["b"] = lambda message: None
        if len(seen) == 3:
            raise KeyboardInterrupt

    after_each_round(look)
    with pytest.raises(KeyboardInterrupt):
        deploy(settings, grid)
    assert [row[:3] for row in seen] == [(2, 2, 0), (2, 1, 1), (2, 2, 1)]
    assert seen[0][3] == 4
    assert all(0 < row[3] < 4 for row in seen[1:])


STRANGER = "0" * 32


def attended(folder):
    return [(row["epoch"], row["nodes"]) for row in read_attendance(folder)]


@pytest.fixture
def listed(tmp_path):
    return KnownNode("hospital-1", make_node_key(tmp_path, "a").read_text(), 9)


@pytest.fixture
def record(tmp_path, listed):
    return partial(record_attendance, tmp_path, KnownNodes((listed,)))


def test_each_epoch_names_its_nodes_and_one_that_goes_on_after_a_restart_stands_once(
    tmp_path, listed, record
):
    record(Roster(0, {listed.key: 5, STRANGER: 2}))
    record(Roster(1, {listed.key: 6}))
    record(Roster(1, {listed.key: 6}))
    assert attended(tmp_path) == [(1, {"hospital-1": 5, STRANGER: 2}), (2, {"hospital-1": 6})]


def test_a_node_that_was_taken_out_of_the_list_keeps_its_name_in_the_epoch_under_way(
    tmp_path, listed, record
):
    """As after a leaked key: the run goes on in mid-epoch with the list of now."""
    roster = Roster(0, {listed.key: 8, STRANGER: 8})
    record(roster)
    record_attendance(tmp_path, EVERY_NODE, roster)
    assert attended(tmp_path) == [(1, {"hospital-1": 8, STRANGER: 8})]


@pytest.mark.parametrize(
    "others", [{}, {"1" * 32: 8}, {STRANGER: 6}], ids=["fewer", "another key", "other numbers"]
)
def test_an_epoch_that_begins_again_with_other_nodes_is_written_anew(tmp_path, listed, record, others):
    """Its roster was lost before anyone was asked; who takes part is told by the key."""
    record(Roster(0, {listed.key: 8, STRANGER: 8}))
    record(Roster(0, {listed.key: 7, **others}))
    assert attended(tmp_path) == [(1, {"hospital-1": 7, **others})]


def test_a_damaged_file_is_put_aside_and_stops_no_run(tmp_path, listed, record, caplog):
    (tmp_path / ATTENDANCE).write_text("{")
    record(Roster(3, {listed.key: 8}))
    assert attended(tmp_path) == [(4, {"hospital-1": 8})]
    assert (tmp_path / f"{ATTENDANCE}.damaged").read_text() == "{"
    assert "attendance.json is not JSON" in caplog.text

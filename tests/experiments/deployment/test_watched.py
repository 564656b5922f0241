"""What a deployed run tells Prometheus of its nodes: how many, never which, and nothing of a client."""

import pytest

from experiments.deployment.apps import run_settings
from experiments.deployment.server import deploy
from experiments.session.monitoring import Watch
from listed_nodes import LINES, Signed
from nodes import DATA, key_of, network, write_list
from scraping import OF_A_SIMULATION, OF_NODES, after_each_round, ports, samples  # noqa: F401  fixtures
from server.cohort import Presence

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("in_this_process")]

SMALL = (
    f"{DATA} population.cohort_size=4 population.epochs=2 privacy.epsilon=null privacy.noise_multiplier=0.5 "
    "population.min_available=12 engine.node_timeout=0.05 engine.round_timeout=60 run.metrics_port=0"
)


def configured(directory):
    run = f"run.directory={directory} {SMALL}"
    return run, run_settings(run)


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


def test_it_waits_for_nodes_before_an_epoch_and_not_while_clients_train(tmp_path, ports):  # noqa: F811
    run, settings = configured(tmp_path / "r")
    grid, seen = network(run), {"query": set(), "train": set()}

    def looking(kind, answer):
        def play(message):
            seen[kind].add(samples(ports[-1])[0]["fedmf_waiting_for_nodes"])
            return answer(message)

        return play

    grid.query = {name: looking("query", answer) for name, answer in grid.query.items()}
    grid.train = {name: looking("train", answer) for name, answer in grid.train.items()}
    deploy(settings, grid)
    assert seen == {"query": {1}, "train": {0}}


def test_a_hospital_that_is_gone_is_counted_in_every_round(tmp_path, ports, after_each_round):  # noqa: F811
    """It is in no epoch after this one, and few rounds would ask its clients: an alert needs ten minutes without a gap."""
    data = DATA.replace("clients=12", "clients=13")
    file = write_list(tmp_path / "nodes.yaml", hospital_a=(LINES["a"], 12), hospital_b=(LINES["b"], 12))
    run = f"run.directory={tmp_path / 'r'} {SMALL} population.nodes={file}".replace(DATA, data)
    grid = network(run, {"a": f"clients=12 {data}", "b": f"clients=1 first=12 {data}"}, Signed)
    seen = []

    def look():
        values = samples(ports[-1])[0]
        names = ("nodes_expected", "nodes_connected", "round_nodes", "nodes_in_epoch")
        seen.append(tuple(values[f"fedmf_{name}"] for name in names))
        grid.away.add("b")

    after_each_round(look)
    deploy(run_settings(run), grid)
    assert [row[:2] for row in seen] == [(2, 2)] + [(2, 1)] * 5
    assert seen[-1][2] == 1  # in the second epoch nobody of it is asked
    assert [row[3] for row in seen] == [2] * 3 + [1] * 3


def silent(*rounds):
    """Return how many nodes are silent after each round, given as (asked, answered, in the list, in the epoch)."""
    watch, said = Watch(), []
    for asked, answered, listed, in_epoch in rounds:
        watch.on_presence(Presence(*map(frozenset, (listed, asked, in_epoch, asked))))
        watch.on_heard([f"{name}:0" for name in answered])
        said.append(watch.values["round_nodes_silent"])
    return said


def test_a_node_stays_silent_until_it_is_heard_or_is_expected_no_more():
    asked = (("ab", "a"), ("a", "a"), ("ac", "ac"), ("b", ""), ("b", "b"))
    assert silent(*((*each, "abc", "abc") for each in asked)) == [1, 1, 1, 1, 0]
    assert silent(("ab", "a", "ab", "ab"), ("a", "a", "a", "a")) == [1, 0]  # it has gone with its epoch
    assert silent(("ab", "a", "ab", "ab"), ("a", "a", "ab", "a")) == [1, 1]  # the list has it
    assert silent(("ab", "a", "a", "ab"), ("a", "a", "a", "ab")) == [1, 1]  # the epoch has it

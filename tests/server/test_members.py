"""The clients of an epoch and of its rounds: their names, their nodes, and the list of nodes, also where it has changed."""

import logging

import numpy as np
import pytest
from cryptography.hazmat.primitives.serialization import load_ssh_public_key
from flwr.supercore.primitives.asymmetric import public_key_to_bytes

from fedmf.errors import RunDirectoryError, SettingError
from fedmf.updates import wire
from nodes import (
    KEYS,
    LINES,
    answer,
    deployed,
    heard,
    holding,
    listing,
    nodes_in,
    roster_in,
    start,
    tasks_in,
    unready,
)
from plans import KEY, PLAN, fields_of, replying, tagged
from poison import values_in
from server import membership
from server.cohort import ROSTER, Roster
from server.known_nodes import EVERY_NODE, Attendance, KnownNode, KnownNodes, connected, node_key
from server.membership import DeployedPopulation, digest_key

LISTED = listing(a=12, b=2)  # PLAN: 12 clients, 4 rounds of 3, 2 epochs


@pytest.fixture(autouse=True)
def _impatient(monkeypatch, caplog):
    monkeypatch.setattr(membership, "PAUSE", 0.01)
    caplog.set_level(logging.INFO, logger="server")


# who the clients are, and where they are asked


def test_a_client_is_a_nodes_key_and_the_nodes_number_for_it_and_its_own_node_is_asked(tmp_path):
    strategy, grid, releases = deployed(tmp_path, {"a": 5, "b": 7})
    start(strategy, grid, 8)
    names = [f"{KEYS['a']}:{k}" for k in range(5)] + [f"{KEYS['b']}:{k}" for k in range(7)]
    assert sorted(heard(releases[:4])) == sorted(heard(releases[4:])) == sorted(names)
    for message in tasks_in(grid):
        name = next(name for name, number in grid.ids.items() if number == message.metadata.dst_node_id)
        assert all(fields[wire.CLIENT].startswith(f"{KEYS[name]}:") for fields in fields_of(message))
    # Under its node's own key, which is the epoch's for this purpose and none of another.
    assert message.content.config_records[wire.HELD][wire.DIGEST_KEY] == digest_key(
        KEY.ratchet().derive("population"), KEYS[name]
    )


def test_the_sum_does_not_depend_on_how_clients_share_messages(tmp_path):
    models, messages = [], []
    for tasks in (1, 2, 100):
        (tmp_path / str(tasks)).mkdir()
        strategy, grid, _ = deployed(
            tmp_path / str(tasks), {"a": 5, "b": 7}, options={"tasks_per_message": tasks}
        )
        start(strategy, grid, 8)
        models.append(strategy.state.model)
        messages.append(len(tasks_in(grid)))
    np.testing.assert_array_equal(models, [models[0]] * 3)
    assert 24 == messages[0] > messages[1] > messages[2]


def test_a_nodes_sum_is_refused(tmp_path):
    """No client's bound could be checked on such a sum, so it counts as zeros, whatever its length."""

    def summing(message):
        parts = [np.frombuffer(values, "<f4") for values in values_in(answer(message))]
        whole = np.zeros(max(map(len, parts)), "<f4")
        for part in parts:
            whole[: len(part)] += part
        own = tagged(fields_of(message)[0], message, whole.tobytes())
        return replying(message, own, *[wire.NO_VALUES] * (len(parts) - 1))

    strategy, grid, releases = deployed(tmp_path, {"a": 12}, train=summing)
    start(strategy, grid)
    assert len(releases[0].answered) == 3
    moved = np.linalg.norm(strategy.state.model) * PLAN.denominator
    assert moved <= PLAN.bounds.radius * (
        1 + 1e-5
    )  # one client's vector at most, where the lengths happen to agree


def test_cohorts_of_an_epoch_are_disjoint_and_follow_from_roster_and_seed_alone(tmp_path):
    roster = Roster(1, {"b": 20, "a": 3}, {"a": "0"}, ("b",))
    (tmp_path / ROSTER).write_text(roster.to_json())
    assert Roster.read(tmp_path / ROSTER) == roster
    cohorts = [roster.cohort(PLAN, number) for number in range(5, 9)]
    assert len({client for cohort in cohorts for client in cohort}) == 12
    assert roster.names(range(23)) == [f"a:{k}" for k in range(3)] + [f"b:{k}" for k in range(20)]


def test_a_restarted_server_continues_with_the_same_cohorts_whichever_nodes_are_there_now(tmp_path, caplog):
    whole, grid, releases = deployed(tmp_path, {"a": 5, "b": 7})
    start(whole, grid, 4)
    other, told = deployed(tmp_path, {"c": 50, "b": unready(7), "a": 9})[1], []
    other.away = {"a"}
    again = DeployedPopulation(Attendance(12, timeout=0.05), tmp_path, told.append)
    caplog.clear()
    for number in (2, 3, 4):
        places = again.cohort(PLAN, number, other, key=KEY)
        expected = [client for client in releases[number - 1].answered if client.startswith(KEYS["b"])]
        assert sorted(client for clients in places.values() for client in clients) == sorted(expected)
    assert other.asked == []
    assert told == [roster_in(tmp_path)]
    assert "epoch 1 continues with 12 clients behind 2 nodes" in caplog.messages  # its log is another one
    other.away, other.query["b"] = set(), holding(7)
    again.cohort(PLAN, 5, other, key=KEY)
    assert nodes_in(tmp_path) == {"a", "b", "c"}


@pytest.mark.parametrize("kept", [None, '{"epoch": 0'])
def test_an_epoch_whose_roster_is_lost_is_not_continued(tmp_path, kept):
    strategy, grid, _ = deployed(tmp_path, {"a": 12})
    start(strategy, grid)
    (tmp_path / ROSTER).unlink()
    if kept:
        (tmp_path / ROSTER).write_text(kept)
    strategy.population = DeployedPopulation(Attendance(12), tmp_path)
    with pytest.raises(RunDirectoryError, match="damaged" if kept else "epoch 1, which is under way"):
        start(strategy, grid)


def test_a_node_without_a_key_takes_no_part_and_a_grid_without_keys_is_refused(tmp_path):
    strategy, grid, _ = deployed(tmp_path, {"a": 12, "": 50})
    start(strategy, grid, 4)
    assert {message.metadata.dst_node_id for message in grid.asked} == {grid.ids["a"]}
    with pytest.raises(SettingError, match="object does not give the nodes' public keys"):
        connected(object())


# what the log says of nodes


def line_of(name, clients, found):
    return f"node hospital-{name} takes part with {clients} clients; its key is {KEYS[name]}, {found}"


def test_the_log_says_of_each_node_name_key_and_the_id_that_flower_gave_it_again_after_a_restart(
    tmp_path, caplog
):
    strategy, grid, _ = deployed(tmp_path, {"a": 12, "b": 2}, LISTED)
    start(strategy, grid)
    for name, clients in (("a", 12), ("b", 2)):
        assert line_of(name, clients, f"its node id {grid.ids[name]}") in caplog.messages
    caplog.clear()
    grid.away = {"b"}
    DeployedPopulation(Attendance(12, nodes=LISTED), tmp_path).cohort(PLAN, 2, grid, key=KEY)
    assert line_of("a", 12, f"its node id {grid.ids['a']}") in caplog.messages
    assert line_of("b", 2, "and it is not connected now") in caplog.messages


# the list of nodes


def test_the_key_of_a_line_is_that_of_what_flower_gives_of_the_node():
    """Or a listed node would be a stranger: Flower gives PEM, ssh-keygen writes a line with a comment."""
    for name, line in LINES.items():
        assert KnownNode(name, f"{line} someone@somewhere\n", 1).key == KEYS[name]
        assert node_key(public_key_to_bytes(load_ssh_public_key(line.encode()))) == KEYS[name]


def test_a_node_that_is_not_listed_is_not_even_asked(tmp_path, caplog):
    strategy, grid, releases = deployed(tmp_path, {"a": 12, "b": 1000}, listing(a=12))
    start(strategy, grid, 8)
    assert {message.metadata.dst_node_id for message in grid.asked} == {grid.ids["a"]}
    assert {client.partition(":")[0] for client in heard(releases)} == {KEYS["a"]}
    told = [
        text for text in caplog.messages if "not in the list of nodes: the epoch begins without it" in text
    ]
    assert [KEYS["b"] in text for text in told] == [True] * PLAN.participation.epochs


def continued(folder, rounds, before, after):
    """A run that continues after its first round in another process, with another list of nodes; its grid and releases."""
    strategy, grid, first = deployed(folder, {"a": 6, "b": 6}, before)
    start(strategy, grid)
    again, grid, more = deployed(folder, {"a": 6, "b": 6, "c": 9}, after, state=strategy.state, least=6)
    start(again, grid, rounds)
    return grid, first + more


def test_a_list_that_changed_in_mid_epoch_holds_from_the_next_one_on_and_that_is_said(tmp_path, caplog):
    _, releases = continued(tmp_path, 3, listing(a=6, b=6), listing(a=2, b=6, c=9))
    assert roster_in(tmp_path).nodes == {KEYS["a"]: 6, KEYS["b"]: 6}  # by their keys: a name may change
    assert len(heard(releases)) == len(set(heard(releases))) == 12
    assert (
        "node hospital-a counts for 6 clients until epoch 1 ends, as when it began; the list of nodes now has it for 2"
        in caplog.text
    )
    assert "hospital-b counts" not in caplog.text
    (tmp_path / "next").mkdir()
    continued(tmp_path / "next", 4, listing(a=6, b=6), listing(a=2, b=6, c=9))
    assert roster_in(tmp_path / "next").nodes == {KEYS["a"]: 2, KEYS["b"]: 6, KEYS["c"]: 9}


def test_a_node_that_was_taken_out_is_silent_from_then_on_and_that_is_said(tmp_path, caplog):
    """Its key may have leaked: it is not asked again, nothing takes its place, and the cohorts stay."""
    grid, releases = continued(tmp_path, 3, listing(a=6, b=6), listing(b=6))
    assert nodes_in(tmp_path) == {"a", "b"}
    assert {client.partition(":")[0] for client in heard(releases[1:])} == {KEYS["b"]}
    assert {message.metadata.dst_node_id for message in grid.asked} == {grid.ids["b"]}
    said = f"node {KEYS['a']} counts for 6 clients until epoch 1 ends, as when it began; the list of nodes now has it for 0"
    assert said in caplog.text


@pytest.mark.parametrize("lists", [(EVERY_NODE, listing(a=6, b=6)), (listing(a=6, b=6), EVERY_NODE)])
def test_a_run_that_had_no_list_continues_with_one_and_the_other_way_round(tmp_path, lists):
    """Record and roster call nodes by their keys, with a list and without."""
    _, releases = continued(tmp_path, 3, *lists)
    assert len(heard(releases)) == len(set(heard(releases))) == 12


def test_two_nodes_of_one_name_or_one_key_are_refused():
    for name, key, said in (
        ("x", LINES["b"], "x and x have the same name"),
        ("y", f"{LINES['a']} other comment", "x and y have the same key"),
    ):
        with pytest.raises(SettingError, match=f"the nodes {said}"):
            KnownNodes((KnownNode("x", LINES["a"], 1), KnownNode(name, key, 1)))

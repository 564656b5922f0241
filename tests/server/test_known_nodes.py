"""The list of nodes: who is not in it takes no part, nobody counts for more than was agreed, and logs have names."""

import logging

import pytest
from cryptography.hazmat.primitives.serialization import load_ssh_public_key
from flwr.supercore.primitives.asymmetric import public_key_to_bytes

from fedmf.errors import RunStoppedError, SettingError
from listed_nodes import KEYS, LINES, deployed, listing
from server import gathering
from server.attendance import ROSTER
from server.cohort import Roster
from server.known_nodes import KnownNode, KnownNodes, node_key
from workers import PLAN


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    monkeypatch.setattr(gathering, "PAUSE", 0.01)


def nodes_heard(releases):
    return {client.partition(":")[0] for release in releases for client in release.answered}


def test_the_key_of_a_line_is_that_of_what_flower_gives_of_the_node():
    """Or a listed node would be a stranger: Flower gives PEM, ssh-keygen writes a line with a comment."""
    for name, line in LINES.items():
        assert KnownNode(name, f"{line} someone@somewhere\n", 1).key == KEYS[name]
        assert node_key(public_key_to_bytes(load_ssh_public_key(line.encode()))) == KEYS[name]


def test_a_node_that_is_not_listed_is_not_even_asked(tmp_path, caplog):
    strategy, grid, releases = deployed(tmp_path, {"a": 12, "b": 1000}, listing(a=12))
    strategy.start(grid, timeout=0.1)
    assert {message.metadata.dst_node_id for message in grid.asked} == {grid.ids["a"]}
    assert nodes_heard(releases) == {KEYS["a"]}
    assert Roster.from_json((tmp_path / ROSTER).read_text()).nodes == {KEYS["a"]: 12}
    told = [
        record for record in caplog.records if "not in the list of nodes: it takes no part" in record.message
    ]
    assert [KEYS["b"] in record.message for record in told] == [True] * PLAN.participation.epochs


def test_clients_of_unlisted_nodes_do_not_let_an_epoch_begin(tmp_path, caplog):
    strategy, grid, _ = deployed(tmp_path, {"a": 11, "b": 1000}, listing(a=12))
    with pytest.raises(RunStoppedError, match="11 clients behind 1 connected"):
        strategy.start(grid, timeout=0.1)
    assert caplog.text.count("not in the list of nodes") == 1  # however often it is looked who is there


def test_a_node_counts_for_no_more_clients_than_were_agreed(tmp_path, caplog):
    """One that declares 10^9 has the agreed number of an epoch's clients, not the cap of 10,000."""
    strategy, grid, releases = deployed(tmp_path, {"a": 10**9, "b": 7}, listing(a=5, b=8))
    strategy.start(grid, num_rounds=4, timeout=0.1)
    spent = [client for release in releases for client in release.answered]
    assert sorted(spent) == sorted(
        [f"{KEYS['a']}:{k}" for k in range(5)] + [f"{KEYS['b']}:{k}" for k in range(7)]
    )
    assert (
        "node hospital-a declares 1000000000 clients; most_clients=5 were agreed, and take part"
        in caplog.text
    )
    assert "hospital-b declares" not in caplog.text


def test_the_cap_of_all_nodes_holds_for_listed_ones_too(tmp_path):
    strategy, grid, _ = deployed(tmp_path, {"a": 100, "b": 7}, listing(a=50, b=8), max_clients_per_node=6)
    strategy.start(grid, num_rounds=1, timeout=0.1)
    assert Roster.from_json((tmp_path / ROSTER).read_text()).nodes == {KEYS["a"]: 6, KEYS["b"]: 6}


def test_logs_call_nodes_by_name_and_files_by_key(tmp_path, caplog):
    strategy, grid, releases = deployed(tmp_path, {"a": 9, "b": 7}, listing(a=6, b=8))
    with caplog.at_level(logging.INFO, logger="server"):
        strategy.start(grid, num_rounds=1, timeout=0.1)
        grid.away = {"b"}
        strategy.start(grid, num_rounds=1, timeout=0.1)
    assert "node hospital-a takes part with 6 clients" in caplog.text
    assert "node hospital-b is not connected" in caplog.text
    with_keys = [text for text in caplog.messages if any(key in text for key in KEYS.values())]
    assert all("takes part with" in text for text in with_keys)  # where name and key are joined
    assert "hospital" not in (tmp_path / ROSTER).read_text()
    assert nodes_heard(releases) <= set(KEYS.values())


def gone_on(tmp_path, listed, rounds, held=None):
    """A run of two epochs that goes on after its first round in another process, with another list of nodes."""
    strategy, grid, first = deployed(tmp_path, {"a": 6, "b": 6}, listing(a=6, b=6))
    strategy.start(grid, num_rounds=1, timeout=0.1)
    before = (tmp_path / ROSTER).read_text()
    again, grid, more = deployed(
        tmp_path, held or {"a": 6, "b": 6, "c": 9}, listed, state=strategy.state, least=6
    )
    again.start(grid, num_rounds=rounds, timeout=0.1)
    return before, grid, first + more


def test_a_list_that_changed_in_mid_epoch_changes_no_cohort_of_it(tmp_path, caplog):
    """A number that was lowered and a node that was added count from the next epoch on, and that is said."""
    before, _, releases = gone_on(tmp_path, listing(a=2, b=6, c=9), rounds=3)
    assert (tmp_path / ROSTER).read_text() == before
    spent = [client for release in releases for client in release.answered]
    assert len(spent) == len(set(spent)) == 12
    assert nodes_heard(releases) == {KEYS["a"], KEYS["b"]}
    assert (
        "node hospital-a counts for 6 clients until epoch 1 ends, as when it began; after that for 2"
        in caplog.text
    )
    assert "hospital-b counts" not in caplog.text


def test_the_changed_list_holds_in_the_next_epoch(tmp_path):
    gone_on(tmp_path, listing(a=2, b=6, c=9), rounds=4)
    roster = Roster.from_json((tmp_path / ROSTER).read_text())
    assert roster.epoch == 1
    assert roster.nodes == {KEYS["a"]: 2, KEYS["b"]: 6, KEYS["c"]: 9}


def test_a_node_that_was_taken_out_is_silent_from_then_on_and_that_is_said(tmp_path, caplog):
    """Its key may have leaked: it is not asked again, nobody takes its place, and the cohorts stay."""
    before, grid, releases = gone_on(tmp_path, listing(b=6), rounds=3)
    assert (tmp_path / ROSTER).read_text() == before
    assert nodes_heard(releases[1:]) == {KEYS["b"]}
    assert {message.metadata.dst_node_id for message in grid.asked} == {grid.ids["b"]}
    said = f"node {KEYS['a']} is no longer in the list of nodes: its 6 clients are silent until epoch 1 ends"
    assert said in caplog.text


def test_a_run_that_had_no_list_goes_on_with_one_and_the_other_way_round(tmp_path):
    """Journal and roster call nodes by their keys, with a list and without."""
    for number, lists in enumerate([(KnownNodes(), listing(a=6, b=6)), (listing(a=6, b=6), KnownNodes())]):
        folder = tmp_path / str(number)
        folder.mkdir()
        strategy, grid, first = deployed(folder, {"a": 6, "b": 6}, lists[0])
        strategy.start(grid, num_rounds=2, timeout=0.1)
        again, grid, more = deployed(folder, {"a": 6, "b": 6}, lists[1], state=strategy.state)
        again.start(grid, num_rounds=2, timeout=0.1)
        spent = [client for release in first + more for client in release.answered]
        assert len(spent) == len(set(spent)) == 12


def test_two_nodes_of_one_name_or_one_key_are_refused():
    with pytest.raises(SettingError, match="two nodes are called x"):
        KnownNodes((KnownNode("x", LINES["a"], 1), KnownNode("x", LINES["b"], 1)))
    with pytest.raises(SettingError, match="x and y have the same public key"):
        KnownNodes((KnownNode("x", LINES["a"], 1), KnownNode("y", f"{LINES['a']} other comment", 1)))

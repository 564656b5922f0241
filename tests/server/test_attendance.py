import logging

import numpy as np
import pytest
from flwr.app import ConfigRecord, Error, Message, RecordDict

from client.data.clients import Fingerprint
from experiments.deployment.apps import count_answer
from fedmf.errors import RunDirectoryError, RunStoppedError, SettingError
from fedmf.randomness import SecretKey
from fedmf.updates import wire
from nodes import Nodes, holding, key_of
from plans import KEY, random_vector, small_plan
from server import gathering
from server.attendance import ROSTER, DeployedPopulation
from server.cohort import Roster
from server.gathering import Attendance, connected, wait_for_clients
from server.optimizer import Sgd
from server.state import first_state
from server.strategy import FedMF
from tasks import values_in
from workers import fields_of, honest, replying, tagged

PLAN = small_plan(noise_multiplier=0, keep_probability=0.5)  # 12 clients, 4 rounds of 3, 2 epochs


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    monkeypatch.setattr(gathering, "PAUSE", 0.01)


def vector_of(client):
    return random_vector(50, 0.5, int(client.rpartition(":")[2]) + 100 * int(client[:2], 16))


def answer(message, plan=PLAN):
    """The reply of an honest node: each client's values on their own."""
    replies = [honest(fields, message, vector_of(fields[wire.CLIENT]), plan) for fields in fields_of(message)]
    return replying(message, *(values for reply in replies for values in values_in(reply)))


def deployed(folder, held, *, answers=answer, plan=PLAN, tasks=4, least=12, accept_copy=False, **limits):
    """A strategy and the grid of nodes that hold `held` (name -> clients)."""
    attendance = Attendance(least, **{"timeout": 0.05, "query_timeout": 1.0, **limits})
    grid = Nodes({name: holding(clients) for name, clients in held.items()}, dict.fromkeys(held, answers))
    releases = []
    strategy = FedMF(
        plan,
        Sgd(1.0),
        DeployedPopulation(attendance, folder, accept_copy=accept_copy),
        first_state(plan, np.zeros(plan.dimension, "f4"), KEY),
        on_release=[lambda state, release: releases.append(release)],
        tasks_per_message=tasks,
    )
    return strategy, grid, releases


def tasks_in(grid):
    return [message for message in grid.asked if message.metadata.message_type == "train"]


def test_a_client_is_a_nodes_key_and_the_nodes_number_for_it(tmp_path):
    strategy, grid, releases = deployed(tmp_path, {"a": 5, "b": 7})
    strategy.start(grid, num_rounds=4, timeout=0.1)
    spent = [client for release in releases for client in release.answered]
    names = {f"{key_of('a')}:{k}" for k in range(5)} | {f"{key_of('b')}:{k}" for k in range(7)}
    assert len(spent) == 12
    assert set(spent) == names


def test_each_client_is_asked_by_its_own_node_only(tmp_path):
    strategy, grid, _ = deployed(tmp_path, {"a": 5, "b": 7})
    strategy.start(grid, num_rounds=8, timeout=0.1)
    for message in tasks_in(grid):
        for fields in fields_of(message):
            name = next(n for n, number in grid.ids.items() if number == message.metadata.dst_node_id)
            assert fields[wire.CLIENT].startswith(f"{key_of(name)}:")


def test_the_sum_does_not_depend_on_how_clients_share_messages(tmp_path):
    models, messages = [], []
    for tasks in (1, 2, 100):
        (tmp_path / str(tasks)).mkdir()
        strategy, grid, _ = deployed(tmp_path / str(tasks), {"a": 5, "b": 7}, tasks=tasks)
        strategy.start(grid, timeout=0.1)
        models.append(strategy.state.model)
        messages.append(len(tasks_in(grid)))
    np.testing.assert_array_equal(models[0], models[1])
    np.testing.assert_array_equal(models[0], models[2])
    assert messages[0] == 24
    assert messages[0] > messages[1] > messages[2]


def test_a_nodes_sum_is_refused(tmp_path):
    """No client's bound could be checked on such a sum, so it counts as zeros, whatever its length."""

    def summing(message):
        parts = [np.frombuffer(values, "<f4") for values in values_in(answer(message))]
        whole = np.zeros(max(map(len, parts)), "<f4")
        for part in parts:
            whole[: len(part)] += part
        return replying(
            message,
            tagged(fields_of(message)[0], message, whole.tobytes()),
            *[wire.NO_VALUES] * (len(parts) - 1),
        )

    strategy, grid, releases = deployed(tmp_path, {"a": 12}, answers=summing, tasks=3)
    strategy.start(grid, num_rounds=1, timeout=0.1)
    assert len(releases[0].answered) == 3
    moved = np.linalg.norm(strategy.state.model) * PLAN.denominator
    assert moved <= PLAN.bounds.radius * (
        1 + 1e-5
    )  # at most one client's vector, where the lengths happen to agree


def test_an_epoch_waits_for_enough_clients_and_says_so(tmp_path, caplog):
    strategy, grid, _ = deployed(tmp_path, {"a": 5, "b": 6}, timeout=1.0)
    with (
        caplog.at_level(logging.INFO, logger="server"),
        pytest.raises(RunStoppedError, match=r"11 clients behind 2 .*min_available=12"),
    ):
        strategy.start(grid, timeout=0.1)
    assert "waiting: 11 clients behind 2 connected nodes are available" in caplog.text
    assert tasks_in(grid) == []
    assert strategy.state.ledger.entries == ()  # an epoch that nobody began costs nothing


def test_nodes_may_join_at_the_next_epoch_only(tmp_path):
    strategy, grid, releases = deployed(tmp_path, {"a": 12})
    strategy.start(grid, num_rounds=1, timeout=0.1)
    grid.join("b", holding(12), answer)
    strategy.start(grid, num_rounds=3, timeout=0.1)
    first = {client for release in releases for client in release.answered}
    strategy.start(grid, num_rounds=4, timeout=0.1)
    second = {client for release in releases[4:] for client in release.answered}
    assert {client.partition(":")[0] for client in first} == {key_of("a")}
    assert {client.partition(":")[0] for client in second} == {key_of("a"), key_of("b")}
    assert len(second) == 12


def test_a_node_counts_for_no_more_clients_than_allowed(tmp_path, caplog):
    strategy, grid, _ = deployed(tmp_path, {"a": 1000, "b": 9}, max_clients_per_node=6)
    strategy.start(grid, num_rounds=1, timeout=0.1)
    roster = Roster.from_json((tmp_path / ROSTER).read_text())
    assert roster.nodes == {key_of("a"): 6, key_of("b"): 6}
    assert "holds 1000 clients" in caplog.text


@pytest.mark.parametrize("value", ["12", -1, 12.0, True, [12], b"12"])
def test_an_answer_that_is_no_count_is_no_answer(value):
    grid = Nodes({"a": holding(12), "b": holding(value)})
    held = wait_for_clients(grid, Attendance(12, timeout=0.05, query_timeout=0.1), KEY)
    assert held == {key_of("a"): (12, "")}


def test_errors_and_silence_are_no_answers():
    grid = Nodes(
        {
            "a": holding(12),
            "b": lambda message: None,
            "c": lambda message: Message(Error(2, "x"), reply_to=message),
            "d": lambda message: Message(RecordDict(), reply_to=message),
        }
    )
    assert wait_for_clients(grid, Attendance(12, timeout=0.05, query_timeout=0.05), KEY) == {
        key_of("a"): (12, "")
    }


def test_a_node_that_is_away_is_silent_and_its_clients_stay_unspent(tmp_path, caplog):
    strategy, grid, releases = deployed(tmp_path, {"a": 6, "b": 6})
    strategy.start(grid, num_rounds=1, timeout=0.1)
    grid.away.add("b")
    strategy.start(grid, num_rounds=2, timeout=0.1)
    grid.away.clear()
    strategy.start(grid, num_rounds=1, timeout=0.1)
    assert all(client.startswith(key_of("a")) for release in releases[1:3] for client in release.answered)
    assert any(len(release.answered) < 3 for release in releases[1:3])
    assert len(releases[3].answered) == 3
    assert f"node {key_of('b')} is not connected" in caplog.text


def test_a_lost_nodes_clients_are_spent_and_it_takes_part_in_the_next_epoch(tmp_path):
    strategy, grid, releases = deployed(tmp_path, {"a": 6, "b": 6})
    strategy.start(grid, num_rounds=1, timeout=0.1)
    grid.lost.add("b")
    strategy.start(grid, num_rounds=3, timeout=0.1)
    grid.lost.clear()
    strategy.start(grid, num_rounds=4, timeout=0.1)
    assert [len(release.answered) for release in releases] == [3] * 8
    assert len({client for release in releases[4:] for client in release.answered}) == 12


def test_while_every_node_is_away_nothing_is_released(tmp_path):
    strategy, grid, releases = deployed(tmp_path, {"a": 12})
    strategy.start(grid, num_rounds=1, timeout=0.1)
    grid.away.add("a")
    with pytest.raises(RunStoppedError, match="no node is connected for round 2"):
        strategy.start(grid, timeout=0.1)
    assert len(releases) == 1


def test_a_restarted_server_goes_on_with_the_same_cohorts_whoever_is_there_now(tmp_path):
    whole, grid, releases = deployed(tmp_path, {"a": 5, "b": 7})
    whole.start(grid, num_rounds=4, timeout=0.1)
    again = DeployedPopulation(Attendance(12, timeout=0.05), tmp_path)
    other = Nodes({"c": holding(50), "b": holding(7), "a": holding(9)}, first_id=7)
    for step in (1, 2, 3):
        again.gather(PLAN, 0, step, other, key=KEY)
        assert again.cohort(PLAN, step + 1) == sorted(
            releases[step].answered, key=again.cohort(PLAN, step + 1).index
        )
        assert set(again.cohort(PLAN, step + 1)) == set(releases[step].answered)
    assert other.asked == []
    again.gather(PLAN, 1, 0, other, key=KEY)
    assert key_of("c") in Roster.from_json((tmp_path / ROSTER).read_text()).nodes


def test_an_epoch_whose_roster_is_lost_is_not_continued(tmp_path):
    strategy, grid, _ = deployed(tmp_path, {"a": 12})
    strategy.start(grid, num_rounds=1, timeout=0.1)
    (tmp_path / ROSTER).unlink()
    with pytest.raises(RunDirectoryError, match="epoch 1, which is under way"):
        DeployedPopulation(Attendance(12), tmp_path).gather(PLAN, 0, 1, grid, key=KEY)
    strategy.population = DeployedPopulation(Attendance(12), tmp_path)
    with pytest.raises(RunDirectoryError, match="epoch 1, which is under way"):
        strategy.start(grid, num_rounds=1, timeout=0.1)
    (tmp_path / ROSTER).write_text('{"epoch": 0')
    with pytest.raises(RunDirectoryError, match="damaged"):
        DeployedPopulation(Attendance(12), tmp_path).gather(PLAN, 0, 1, grid, key=KEY)


def test_cohorts_of_an_epoch_are_disjoint_and_follow_from_roster_and_seed_alone():
    roster = Roster(1, {"b": 20, "a": 3})
    cohorts = [roster.cohort(PLAN, number) for number in range(5, 9)]
    names = [client for cohort in cohorts for client in cohort]
    assert len(set(names)) == 12
    assert cohorts == [Roster.from_json(roster.to_json()).cohort(PLAN, number) for number in range(5, 9)]
    assert roster.names(range(23)) == [f"a:{k}" for k in range(3)] + [f"b:{k}" for k in range(20)]


def test_a_node_that_no_key_vouches_for_takes_no_part(tmp_path):
    strategy, grid, _ = deployed(tmp_path, {"a": 12, "": 50})
    strategy.start(grid, num_rounds=4, timeout=0.1)
    assert {message.metadata.dst_node_id for message in grid.asked} == {grid.ids["a"]}


def test_a_grid_without_public_keys_is_refused():
    class Plain:
        pass

    with pytest.raises(SettingError, match="does not give the nodes' public keys"):
        connected(Plain())


def test_a_round_waits_for_the_first_of_its_nodes_to_come_back_and_says_so_once(
    tmp_path, monkeypatch, caplog
):
    strategy, grid, releases = deployed(tmp_path, {"a": 12}, timeout=60)
    strategy.start(grid, num_rounds=1, timeout=0.1)
    grid.away.add("a")
    looks = iter([None, None, grid.away.clear])

    def sleep(seconds):
        if (comes_back := next(looks)) is not None:
            comes_back()

    monkeypatch.setattr(gathering.time, "sleep", sleep)
    strategy.start(grid, num_rounds=1, timeout=0.1)
    assert [len(release.answered) for release in releases] == [3, 3]
    assert caplog.text.count("waiting: no node of this round is connected") == 1


class People:
    """A node that holds `people`, who answer as themselves: a vector is a person's, whatever number it is asked under."""

    def __init__(self, people):
        self.people = list(people)

    def said(self, message):
        """The digest of the node's people in order, under the key of the question."""
        key = SecretKey(bytes(message.content.config_records[wire.HELD][wire.DIGEST_KEY]))
        fingerprint = Fingerprint(key)
        fingerprint.text(" ".join(self.people))
        return ConfigRecord({wire.DIGEST: fingerprint.hexdigest()})

    def query(self, message):
        answer = self.said(message)
        answer[wire.CLIENTS] = len(self.people)
        return Message(RecordDict({wire.HELD: answer}), reply_to=message)

    def train(self, message):
        reply = answer(message)
        reply.content[wire.HELD] = self.said(message)
        return reply


def remembering(message):
    """The reply of a real node's answer, which keeps count of its rounds."""
    reply = answer(message)
    reply.content[wire.HELD] = ConfigRecord({wire.ANSWERED: count_answer(message)})
    return reply


@pytest.mark.parametrize(("released", "answered"), [(3, 3), (5, 4)])
def test_a_server_behind_its_nodes_stops_before_it_releases_anything(
    tmp_path, monkeypatch, caplog, released, answered
):
    """Its whole state was restored, the count of its rounds as well: nothing on its machine tells. Epochs have 4 rounds."""
    monkeypatch.setenv("FEDMF_STATE", str(tmp_path / "node"))
    strategy, grid, releases = deployed(tmp_path, {"a": 6, "b": 6}, answers=remembering)
    strategy.start(grid, num_rounds=3, timeout=0.1)
    backup = (tmp_path / ROSTER).read_bytes()
    strategy.start(grid, num_rounds=released - 3, timeout=0.1)  # the next epoch is not taken for the first
    assert len(releases) == released
    (tmp_path / ROSTER).write_bytes(backup)
    restored, _, again = deployed(tmp_path, {"a": 6, "b": 6})
    with pytest.raises(
        RunDirectoryError, match=f"answered round {answered} .* asks for its round 1: it holds an older"
    ):
        restored.start(grid, num_rounds=1, timeout=0.1)
    assert again == []
    assert restored.state.round == 0
    accepting, _, again = deployed(tmp_path, {"a": 6, "b": 6}, accept_copy=True)
    accepting.start(grid, num_rounds=1, timeout=0.1)
    assert len(again) == 1
    assert "It goes on, because accept_copy was set" in caplog.text


def test_a_round_that_was_not_released_is_asked_again_and_what_no_node_says_stops_nothing(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("FEDMF_STATE", str(tmp_path / "node"))
    strategy, grid, _ = deployed(tmp_path, {"a": 12}, answers=remembering)
    strategy.start(grid, num_rounds=1, timeout=0.1)
    restored, _, releases = deployed(tmp_path, {"a": 12})
    restored.start(grid, num_rounds=1, timeout=0.1)
    assert len(releases) == 1

    for said in ("7", 5, 10**15, -1, True):  # no rounds of an epoch, which has four

        def malformed(message, said=said):
            reply = answer(message)
            reply.content[wire.HELD] = ConfigRecord({wire.ANSWERED: said})
            return reply

        (tmp_path / ROSTER).unlink()
        strategy, grid, releases = deployed(tmp_path, {"a": 12}, answers=malformed)
        strategy.start(grid, num_rounds=1, timeout=0.1)
        assert len(releases) == 1


def declaring(folder, nodes, rounds):
    """Play rounds with nodes that declare who their clients are; returns strategy, grid and releases."""
    strategy, _, releases = deployed(folder, {"a": 1})
    grid = Nodes(
        {name: node.query for name, node in nodes.items()}, {name: node.train for name, node in nodes.items()}
    )
    strategy.start(grid, num_rounds=rounds, timeout=0.1)
    return strategy, grid, releases


def heard(strategy, grid, number):
    """Whether the model moved in the next rounds."""
    before = strategy.state.model.copy()
    strategy.start(grid, num_rounds=number, timeout=0.1)
    return bool((strategy.state.model != before).any())


def test_a_node_that_renumbers_its_clients_in_mid_epoch_counts_as_zeros_until_the_next(tmp_path, caplog):
    node = People("abcdefghijkl")
    strategy, grid, releases = declaring(tmp_path, {"a": node}, 1)
    assert heard(strategy, grid, 1)
    node.people.reverse()
    assert not heard(strategy, grid, 1)
    assert f"node {key_of('a')} no longer holds the clients that it declared" in caplog.text
    node.people.reverse()
    assert not heard(strategy, grid, 1)  # for the rest of the epoch
    assert caplog.text.count("no longer holds") == 1
    assert [len(release.answered) for release in releases] == [3] * 4  # asked, spent and counted all the same
    node.people.reverse()
    assert heard(strategy, grid, 1)


def test_a_restarted_server_knows_who_changed_and_what_was_declared(tmp_path):
    node, steady = People("abcdef"), People("ghijkl")
    strategy, grid, _ = declaring(tmp_path, {"a": node, "b": steady}, 1)
    node.people.reverse()
    strategy.start(grid, num_rounds=2, timeout=0.1)
    roster = Roster.from_json((tmp_path / ROSTER).read_text())
    assert set(roster.digests) == {key_of("a"), key_of("b")}
    assert roster.changed == (key_of("a"),)
    node.people.reverse()
    again = DeployedPopulation(Attendance(12), tmp_path)
    again.gather(PLAN, 0, 3, grid, key=KEY.derive("population"))
    for name, player, counts in (("a", node, False), ("b", steady, True)):
        client = [f"{key_of(name)}:0"]
        message = Message(RecordDict({wire.HELD: ConfigRecord({**again.question(client)})}), 1, "train")
        message.metadata.__dict__["_message_id"] = "a"
        reply = Message(RecordDict({wire.HELD: player.said(message)}), reply_to=message)
        assert again.admits(client, reply) is counts


def test_no_two_nodes_and_no_two_epochs_have_one_digest_of_the_same_people(tmp_path):
    """So the public roster says nothing to who has data of his own to compare."""
    nodes = {"a": People("abcdef"), "b": People("abcdef")}
    strategy, grid, _ = declaring(tmp_path, nodes, 1)
    first = Roster.from_json((tmp_path / ROSTER).read_text()).digests
    strategy.start(grid, num_rounds=4, timeout=0.1)
    second = Roster.from_json((tmp_path / ROSTER).read_text()).digests
    assert len({*first.values(), *second.values()}) == 4


@pytest.mark.parametrize("said", ["", "x" * 64, "0" * 63, "0" * 100_000, b"0" * 64, 3])
def test_values_without_the_digest_that_was_declared_count_as_zeros(tmp_path, said):
    node = People("abcdefghijkl")
    strategy, grid, releases = declaring(tmp_path, {"a": node}, 1)
    honest_answer = node.said
    node.said = lambda message: ConfigRecord({wire.DIGEST: said})
    assert not heard(strategy, grid, 1)
    node.said = honest_answer
    assert heard(strategy, grid, 1)  # nothing was said that differs
    assert len(releases) == 3

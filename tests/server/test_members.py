"""Which nodes are in an epoch: connected, listed, ready, with the run's code. The log names them, and who is left out and why."""

import logging
import re

import numpy as np
import pytest
from cryptography.hazmat.primitives.serialization import load_ssh_public_key
from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.supercore.primitives.asymmetric import public_key_to_bytes

from experiments.deployment.node import answer_other_code
from fedmf.errors import RunDirectoryError, RunStoppedError, SettingError
from fedmf.updates import wire
from listed_nodes import KEYS, LINES, answer, deployed, listing, roster_in, start, tasks_in
from nodes import holding, unready
from plans import KEY
from server import members
from server.cohort import Roster, UnreadyNodes
from server.known_nodes import EVERY_NODE, KnownNode, KnownNodes, node_key
from server.members import ROSTER, Attendance, DeployedPopulation, connected
from tasks import values_in
from workers import PLAN, fields_of, replying, tagged

LISTED = listing(a=12, b=2)  # PLAN: 12 clients, 4 rounds of 3, 2 epochs
WITHOUT = {"unready": UnreadyNodes.without}


@pytest.fixture(autouse=True)
def _impatient(monkeypatch, caplog):
    monkeypatch.setattr(members, "PAUSE", 0.01)
    caplog.set_level(logging.INFO, logger="server")


def nodes_in(folder):
    return {name for name, key in KEYS.items() if key in roster_in(folder).nodes}


def heard(releases):
    return [client for release in releases for client in release.answered]


def saying(*answers):
    """Return a node that gives these answers to queries in turn, the last one again and again; None is silence."""
    left = list(answers)

    def say(message):
        say.asked.append(message)
        found = left.pop(0) if len(left) > 1 else left[0]
        return found and found(message)

    say.asked = []
    return say


# who the clients are, and where they are asked


def test_a_client_is_a_nodes_key_and_the_nodes_number_for_it_and_its_own_node_is_asked(tmp_path):
    strategy, grid, releases = deployed(tmp_path, {"a": 5, "b": 7})
    start(strategy, grid, 8)
    names = [f"{KEYS['a']}:{k}" for k in range(5)] + [f"{KEYS['b']}:{k}" for k in range(7)]
    assert sorted(heard(releases[:4])) == sorted(heard(releases[4:])) == sorted(names)
    for message in tasks_in(grid):
        name = next(name for name, number in grid.ids.items() if number == message.metadata.dst_node_id)
        assert all(fields[wire.CLIENT].startswith(f"{KEYS[name]}:") for fields in fields_of(message))


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
        own = tagged(fields_of(message)[0], message, whole.tobytes())
        return replying(message, own, *[wire.NO_VALUES] * (len(parts) - 1))

    strategy, grid, releases = deployed(tmp_path, {"a": 12}, train=summing)
    start(strategy, grid)
    assert len(releases[0].answered) == 3
    moved = np.linalg.norm(strategy.state.model) * PLAN.denominator
    assert moved <= PLAN.bounds.radius * (
        1 + 1e-5
    )  # one client's vector at most, where the lengths happen to agree


def test_cohorts_of_an_epoch_are_disjoint_and_follow_from_roster_and_seed_alone():
    roster = Roster(1, {"b": 20, "a": 3}, {"a": "0"}, ("b",))
    assert Roster.from_json(roster.to_json()) == roster
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


# how many clients count


@pytest.mark.parametrize(
    ("listed", "most", "counted", "said"),
    [
        (EVERY_NODE, 6, (6, 6), "declares 1000000000 clients; max_clients_per_node=6"),
        (listing(a=5, b=8), 10_000, (5, 7), "hospital-a declares 1000000000 clients; most_clients=5"),
        (listing(a=50, b=8), 6, (6, 6), "hospital-a declares 1000000000 clients; max_clients_per_node=6"),
    ],
)
def test_a_node_counts_for_no_more_clients_than_allowed_or_agreed(
    tmp_path, caplog, listed, most, counted, said
):
    strategy, grid, releases = deployed(tmp_path, {"a": 10**9, "b": 7}, listed, max_clients_per_node=most)
    start(strategy, grid, 4)
    assert roster_in(tmp_path).nodes == {KEYS["a"]: counted[0], KEYS["b"]: counted[1]}
    assert len(set(heard(releases))) == 12
    assert said in caplog.text
    assert (f"{listed.called(KEYS['b'])} declares" in caplog.text) == (counted[1] < 7)


NO_COUNTS = [
    *(holding(value) for value in ("12", -1, 12.0, True, [12], b"12")),
    lambda message: None,
    lambda message: Message(Error(2, "x"), reply_to=message),
    lambda message: Message(RecordDict(), reply_to=message),
]


@pytest.mark.parametrize("say", NO_COUNTS)
def test_an_answer_that_is_no_count_is_no_answer(tmp_path, say):
    strategy, grid, _ = deployed(tmp_path, {"a": 12, "b": say}, query_timeout=0.1)
    start(strategy, grid)
    assert roster_in(tmp_path).nodes == {KEYS["a"]: 12}


@pytest.mark.parametrize("said", [True, 0, "no", b"", [False]])
def test_only_a_plain_no_makes_a_node_not_ready(tmp_path, said):
    record = ConfigRecord({wire.CLIENTS: 6, wire.READY: said})
    say = lambda message: Message(RecordDict({wire.HELD: record}), reply_to=message)  # noqa: E731
    strategy, grid, _ = deployed(tmp_path, {"a": 12, "b": say})
    start(strategy, grid)
    assert nodes_in(tmp_path) == {"a", "b"}


# waiting for an epoch's beginning


WAITING = {
    "too few": ({"a": 5, "b": 6}, "11 clients behind 2 .*min_available=12 are needed", "Start more nodes"),
    "not ready": ({"a": 12, "b": unready(6)}, "; not ready: hospital-b", "unready_nodes=without"),
    "other code": ({"a": 9, "b": answer_other_code}, "; with other code than the run: hospital-b", "Install the run's code"),
    "silent": ({"a": 11, "b": lambda message: None}, "; without an answer: hospital-b", "Start more nodes"),
    "away": ({"a": 11}, "; not connected: hospital-b", "Start more nodes"),
    "not listed": ({"a": 5, "b": 6, "c": 1000}, "11 clients behind 2", "Start more nodes"),
    "silent after": ({"a": 12, "b": (unready(6), None)}, "; not ready: hospital-b", "unready_nodes=without"),
}  # fmt: skip


@pytest.mark.parametrize("why", WAITING)
def test_an_epoch_waits_and_the_log_and_the_error_say_for_what(tmp_path, caplog, why):
    """Nothing is begun, so nothing is spent; what is said of a node is said once."""
    held, said, advice = WAITING[why]
    held = {name: saying(*one) if isinstance(one, tuple) else one for name, one in held.items()}
    strategy, grid, _ = deployed(tmp_path, held, listing(a=12, b=12), timeout=0.3, query_timeout=0.05)
    with pytest.raises(RunStoppedError, match=rf"after 0\.3 seconds .*{said}.*{advice}"):
        start(strategy, grid)
    assert re.search(f"waiting: .*{said}", caplog.text)
    assert not (tmp_path / ROSTER).exists()
    assert tasks_in(grid) == []
    assert strategy.state.ledger.entries == ()
    assert caplog.text.count("takes no part") == (why in ("other code", "not listed"))


def test_a_node_that_is_not_ready_counts_for_no_available_client(tmp_path):
    assert Attendance(1).unready is UnreadyNodes.wait  # the policy where none is given
    strategy, grid, _ = deployed(tmp_path, {"a": 11, "b": unready(6)}, **WITHOUT)
    with pytest.raises(RunStoppedError, match=r"11 clients behind 1 .*Start more nodes"):
        start(strategy, grid)


# Answers of two nodes in turn, and how often each is asked before both take part.
TAKE_PART = {
    "at once": ([holding(12)], [holding(6)], 1, 1),
    "once it is ready": ([holding(12)], [unready(6), unready(6), holding(6)], 2, 4),
    "once it has the code": ([holding(6)], [answer_other_code, answer_other_code, holding(6)], 2, 4),
    # Its file was exchanged meanwhile, which no disconnection shows: the answer of the epoch is the new one.
    "asked once more": ([holding(12), holding(9)], [unready(6), holding(6)], 2, 3),
}


@pytest.mark.parametrize("how", TAKE_PART)
def test_those_who_were_there_before_others_are_asked_once_more_when_all_are(tmp_path, how):
    first, second = (saying(*answers) for answers in TAKE_PART[how][:2])
    strategy, grid, _ = deployed(tmp_path, {"a": first, "b": second}, timeout=5)
    start(strategy, grid)
    counts = {"asked once more": 9, "once it has the code": 6}
    assert roster_in(tmp_path).nodes == {KEYS["a"]: counts.get(how, 12), KEYS["b"]: 6}
    assert len(first.asked) == TAKE_PART[how][2]
    assert len(second.asked) <= TAKE_PART[how][3]


def test_a_node_that_leaves_is_not_waited_for(tmp_path):
    def leaving(message):
        grid.away.add("b")
        return unready(6)(message)

    strategy, grid, _ = deployed(tmp_path, {"a": 12, "b": leaving}, timeout=5)
    start(strategy, grid)
    assert nodes_in(tmp_path) == {"a"}


@pytest.mark.parametrize("how", ["away between", "another id"])
def test_a_node_that_comes_back_while_an_epoch_waits_is_asked_again(tmp_path, how):
    """It was started again with data that do not load; what it said before counts no longer."""
    first, passes = saying(holding(12), unready(5)), []

    def waited_for(message):
        passes.append(message)
        if how == "another id":
            grid.ids["a"] = 500
        elif len(passes) in (2, 4):
            (grid.away.add if len(passes) == 2 else grid.away.discard)("a")
        return unready(6)(message)

    strategy, grid, _ = deployed(tmp_path, {"a": first, "b": waited_for}, listing(a=12, b=6), timeout=1)
    with pytest.raises(RunStoppedError, match="not ready: hospital-a, hospital-b"):
        start(strategy, grid)
    assert [message.metadata.dst_node_id for message in first.asked][:2] == [
        100,
        500 if how == "another id" else 100,
    ]


# what is said of nodes


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


LEFT_OUT = {
    "hung": (lambda message: None, "is connected and did not say how many clients it holds"),
    "other code": (answer_other_code, "has other code than the run"),
    "not ready": (unready(6), "is not ready"),
    "empty": (holding(0), "holds no client"),
}


@pytest.mark.parametrize("listed", [LISTED, EVERY_NODE], ids=["a list", "none"])
@pytest.mark.parametrize("why", LEFT_OUT)
def test_a_connected_node_without_which_an_epoch_begins_is_named_with_its_reason_and_counted(
    tmp_path, caplog, why, listed
):
    """It is in no cohort, so that no round would speak of it; the next epoch has it."""
    say, reason = LEFT_OUT[why]
    strategy, grid, _ = deployed(tmp_path, {"a": 12, "b": say}, listed, query_timeout=0.05, **WITHOUT)
    start(strategy, grid)
    said = [text for text in caplog.messages if "begins without" in text]
    assert said == [f"node {listed.called(KEYS['b'])} {reason}: the epoch begins without it"]
    expected = 1 if listed is EVERY_NODE else 2
    assert strategy.population.presence().counts() == (expected, expected, 1)
    grid.query["b"] = holding(2)
    start(strategy, grid, 3)
    assert nodes_in(tmp_path) == {"a"}  # the epoch under way is as it began
    start(strategy, grid)
    assert nodes_in(tmp_path) == {"a", "b"}


def test_a_listed_node_that_is_away_is_named_in_each_epoch_and_counted_and_no_stranger_is(tmp_path, caplog):
    strategy, grid, _ = deployed(tmp_path, {"a": 12, "b": 2, "c": 6}, LISTED)
    start(strategy, grid)
    assert "begins without" not in caplog.text
    assert strategy.population.presence().counts() == (2, 2, 2)
    grid.away = {"b", "c"}
    start(strategy, grid, 3)
    assert strategy.population.presence().counts() == (2, 1, 2)
    start(strategy, grid, 4)
    assert strategy.population.presence().counts() == (2, 1, 1)
    (said,) = [text for text in caplog.messages if "begins without" in text]
    assert said.startswith("node hospital-b is in the list of nodes and not connected")
    assert said.endswith(KEYS["b"])


def test_a_node_that_answered_and_hangs_when_all_are_asked_once_more_is_named(tmp_path, caplog):
    """What it said before counts no longer; nor is a stranger named, whose answer nobody asked for."""
    held = {"a": saying(None, None, holding(12)), "b": saying(holding(6), None), "c": 6}
    strategy, grid, _ = deployed(tmp_path, held, listing(a=12, b=12), query_timeout=0.05, timeout=5)
    start(strategy, grid)
    assert len(held["b"].asked) == 2
    (said,) = [text for text in caplog.messages if "begins without" in text]
    assert said.startswith("node hospital-b is connected and did not say how many")


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
    told = [text for text in caplog.messages if "not in the list of nodes: it takes no part" in text]
    assert [KEYS["b"] in text for text in told] == [True] * PLAN.participation.epochs


def test_logs_call_nodes_by_name_and_files_by_key(tmp_path, caplog):
    strategy, grid, releases = deployed(tmp_path, {"a": 9, "b": 7}, listing(a=6, b=8))
    start(strategy, grid)
    grid.away = {"b"}
    start(strategy, grid)
    assert "node hospital-b is not connected" in caplog.text
    with_keys = [text for text in caplog.messages if any(key in text for key in KEYS.values())]
    assert all("takes part with" in text for text in with_keys)  # where name and key are joined
    assert "hospital" not in (tmp_path / ROSTER).read_text()
    assert {client.partition(":")[0] for client in heard(releases)} <= set(KEYS.values())


def continued(folder, rounds, before, after):
    """A run that continues after its first round in another process, with another list of nodes; its grid and releases."""
    strategy, grid, first = deployed(folder, {"a": 6, "b": 6}, before)
    start(strategy, grid)
    again, grid, more = deployed(folder, {"a": 6, "b": 6, "c": 9}, after, state=strategy.state, least=6)
    start(again, grid, rounds)
    return grid, first + more


def test_a_list_that_changed_in_mid_epoch_holds_from_the_next_one_on_and_that_is_said(tmp_path, caplog):
    _, releases = continued(tmp_path, 3, listing(a=6, b=6), listing(a=2, b=6, c=9))
    assert roster_in(tmp_path).nodes == {KEYS["a"]: 6, KEYS["b"]: 6}
    assert len(heard(releases)) == len(set(heard(releases))) == 12
    assert (
        "node hospital-a counts for 6 clients until epoch 1 ends, as when it began; after that for 2"
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
    said = f"node {KEYS['a']} is no longer in the list of nodes: its 6 clients are silent until epoch 1 ends"
    assert said in caplog.text


@pytest.mark.parametrize("lists", [(EVERY_NODE, listing(a=6, b=6)), (listing(a=6, b=6), EVERY_NODE)])
def test_a_run_that_had_no_list_continues_with_one_and_the_other_way_round(tmp_path, lists):
    """Record and roster call nodes by their keys, with a list and without."""
    _, releases = continued(tmp_path, 3, *lists)
    assert len(heard(releases)) == len(set(heard(releases))) == 12


def test_two_nodes_of_one_name_or_one_key_are_refused():
    with pytest.raises(SettingError, match="two nodes are called x"):
        KnownNodes((KnownNode("x", LINES["a"], 1), KnownNode("x", LINES["b"], 1)))
    with pytest.raises(SettingError, match="x and y have the same public key"):
        KnownNodes((KnownNode("x", LINES["a"], 1), KnownNode("y", f"{LINES['a']} other comment", 1)))

"""Real SuperLink and SuperNode processes with TLS and node keys, on the loopback interface."""

import json
import sys
import time
from itertools import pairwise

import pytest

from deployments import DATA, finished, processes_that_know, released, wait_for
from experiments.deployment.loopback import WARM, Loopback, free_port, make_node_key
from runs import metrics, summary
from server.cohort import Roster
from wire import TcpCounter, count as count_bytes

pytestmark = pytest.mark.deployment

# A node is noticed to be lost after twice its heartbeat interval, which Flower fixes at 30 seconds for its own
# command: here a node that says 10, the least that a SuperLink takes.
SHORT_HEARTBEAT = [
    *WARM,
    sys.executable,
    "-c",
    "import flwr.common.constant as constant; constant.HEARTBEAT_DEFAULT_INTERVAL = 10\n"
    "from flwr.supernode.cli.flower_supernode import flower_supernode; flower_supernode()",
]
# A node that answers the first message, the query, and after that announces its replies and sends no part of them.
ANNOUNCES_ONLY = [
    *WARM,
    sys.executable,
    "-c",
    "import time; import flwr.supernode.start_client_internal as internal\n"
    "send, calls = internal.push_object_contents_from_iterable, []\n"
    "def announce_only(*given, **more):\n"
    "    calls.append(1)\n"
    "    return send(*given, **more) if len(calls) == 1 else time.sleep(10**6)\n"
    "internal.push_object_contents_from_iterable = announce_only\n"
    "from flwr.supernode.cli.flower_supernode import flower_supernode; flower_supernode()",
]


def test_killed_nodes_and_killed_servers(tmp_path):
    directory = tmp_path / "r"
    settings = (
        f"run.directory={directory} {DATA} population.min_available=12 population.cohort_size=6 "
        "population.epochs=2 run.checkpoint_every=100"
    )
    with Loopback() as loopback:
        folder = loopback.folder
        loopback.start_superlink()
        for node, first in (("a", 0), ("b", 6)):
            loopback.register(node)
            loopback.start_supernode(node, f"clients=6 first={first} {DATA}", command=SHORT_HEARTBEAT)
        process = loopback.submit(settings)

        # A node killed in round 2 counts as zero vectors; its clients are spent.
        wait_for(lambda: released(directory) == 1, loopback, process)
        loopback.kill("b")
        wait_for(lambda: released(directory) == 2, loopback, process)
        assert [row["replies"] for row in metrics(directory)] == [6, 6]

        # Started again, it takes part in the next epoch, which waits for it.
        loopback.start_supernode("b", f"clients=6 first=6 {DATA}", command=SHORT_HEARTBEAT)
        wait_for(lambda: released(directory) == 3, loopback, process)
        assert "ROUND 3" in loopback.log("b").read_text()
        roster = (directory / "checkpoint/roster.json").read_text()
        assert Roster.from_json(roster).epoch == 1
        assert sorted(Roster.from_json(roster).nodes.values()) == [6, 6]

        # The server's machine loses power in round 4: SuperLink and ServerApp are gone.
        loopback.kill("superlink")
        assert released(directory) == 3
        loopback.stop("run")
        loopback.start_superlink()
        process = loopback.submit(f"{settings} run.resume=true")
        finished(loopback, directory, process)
        assert (directory / "checkpoint/roster.json").read_text() == roster
    assert [row["round"] for row in metrics(directory)] == [1, 2, 3, 4]
    assert [row["replies"] for row in metrics(directory)] == [6] * 4
    assert not list(directory.rglob("secrets*"))
    assert not folder.exists()
    assert processes_that_know(str(folder)) == []


def test_a_node_that_announces_replies_and_never_sends_them_holds_no_round_beyond_its_deadline(tmp_path):
    """Flower itself would wait minutes for each; the other node is heard in every round.

    Both are in the list of nodes, the other one for fewer clients than it declares, and a third node is not.
    """
    directory = tmp_path / "r"
    settings = (
        f"run.directory={directory} {DATA} population.min_available=12 population.cohort_size=6 "
        f"population.epochs=1 engine.round_timeout=25 population.nodes={tmp_path / 'nodes.yaml'}"
    )
    with Loopback() as loopback:
        loopback.start_superlink()
        for node, clients, first in (("a", 8, 0), ("b", 6, 6), ("c", 2, 0)):
            loopback.register(node)
            command = {"command": ANNOUNCES_ONLY} if node == "b" else {}
            loopback.start_supernode(node, f"clients={clients} first={first} {DATA}", **command)
        document = json.loads(loopback.nodes.read_text())
        document["nodes"] = [
            {**node, "name": f"hospital-{node['name']}", "most_clients": 6}
            for node in document["nodes"]
            if node["name"] != "c"
        ]
        (tmp_path / "nodes.yaml").write_text(json.dumps(document))
        (tmp_path / "nodes.yaml").chmod(0o600)
        process, times = loopback.submit(settings), []
        for happened in (
            (directory / "checkpoint/roster.json").exists,
            lambda: released(directory) == 1,
            lambda: released(directory) == 2,
        ):
            wait_for(happened, loopback, process)
            times.append(time.monotonic())
        finished(loopback, directory, process)
        assert "ROUND 1" in loopback.log("b").read_text()
        said = loopback.log("run").read_text()
        assert "node hospital-a declares 8 clients; most_clients=6 were agreed, and take part" in said
        assert "node hospital-b takes part with 6 clients" in said
        assert "is connected and not in the list of nodes: it takes no part" in said
        asked = {node: "Receiving: " in loopback.log(node).read_text() for node in "abc"}
        assert asked == {"a": True, "b": True, "c": False}  # not even how many clients it holds
    replies = [row["replies"] for row in metrics(directory)]
    assert sum(replies) == 6  # all clients of the one node, none of the other
    assert all(0 < count < 6 for count in replies)
    for begun, ended in pairwise(times):  # 4 s: for tasks to be made and sent, for the sum and the noise
        assert 25 <= ended - begun < 25 + 1 + 4


def refusal(loopback, *arguments):
    """What a SuperNode prints that the SuperLink does not take, once it has ended by itself."""
    where = ("--superlink", f"127.0.0.1:{loopback.port}", "--port", str(free_port()), "--max-retries", "1")
    process = loopback.start("stranger", [*SHORT_HEARTBEAT, *where, *arguments])
    wait_for(lambda: process.poll() is not None, loopback)
    assert process.returncode != 0
    loopback.kill("stranger")
    said = loopback.log("stranger").read_text()
    loopback.log("stranger").unlink()
    return said


def test_what_travels_is_what_is_said(tmp_path):
    """A million parameters at keep 0.01: at most 1.1 times the values and 4 KiB a client.

    On the wire counts every byte that the node sends from when it has the model until the round is released: TLS,
    headers, signatures, polling and heartbeats.
    """
    data = "dataset=synthetic dataset.clients=6 dataset.features=1000 dataset.classes=10"
    with Loopback() as loopback, TcpCounter(loopback.port) as counter:
        loopback.start_superlink()
        for node in ("a", "c"):
            loopback.register(node)
        loopback.start_supernode("a", f"clients=4 {data}", port=counter.port)
        loopback.start_supernode("c", "clients=2 dataset=by_user_npz dataset.path=/nowhere.npz")
        for value_type, size in (("float32", 4), ("int8", 1)):
            directory = tmp_path / value_type
            measured = count_bytes(loopback, counter, directory, data, value_type, 6, 4)
            values = 0.01 * 2**20 * size
            assert summary(directory)["parameters"] == 1_000_900
            assert summary(directory)["uplink_bytes_per_client"] == pytest.approx(values)
            assert metrics(directory)[0]["replies"] == 6
            print(value_type, measured)
            for count in measured.values():
                assert values * 0.98 < count <= 1.1 * values + 4096
        # A node whose data cannot be loaded sends zeros for the clients that it declared, and says why.
        assert "takes part with a zero update" in loopback.log("c").read_text()
        assert "nowhere.npz does not exist" in loopback.log("c").read_text()


def test_strangers_are_refused():
    """A key that is not registered, no key, and an authority that the node does not trust."""
    with Loopback() as loopback:
        loopback.start_superlink()
        make_node_key(loopback.folder, "unregistered")
        trusted = ("--root-certificates", loopback.authority)
        key = ("--auth-supernode-private-key", loopback.folder / "unregistered")
        for arguments, reason in (
            ((*trusted, *key), "code: 2004"),
            (trusted, "code: 2001"),
            (key, "CERTIFICATE_VERIFY_FAILED"),
        ):
            said = refusal(loopback, *arguments)
            assert "Failed to initialize the connection to the SuperLink" in said
            assert reason in said
            assert "SuperNode ID" not in said  # what a node prints once it is taken
        loopback.register("known")
        loopback.start_supernode("known", "clients=1")
        wait_for(lambda: "SuperNode ID" in loopback.log("known").read_text(), loopback)

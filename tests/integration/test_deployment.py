"""Real SuperLink and SuperNode processes with TLS and node keys, on the loopback interface."""

import contextlib
import json
import re
import sys

import pytest

from experiments.deployment.loopback import BIN, WARM, Loopback, free_port, make_node_key
from nodes import DATA, LIMIT, finished, processes_that_know, released, start_way, wait_for
from runs import metrics, summary
from scraping import OF_A_SIMULATION, OF_NODES, objects, samples

pytestmark = pytest.mark.deployment

PARAMETERS = 1_000_900

# A node that answers queries, and from the first task on announces its replies and sends no part of them.
ANNOUNCES_ONLY = """
import time
import flwr.supernode.start_client_internal as internal
send, log, rounds = internal.push_object_contents_from_iterable, internal.log, []
def noting(level, text, *given):
    rounds.extend(given[1:] if "ROUND" in text else ())
    log(level, text, *given)
def announce_only(*given, **more):
    return time.sleep(10**6) if rounds else send(*given, **more)
internal.log, internal.push_object_contents_from_iterable = noting, announce_only
from flwr.supernode.cli.flower_supernode import flower_supernode
flower_supernode()
"""


def of_ours(text):
    """Return the objects in a log in which Flower's own programs write too; no line of ours is none."""
    assert not re.search(r"(?m)^(INFO|WARNING) (server|experiments|client)", text)
    return objects("\n".join(line for line in text.splitlines() if line.startswith('{"time"')))


@pytest.mark.slow
def test_a_node_that_announces_replies_and_never_sends_them_holds_no_round_beyond_its_deadline(
    tmp_path, monkeypatch
):
    """Flower itself would wait minutes for each; the other node is heard in every round, and Prometheus is told.

    Both are in the list of nodes, the other one for fewer clients than it declares, and a third node is not.
    """
    directory, port, seen = tmp_path / "r", free_port(), []
    monkeypatch.setenv("FEDMF_LOG", "json")  # as in a unit
    settings = (
        f"run.directory={directory} {DATA} population.min_available=12 population.cohort_size=6 run.log=json "
        f"population.epochs=1 engine.round_timeout=25 population.nodes={tmp_path / 'nodes.yaml'} run.metrics_port={port}"
    )

    def has_released(rounds):
        with contextlib.suppress(OSError):  # it does not listen yet, or no more
            seen.append(samples(port)[0])
        return (directory / "checkpoint/roster.json").exists() and released(directory) == rounds

    with Loopback() as loopback:
        loopback.start_superlink()
        for node, clients, first in (("a", 8, 0), ("b", 6, 6), ("c", 2, 0)):
            loopback.register(node)
            command = {"command": [*WARM, sys.executable, "-c", ANNOUNCES_ONLY]} if node == "b" else {}
            loopback.start_supernode(node, f"clients={clients} first={first} {DATA}", **command)
        document = json.loads(loopback.nodes.read_text())
        document["nodes"] = [
            {**node, "name": f"hospital-{node['name']}", "most_clients": 6} for node in document["nodes"][:2]
        ]
        (tmp_path / "nodes.yaml").write_text(json.dumps(document))
        (tmp_path / "nodes.yaml").chmod(0o600)
        process = loopback.submit(settings)
        wait_for(lambda: has_released(2), loopback, process)
        finished(loopback, directory, process)
        for name in ("a", "superlink"):
            loopback.stop(name)  # their last words too
        logs = {name: loopback.log(name).read_text() for name in ("superlink", "run", *"abc")}
    assert "ROUND 1" in logs["b"]
    assert "is not in the list of nodes: the epoch begins without it" in logs["run"]
    asked = {node: "Receiving: " in logs[node] for node in "abc"}
    assert asked == {"a": True, "b": True, "c": False}  # not even how many clients it holds
    replies = [row["replies"] for row in metrics(directory)]
    assert sum(replies) == 6  # all clients of the one node, none of the other
    assert all(0 < count < 6 for count in replies)
    # A pull that a round waited for to its end, minutes later, would be an error of Flower's, and no silence.
    assert logs["run"].count("not answered in time") == 2
    assert "a reply could not be read" not in logs["run"]

    last = [values for values in seen if "fedmf_round_nodes" in values][-1]
    assert last["fedmf_rounds_released"] >= 1
    assert set(last) == OF_A_SIMULATION | OF_NODES
    counted = [
        last[f"fedmf_{name}"] for name in ("round_nodes", "round_nodes_connected", "round_nodes_silent")
    ]
    assert counted == [2, 2, 1]
    assert any(values.get("fedmf_waiting_for_nodes") for values in seen)

    # The server app's log, as `flwr log` shows it, names the run as Flower does; so does the node's.
    run_id = re.search(r"run[^\d\n]*(\d{6,})", logs["run"])[1]
    served = of_ours(logs["run"][logs["run"].index('{"time"') :])
    named = [entry["run"] for entry in served if entry["logger"].startswith(("server.", "experiments."))]
    assert {*named} == {run_id}  # Flower's own first lines come before a run has a name
    assert {entry["run"] for entry in of_ours(logs["a"]) if "run" in entry} <= {run_id}
    of_ours(logs["superlink"])
    said = [entry["message"] for entry in served]
    for text in (
        "node hospital-a declares 8 clients; 6 of them take part",
        "node hospital-b takes part with 6 clients",
        "epoch 1 begins with 12 clients",
        "done: accuracy",
        f":{port}/metrics",
    ):
        assert any(text in message for message in said), text


def refusal(loopback, *arguments):
    """What a SuperNode prints that the SuperLink does not take, once it has ended by itself."""
    where = ("--superlink", f"127.0.0.1:{loopback.port}", "--port", str(free_port()), "--max-retries", "1")
    process = loopback.start("stranger", [BIN / "flower-supernode", *where, *arguments])
    wait_for(lambda: process.poll() is not None, loopback)
    assert process.returncode != 0
    loopback.kill("stranger")
    said = loopback.log("stranger").read_text()
    loopback.log("stranger").unlink()
    return said


def passed(loopback, name):
    """Return how many bytes the forwarder has passed on."""
    return sum(map(int, re.findall(rf"(?m)^{name} (\d+)$", loopback.log("way").read_text())))


def count(loopback, directory, data, value_type):
    """Return a client's uplink bytes in a run of one round: nominal, as the SuperLink reports, on the wire."""
    arrived = passed(loopback, "received")
    process = loopback.submit(
        f"run.directory={directory} {data} model=mlp model.hidden=990 population.min_available=6 "
        f"population.cohort_size=6 population.epochs=1 compression.keep_probability=0.01 compression.value_type={value_type}"
    )
    wait_for(lambda: passed(loopback, "received") > arrived + 4 * PARAMETERS, loopback, process)
    before = passed(loopback, "sent")
    wait_for(lambda: released(directory) == 1, loopback, process)
    on_the_wire = passed(loopback, "sent") - before
    process.wait(timeout=LIMIT)  # it follows the log until the run has ended
    runs = json.loads(loopback.call("flwr", "ls", "loopback", "--format", "json"))["runs"]
    newest = max(runs, key=lambda run: run["pending-at"])
    (row,) = metrics(directory)
    assert row["replies"] == 6
    return row["uplink_bytes"] / 6, newest["network-traffic"]["inbound-bytes"] / 6, on_the_wire / 4


@pytest.mark.slow
def test_what_travels_is_what_is_said(tmp_path):
    """A million parameters at keep 0.01: at most 1.1 times the values and 4 KiB a client.

    On the wire counts every byte that the node sends from when it has the model until the round is released: TLS,
    headers, signatures, polling and heartbeats.
    """
    data = "dataset=synthetic dataset.clients=6 dataset.features=1000 dataset.classes=10"
    nowhere = "clients=2 dataset=by_user_npz dataset.path=/nowhere.npz public={shape:[1000],classes:10}"
    port = free_port()
    with Loopback() as loopback:
        loopback.start_superlink()
        start_way(loopback, port)
        for node in ("a", "c"):
            loopback.register(node)
        loopback.start_supernode("a", f"clients=4 {data}", port=port)
        loopback.start_supernode("c", nowhere)
        for value_type, size in (("float32", 4), ("int8", 1)):
            directory = tmp_path / value_type
            measured = count(loopback, directory, data, value_type)
            values = 0.01 * 2**20 * size
            assert summary(directory)["parameters"] == PARAMETERS
            assert summary(directory)["uplink_bytes_per_client"] == pytest.approx(values)
            print(value_type, dict(zip(("nominal", "reported", "on the wire"), measured, strict=True)))
            assert all(values * 0.98 < each <= 1.1 * values + 4096 for each in measured)
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
        folder = loopback.folder
    assert not folder.exists()
    assert processes_that_know(str(folder)) == []

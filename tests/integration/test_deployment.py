"""Real SuperLink and SuperNode processes with TLS and node keys, on the loopback interface."""

import contextlib
import json
import re
import sys

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import ConfigRecord
from flwr.supernode.start_client_internal import _init_connection

from experiments.deployment.loopback import BIN, WARM, Loopback, free_port, make_node_key
from fedmf.sealing import PUBLIC, RUN_KEY, about_reply, about_task, node_channel, private_box_key, unseal
from fedmf.updates import wire
from nodes import DATA, LIMIT, finished, processes_that_know, released, start_way, wait_for
from revealed import OF_A_SIMULATION, OF_NODES, objects, samples
from runs import metrics, summary
from server.known_nodes import KnownNode

pytestmark = [pytest.mark.slow, pytest.mark.deployment]

PARAMETERS = 1_000_900

# A node that holds what HOLDS names of the first round, "task" or "reply", while the folder HELD has a file of that name, with
# the run and objects that the SuperLink has: it does not pull the task, it announces the reply and sends all but the last object.
HOLDING = [*WARM, sys.executable, "-c", """
import json, os, time
from pathlib import Path
import flwr.supernode.start_client_internal as internal
pull, send, log, first = internal.pull_objects, internal.push_object_contents_from_iterable, internal.log, []
def noting(level, text, *given):
    first.extend(given if "ROUND" in text and given[1] == "1" else ())
    log(level, text, *given)
def hold(name, objects):
    file = Path(os.environ["HELD"], name)
    if first and name in os.environ["HOLDS"]:
        file.with_suffix(".new").write_text(json.dumps([first[0], *objects]))
        file.with_suffix(".new").rename(file)
    while file.exists():
        time.sleep(0.1)
def hold_task(objects, **more):
    hold("task", objects)
    return pull(objects, **more)
def hold_reply(contents, **more):
    *most, last = contents
    send(most, **more)
    hold("reply", [name for name, _ in most])
    first.clear()
    send([last], **more)
internal.log, internal.pull_objects, internal.push_object_contents_from_iterable = noting, hold_task, hold_reply
from flwr.supernode.cli.flower_supernode import flower_supernode
flower_supernode()
"""]  # fmt: skip


def test_a_registered_node_that_pulls_anothers_task_and_reply_can_open_neither(tmp_path, monkeypatch):
    """A SuperLink gives any node the objects that it names; they open with the box key of the node that was asked alone."""
    monkeypatch.setenv("HELD", str(tmp_path))
    monkeypatch.setenv("HOLDS", "task and reply")
    run, boxes = f"run.directory={tmp_path / 'r'} {DATA} population.min_available=12 population.epochs=1", {}
    with Loopback() as loopback:
        loopback.start_superlink()
        for node in ("asked", "other"):
            loopback.register(node)
        loopback.start_supernode("asked", f"clients=12 {DATA}", command=HOLDING)
        process = loopback.submit(f"{run} population.cohort_size=6")
        private = load_ssh_private_key((loopback.folder / "other").read_bytes(), None)
        keys = (private, private.public_key())
        link = (f"127.0.0.1:{loopback.port}", False, loopback.authority.read_bytes(), keys)
        for held in (tmp_path / "task", tmp_path / "reply"):
            wait_for(held.exists, loopback, process)
            number, *objects = json.loads(held.read_text())
            with _init_connection(*link) as (_, _, _, _, _, pull, _, _):
                contents = [pull(number, name) for name in objects]
            (record,) = (content for content in contents if content.startswith(b"ConfigRecord"))
            boxes[held.name] = dict(ConfigRecord.inflate(record))
            for name in (wire.MASK_KEY, wire.CLIENT, wire.VALUES):
                assert name.encode() not in b"".join(contents)
            held.unlink()
        finished(loopback, tmp_path / "r", process)
        keys = [private_box_key(loopback.folder / f"{name}.box") for name in ("server", "asked", "other")]
    task, reply, opened = boxes["task"], boxes["reply"], []
    for own in keys[1:]:
        channel = node_channel(X25519PublicKey.from_public_bytes(task[RUN_KEY]), keys[0].public_key(), own)
        records = unseal(channel.to_node, task, about_task(number, "1", "train"))
        opened.append({*records, *unseal(channel.to_server, reply, about_reply(task))})
    assert opened == [{PUBLIC, wire.TASK, wire.HELD, wire.UPDATE}, set()]
    assert [row["replies"] for row in metrics(tmp_path / "r")] == [6, 6]


def test_a_node_that_announces_replies_and_never_sends_them_holds_no_round_beyond_its_deadline(
    tmp_path, monkeypatch
):
    """Flower itself would wait minutes for each; the other node is heard in every round, and Prometheus is told.

    Both are in the list of nodes, the other one for fewer clients than it declares, and a third node is not.
    """
    directory, port, seen = tmp_path / "r", free_port(), []
    monkeypatch.setenv("FEDMF_LOG", "json")  # as in a unit
    monkeypatch.setenv("HELD", str(tmp_path))
    monkeypatch.setenv("HOLDS", "reply")
    settings = (
        f"run.directory={directory} {DATA} population.min_available=12 population.cohort_size=6 run.log=json "
        f"population.epochs=1 engine.round_timeout=60 population.nodes={tmp_path / 'nodes.yaml'} run.metrics_port={port}"
    )

    def has_released(rounds):
        with contextlib.suppress(OSError):  # it does not listen yet, or no more
            values, labels = samples(port)
            assert not any(name in repr((values, labels)) for name in ("hospital", *keys))
            seen.append(values)
        return (directory / "checkpoint/roster.json").exists() and released(directory) == rounds

    with Loopback() as loopback:
        loopback.start_superlink()
        for node, clients, first in (("c", 2, 0), ("a", 8, 0), ("b", 6, 6)):  # the stranger is there first
            loopback.register(node)
            command = {"command": HOLDING} if node == "b" else {}
            loopback.start_supernode(node, f"clients={clients} first={first} {DATA}", **command)
        document = json.loads(loopback.nodes.read_text())
        document["nodes"] = listed = [
            {**node, "name": f"hospital-{node['name']}", "most_clients": 6} for node in document["nodes"][1:]
        ]
        (tmp_path / "nodes.yaml").write_text(json.dumps(document))
        (tmp_path / "nodes.yaml").chmod(0o600)
        keys = [KnownNode("hospital", node["public_key"], 6).key for node in listed]
        process = loopback.submit(settings)
        wait_for(lambda: has_released(2), loopback, process)
        finished(loopback, directory, process)
        for name in ("a", "superlink"):
            loopback.stop(name)  # their last words too
        logs = {name: loopback.log(name).read_text() for name in ("superlink", "run", *"abc")}
    assert "ROUND 1" in logs["b"]
    asked = [node for node in "abc" if "Receiving: " in logs[node]]
    assert asked == ["a", "b"]  # c is not even asked how many
    replies = [row["replies"] for row in metrics(directory)]
    assert sum(replies) == 6  # all clients of the one node, none of the other
    assert all(0 < count < 6 for count in replies)
    # A pull that a round waited for to its end, minutes later, would be an error of Flower's, and no silence.
    assert logs["run"].count("not answered in time") == 2
    assert "a reply could not be read" not in logs["run"]

    last = [values for values in seen if "fedmf_round_nodes" in values][-1]
    assert set(last) == OF_A_SIMULATION | OF_NODES
    for name, nodes in (("round_nodes", 2), ("round_nodes_connected", 2), ("round_nodes_silent", 1)):
        assert last[f"fedmf_{name}"] == nodes
    assert any(values.get("fedmf_waiting_for_nodes") for values in seen)

    # The server app's log, as `flwr log` shows it: objects that name the run as Flower does.
    ours = objects("\n".join(re.findall(r'(?m)^{"time".*"logger": "(?:server|experiments)\..*', logs["run"])))
    assert {entry["run"] for entry in ours} == {re.search(r"run[^\d\n]*(\d{6,})", logs["run"])[1]}


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
        assert "takes part with a zero update" in loopback.log("c").read_text()  # it has no data


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
    wait_for(lambda: processes_that_know(str(folder)) == [], loopback, limit=60)

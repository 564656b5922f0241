"""What a run reveals: to Prometheus on its port, in logs of which each line must be one JSON object, and secrets that stand in bytes.

Those bytes are files, the arrays of .npz files, the values of databases and Flower messages, in whatever form.
"""

import base64
import io
import json
import logging
import re
import sqlite3
import tempfile
import urllib.request
import zipfile
from contextlib import closing

import numpy as np
import prometheus_client
import pytest
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from prometheus_client.parser import text_string_to_metric_families

from experiments.session.progress import View
from fedmf.randomness import SecretKey

# Written out: a figure that is added is added here too, by somebody who has asked what covers it (docs/deployment.md).
OF_A_SIMULATION = {
    "fedmf_run_info",
    "fedmf_rounds_released",
    "fedmf_rounds_planned",
    "fedmf_epochs_begun",
    "fedmf_epochs_planned",
    "fedmf_clients",
    "fedmf_cohort_size",
    "fedmf_replies",
    "fedmf_round_seconds",
    "fedmf_last_round_timestamp_seconds",
    "fedmf_session_started_timestamp_seconds",
    "fedmf_epsilon_spent",
    "fedmf_epsilon_planned",
    "fedmf_delta",
    "fedmf_private",
    "fedmf_waiting_for_nodes",
}
WITH_A_LIMIT = {"fedmf_epsilon_limit"}
OF_NODES = {
    "fedmf_round_nodes",
    "fedmf_round_nodes_connected",
    "fedmf_round_nodes_silent",
    "fedmf_nodes_expected",
    "fedmf_nodes_connected",
    "fedmf_nodes_in_epoch",
    "fedmf_pulls_under_way",
}


def samples(port):
    """Return {name: value} of all samples, and {name: labels}."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=300) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    found = [sample for family in families for sample in family.samples]
    assert len({sample.name for sample in found}) == len(found)
    return {sample.name: sample.value for sample in found}, {sample.name: sample.labels for sample in found}


class Ports(list):
    """The ports of the servers that runs opened, the last one last."""


@pytest.fixture
def ports(monkeypatch):
    """Take note of the port of each run that chooses one."""
    ports, start = Ports(), prometheus_client.start_http_server

    def noted(*arguments):
        server, thread = start(*arguments)
        ports.append(server.server_port)
        return server, thread

    monkeypatch.setattr(prometheus_client, "start_http_server", noted)
    return ports


@pytest.fixture
def after_each_round(monkeypatch):
    """Return a function that lets another be called after each round, once its row is written."""
    show = View.show

    def let(look):
        def shown(*arguments):
            show(*arguments)
            look()

        monkeypatch.setattr(View, "show", shown)

    return let


TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


def objects(text):
    """Return the objects of a log, every line of which must be one of ours."""
    found = [json.loads(line) for line in text.splitlines()]
    for said in found:
        assert list(said)[:4] == ["time", "level", "logger", "message"]
        assert set(said) <= {"time", "level", "logger", "message", "run", "traceback"}
        assert TIME.fullmatch(said["time"])
        assert logging.getLevelName(said["level"]) in range(10, 60, 10)
    return found


def forms(key):
    """Return the ways in which bytes of a key may stand somewhere: raw, and as text in any encoding of numpy's or json's."""
    raw = key.reveal()
    texts = {
        raw.hex(),
        raw.hex().upper(),
        base64.b64encode(raw).decode(),
        base64.urlsafe_b64encode(raw).decode(),
    }
    texts |= {str(list(raw)), str(list(raw)).replace(" ", ""), str(int.from_bytes(raw)), repr(raw)[2:-1]}
    encodings = ("utf-8", "utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be")
    return {raw, raw[::-1]} | {text.encode(encoding) for text in texts for encoding in encodings}


def contents(data):
    """Yield `data` and, if it is an .npz file, each array in it: as bytes, each of its dtype's items narrowed too.

    Of a database, each text and each blob, put together from its chunks.
    """
    yield data
    if data.startswith(b"SQLite format 3"):
        yield from in_database(data)
        return
    if not (data.startswith(b"PK") and zipfile.is_zipfile(io.BytesIO(data))):
        return
    with np.load(io.BytesIO(data)) as stored:
        for name in stored.files:
            array = stored[name]
            yield name.encode() + b"\0" + array.tobytes()
            if array.dtype.kind in "iu":  # bytes widened to larger integers
                yield (array.astype("i8") & 255).astype(np.uint8).tobytes()
            if array.dtype.kind == "U":
                yield "\0".join(array.ravel().tolist()).encode()


def in_database(data):
    """Yield the contents of each value of a database of a run."""
    with tempfile.NamedTemporaryFile(suffix=".sqlite") as file:
        file.write(data)
        file.flush()
        with closing(sqlite3.connect(f"file:{file.name}?immutable=1", uri=True)) as connection:
            blobs = {}
            for owner, number, chunk in connection.execute(
                "SELECT owner, round, bytes FROM blob ORDER BY owner, round, number"
            ):
                blobs[owner, number] = blobs.get((owner, number), b"") + chunk
            rows = [
                row
                for table in ("release", "heard", "base")
                for row in connection.execute(f"SELECT * FROM {table}")
            ]
    yield repr(rows).encode()
    for value in (*blobs.values(), *(value for row in rows for value in row if isinstance(value, bytes))):
        yield from contents(value)


def leaked(data, keys):
    """Return which of `keys` (name -> key) stand somewhere in the bytes `data`."""
    held = list(contents(data))
    return {name for name, key in keys.items() if any(form in part for form in forms(key) for part in held)}


def in_files(folder, keys):
    """Return {file name: names of keys} of all files below `folder` that hold a key."""
    found = {path.name: leaked(path.read_bytes(), keys) for path in folder.rglob("*") if path.is_file()}
    return {name: held for name, held in found.items() if held}


def in_message(message):
    """Return all bytes of a Flower message, as it is serialised, and those of its metadata."""
    parts = [part.deflate() for part in get_all_nested_objects(message).values()]
    return b"\0".join([*parts, repr(vars(message.metadata)).encode()])


def chain(secret, *, epochs, rows, clients, steps):
    """Return the keys of a run's chain by name: of its epochs, noise rows and masks."""
    keys: dict[str, SecretKey] = {}
    for epoch in range(epochs):
        keys[f"epoch {epoch}"] = secret
        keys |= {f"noise {epoch} {row}": secret.derive("noise row", row) for row in range(rows)}
        keys |= {
            f"mask {epoch} {step} {c}": secret.mask_key(c, step) for step in range(steps) for c in clients
        }
        secret = secret.ratchet()
    return keys

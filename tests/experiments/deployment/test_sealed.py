"""A deployment whose messages are sealed: what a node that is given another's messages can do with them."""

import numpy as np
import pytest
import yaml
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from experiments.deployment import apps
from experiments.deployment.apps import run_settings
from experiments.deployment.loopback import make_box_key
from experiments.deployment.server import deploy
from experiments.engines.grid import call_app
from fedmf.errors import RunStoppedError, SettingError
from fedmf.randomness import SecretKey
from fedmf.sealing import RUN_KEY, SEALED, about_reply, about_task, public_box_key, seal, server_channel
from fedmf.updates import wire
from fedmf.updates.wire import Turn, with_tag
from nodes import DATA, LINES, TWO, Signed, context
from runs import metrics, model
from server.sealed_grid import SealedGrid

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("in_this_process")]

RUN = (
    f"{DATA} population.cohort_size=4 population.epochs=1 privacy.epsilon=null privacy.noise_multiplier=0 "
    "compression.keep_probability=1 population.min_available=12 engine.node_timeout=0.05 engine.round_timeout=60"
)


class Deployment:
    """Two nodes, sealed or not, and all that has passed between them and the server, as Flower would store it.

    `listed` replaces the public box keys, by node, that the list of nodes has.
    """

    def __init__(self, folder, *, is_sealed=True, listed=None):
        folder.mkdir(exist_ok=True)
        self.server = make_box_key(folder / "server.box")
        self.boxes = {name: make_box_key(folder / f"{name}.box") for name in TWO}
        boxes = ({name: {"box_key": box} for name, box in self.boxes.items()} if is_sealed else {}) | (
            listed or {}
        )
        rows = [
            {"name": f"hospital-{name}", "public_key": LINES[name], "most_clients": 12, **boxes.get(name, {})}
            for name in TWO
        ]
        of_server = {"server_box_key": str(folder / "server.box")} if is_sealed else {}
        file = folder / "nodes.yaml"
        file.write_text(yaml.safe_dump({"nodes": rows, **of_server}))
        file.chmod(0o600)
        self.run = f"run.directory={folder / 'r'} population.nodes={file} {RUN}"
        self.tasks, self.replies = [], []
        self.folder, self.is_sealed = folder, is_sealed
        answers = {name: self.answering(name) for name in TWO}
        self.grid = Signed(answers, dict(answers))

    def context(self, name):
        boxes = {"box_key": str(self.folder / f"{name}.box"), "server_box_key": self.server}
        return context(self.run, overrides=TWO[name], **(boxes if self.is_sealed else {}))

    def answering(self, name):
        def answer(message):
            self.tasks.append(RecordDict(dict(message.content)))
            reply = call_app(apps.client_app, message, self.context(name))
            self.replies.append(reply.content if reply.has_content() else None)
            return reply

        return answer

    def deploy(self):
        deploy(run_settings(self.run), self.grid, self.run)
        return model(self.folder / "r")


def test_a_sealed_run_is_the_run_and_shows_no_record_of_it(tmp_path):
    plain, sealed = Deployment(tmp_path / "open", is_sealed=False), Deployment(tmp_path / "sealed")
    np.testing.assert_allclose(plain.deploy(), sealed.deploy(), rtol=1e-4, atol=1e-6)
    assert [row["replies"] for row in metrics(tmp_path / "sealed" / "r")] == [4] * 3
    assert any(wire.TASK in content for content in plain.tasks)  # what the others would show
    for content in (*sealed.tasks, *sealed.replies):
        assert {*content} <= {SEALED, wire.MODEL}
    kept = b"".join(value for content in sealed.tasks for value in content.config_records[SEALED].values())
    assert wire.MASK_KEY.encode() not in kept


LOUD = np.full(32, 0.2, "<f4").tobytes()  # would move the model, of 18 parameters in 32 rotated coordinates


def with_what_it_reads(deployment, message, task):
    """A registered node that is given another's task: it answers with values of its own under the mask keys that it finds."""
    if wire.TASK not in task:
        return {wire.UPDATE: ConfigRecord({wire.VALUES: [LOUD + bytes(16)] * 4})}
    epoch, step = (int(task[wire.TASK][name]) for name in (wire.EPOCH, wire.STEP))
    values = [
        with_tag(LOUD, SecretKey(key), Turn(message.metadata.run_id, epoch, step, client))
        for client, key in zip(task[wire.TASK][wire.CLIENT], task[wire.TASK][wire.MASK_KEY], strict=True)
    ]
    return {wire.UPDATE: ConfigRecord({wire.VALUES: values}), wire.HELD: deployment.held}


def by_a_key_of_its_own(deployment, message, task):
    """A box as the node makes it, by one who has the box of the task, and not the node's key."""
    own, other = (X25519PrivateKey.generate() for _ in range(2))
    channel = server_channel(own, other, public_box_key(deployment.boxes["b"]))
    record = ConfigRecord({wire.VALUES: [LOUD + bytes(16)] * 4})
    boxes = seal(channel.to_server, {wire.UPDATE: record.deflate()}, about_reply(task.get(SEALED, {})))
    return {SEALED: ConfigRecord(boxes)}


def of_the_task_before(deployment, message, task):
    """The node's own reply to another task."""
    return dict(deployment.replies_of_b[-2])


def nothing(deployment, message, task):
    """An empty reply, which is the zero vector for each client."""
    return {}


def spoilt(folder, forge, **how):
    """The model of a run without noise in which, but for the first time, `forge` answers in the place of node b."""
    deployment = Deployment(folder, **how)
    deployment.replies_of_b, honest = [], deployment.grid.train["b"]

    def answer(message):
        task = {name: dict(record) for name, record in message.content.config_records.items()}
        reply = honest(message)
        deployment.replies_of_b.append(reply.content)
        deployment.held = reply.content.config_records.get(wire.HELD)
        is_first = len(deployment.replies_of_b) == 1
        return reply if is_first else Message(RecordDict(forge(deployment, message, task)), reply_to=message)

    deployment.grid.train["b"] = answer
    model_then = deployment.deploy()
    assert len(deployment.replies_of_b) > 1
    return model_then


def test_who_answers_in_anothers_place_is_not_heard_and_without_boxes_would_be(tmp_path):
    """The tag of a reply depends on a mask key that a task in the open shows."""
    silent = spoilt(tmp_path / "silent", nothing)
    for forge in (with_what_it_reads, by_a_key_of_its_own, of_the_task_before):
        assert np.array_equal(spoilt(tmp_path / forge.__name__, forge), silent)
    forged = spoilt(tmp_path / "forged", with_what_it_reads, is_sealed=False)
    assert not np.allclose(forged, spoilt(tmp_path / "open", nothing, is_sealed=False), atol=1e-3)


def test_a_node_does_nothing_for_a_task_that_its_server_has_not_sealed(tmp_path, caplog):
    """One that is registered and knows the node's id can send it tasks: with its own mask key, or with the run's key again."""
    deployment = Deployment(tmp_path)
    stolen = []
    honest = deployment.grid.train["a"]
    deployment.grid.train["a"] = lambda message: stolen.append((message, message.content)) or honest(message)
    deployment.deploy()
    task, honestly = stolen[0]
    own = X25519PrivateKey.generate()
    channel = server_channel(own, own, public_box_key(deployment.boxes["a"]))
    record = ConfigRecord({wire.EPOCH: 0, wire.STEP: 0, wire.CLIENT: ["x:0"], wire.MASK_KEY: [bytes(32)]})
    about = about_task(task.metadata.run_id, task.metadata.group_id, task.metadata.message_type)
    boxes = seal(channel.to_node, {wire.TASK: record.deflate()}, about)
    arrays = task.content.array_records
    model = np.frombuffer(next(iter(arrays[wire.MODEL].values())).data, "<f4") + 1
    other = {
        wire.MODEL: ArrayRecord({wire.VECTOR: Array("float32", model.shape, wire.STYPE, model.tobytes())})
    }
    sealed, public = honestly.config_records[SEALED], own.public_key().public_bytes_raw()
    for records in (
        {**other, SEALED: sealed},  # the server's own box, with another model
        {**arrays, SEALED: ConfigRecord({RUN_KEY: public})},
        {**arrays, wire.TASK: record},
        {**arrays, SEALED: ConfigRecord({**boxes, RUN_KEY: public})},
        {**arrays, SEALED: ConfigRecord({**boxes, RUN_KEY: bytes(sealed[RUN_KEY])})},
        {**arrays, SEALED: ConfigRecord({RUN_KEY: b"short"})},
        {**arrays, SEALED: ConfigRecord({**sealed, "more": b"no box"})},
    ):
        task.content = RecordDict(records)
        reply = call_app(apps.client_app, task, deployment.context("a"))
        assert reply.has_error()
        assert reply.error.reason == "RunStoppedError"  # unsealed: no text of the node's own
    task.content = honestly
    assert not call_app(apps.client_app, task, deployment.context("a")).has_error()
    task.content = honestly
    with pytest.raises(RunStoppedError, match="its own log says why"):
        apps.client_app(task, context(deployment.run, overrides=TWO["a"]))
    assert "this node has no box_key" in caplog.text


def test_a_node_that_the_list_gives_no_box_key_is_refused_before_anything_is_sent(tmp_path):
    deployment = Deployment(tmp_path, listed={"b": {}})
    with pytest.raises(SettingError, match="a node has name, public_key, most_clients, box_key"):
        deployment.deploy()
    assert not deployment.grid.asked


def test_what_a_node_seals_that_is_no_record_counts_as_nothing(tmp_path):
    """Its box is authentic, so that it is opened, and what is in it is the node's own affair."""
    deployment = Deployment(tmp_path)
    deployment.deploy()
    grid = SealedGrid(deployment.grid, X25519PrivateKey.generate(), {})
    keys = [X25519PrivateKey.generate() for _ in range(2)]
    channel = server_channel(*keys, public_box_key(deployment.boxes["a"]))
    grid._asked["q"] = channel, b"about"  # as of a message that was pushed
    boxes = seal(channel.to_server, {wire.UPDATE: b"\xff no record"}, b"about")
    question = Message(RecordDict(), 100, "train")
    question.metadata.__dict__["_message_id"] = "q"
    reply = Message(RecordDict({SEALED: ConfigRecord(boxes)}), reply_to=question)
    assert dict(grid._opened(reply).content) == {}

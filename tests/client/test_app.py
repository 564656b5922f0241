import logging

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MessageType, RecordDict

from client.app import make_client_app, play_elsewhere, unpack
from client.data import Examples
from client.models import build
from client.parameters import flat_parameters
from client.privatize import privatize
from client.settings import TrainingSettings
from client.training import Trainer
from experiments.engines.grid import local_context, set_identity
from fedmf.updates import wire
from fedmf.updates.wire import Turn, without_tag
from plans import KEY, small_plan
from tasks import told, untagged, values_in as sent_in

MODEL = {"name": "logistic", "input_shape": (2, 2), "classes": 3, "seed": 0}
PLAN = small_plan(dimension=15)
DATA = Examples(np.arange(8, dtype="f4").reshape(2, 2, 2), np.array([0, 2]))


def examples_of(client, context):
    if client == "broken":
        raise OSError("the disk is gone, and with it the secret 42")
    return DATA


@pytest.fixture
def app():
    set_identity()
    return make_client_app(
        examples_of, lambda: Trainer(build(**MODEL), TrainingSettings(0.5)), PLAN.client_plan
    )


def task(client="0", vector=None):
    vector = flat_parameters(build(**MODEL)) if vector is None else vector
    array = Array("float32", vector.shape, wire.STYPE, wire.to_bytes(vector))
    content = RecordDict({wire.MODEL: ArrayRecord({wire.VECTOR: array}), wire.TASK: told(client)})
    return Message(content, 1, MessageType.TRAIN)


def values_in(reply):
    (values,) = untagged(reply)
    return np.frombuffer(values, "<f4")


def test_client_trains_clips_masks_and_sends_the_kept_values_only(app):
    reply = app(task(), local_context())
    start = flat_parameters(build(**MODEL))
    update = Trainer(build(**MODEL), TrainingSettings(0.5)).update(
        start, DATA.x, DATA.y, order=PLAN.seed.generator("data order", "0", 0)
    )
    expected = privatize(
        update,
        bounds=PLAN.bounds,
        rotation=PLAN.rotation,
        keep_probability=0.5,
        mask_key=KEY.mask_key("0", 1),
    )
    np.testing.assert_array_equal(values_in(reply), expected)
    assert 0 < len(expected) < PLAN.rotation.padded


def test_client_scales_its_update_by_what_the_message_says_before_it_clips(app):
    scale = np.linspace(0.2, 5, 15, dtype="f4")
    message = task()
    message.content.array_records[wire.MODEL][wire.SCALE] = Array(
        "float32", scale.shape, wire.STYPE, wire.to_bytes(scale)
    )
    update = Trainer(build(**MODEL), TrainingSettings(0.5)).update(
        flat_parameters(build(**MODEL)), DATA.x, DATA.y, order=PLAN.seed.generator("data order", "0", 0)
    )
    expected = privatize(
        update * scale,
        bounds=PLAN.bounds,
        rotation=PLAN.rotation,
        keep_probability=0.5,
        mask_key=KEY.mask_key("0", 1),
    )
    sent = values_in(app(message, local_context()))
    np.testing.assert_array_equal(sent, expected)
    assert not np.array_equal(sent, values_in(app(task(), local_context())))


def test_reply_holds_nothing_but_the_values(app):
    """No loss, no count, no norm, no key: no noise would cover them."""
    content = app(task(), local_context()).content
    assert list(content) == [wire.UPDATE]
    assert list(content.config_records[wire.UPDATE]) == [wire.VALUES]


def test_another_process_is_told_what_of_the_model_does_not_train():
    set_identity()
    given = task()
    given.content.config_records[wire.TASK][wire.FIXED] = "a digest"
    tasks, vector = unpack(given)
    assert [one.fixed_digest for one in tasks] == ["a digest"]
    asked = []

    def elsewhere(message, context):
        asked.append(unpack(message))
        raise RuntimeError("no reply is needed")

    play_elsewhere(
        elsewhere, tasks, len(vector), given, local_context(), PLAN.client_plan, lambda client, error: None
    )
    assert asked[0][0] == tasks


def test_each_clients_values_are_tagged_as_the_answer_to_its_own_task(app):
    """Those of a client that cannot train too, and of one whose other process died: zeros that do not open would tell."""
    given = joint("0", "broken")
    tasks, _ = unpack(given)
    assert [task.turn for task in tasks] == [
        Turn(given.metadata.run_id, 0, 1, name) for name in ("0", "broken")
    ]

    def dies(message, context):
        raise RuntimeError("the process died")

    elsewhere = play_elsewhere(
        dies,
        tasks,
        len(flat_parameters(build(**MODEL))),
        given,
        local_context(),
        PLAN.client_plan,
        lambda *_: None,
    )
    message = task("0")
    (one,), _ = unpack(message)
    for sent, of in zip([*sent_in(app(message, local_context())), *elsewhere], [one, *tasks], strict=True):
        kept = wire.coordinates(of.mask_key, PLAN.rotation.padded, 0.5)
        opened = without_tag(sent, of.mask_key, of.turn)
        assert opened is not None
        assert len(opened) == 4 * len(kept)


@pytest.mark.parametrize("vector", [None, np.full(15, np.nan, "f4"), np.full(15, 1e38, "f4")])
def test_an_exception_or_divergence_becomes_a_zero_update_of_the_right_length(app, vector, caplog):
    """docs/privacy.md: a zeroed client always replies, so must one whose training fails."""
    client = "broken" if vector is None else "0"
    with caplog.at_level(logging.ERROR):
        reply = app(task(client, vector), local_context())
    assert not reply.has_error()
    kept = wire.coordinates(KEY.mask_key(client, 1), PLAN.rotation.padded, 0.5)
    np.testing.assert_array_equal(values_in(reply), np.zeros(len(kept)))


def test_the_failure_is_logged_where_it_happened(app, caplog):
    with caplog.at_level(logging.ERROR):
        app(task("broken"), local_context())
    assert "client broken could not train" in caplog.text


def test_an_update_that_is_not_finite_is_logged_where_it_happened(app, caplog):
    with caplog.at_level(logging.ERROR):
        app(task("0", np.full(15, 1e38, "f4")), local_context())
    assert "client 0 could not train" in caplog.text
    assert "training gave an update that is not finite" in caplog.text


class Short(Trainer):
    """A trainer of one's own that gives an update of the wrong length."""

    def update(self, *arguments, **keywords):
        return super().update(*arguments, **keywords)[:-1]


def app_that_tells(kind):
    """Return an app with trainers of `kind`, and the list of (client, error) that it tells of."""
    set_identity()
    heard = []
    app = make_client_app(
        examples_of,
        lambda: kind(build(**MODEL), TrainingSettings(0.5)),
        PLAN.client_plan,
        on_failure=lambda *failure: heard.append(failure),
    )
    return app, heard


def test_failures_are_told_of_one_by_one_and_not_logged_then(caplog):
    app, heard = app_that_tells(Short)
    reply = app(joint("0", "broken"), local_context())
    assert len(sent_in(reply)) == 2
    assert [client for client, _ in heard] == ["0", "broken"]
    assert str(heard[0][1]) == "training gave an update of shape (14,); it must be (15,)."
    assert isinstance(heard[1][1], OSError)
    assert caplog.text == ""


class Words(Trainer):
    """A trainer of one's own whose update has the right shape, and no numbers in it."""

    def update(self, start, *arguments, **keywords):
        return np.array(["a word"] * len(start))


def test_an_update_that_cannot_be_privatized_is_a_zero_update_and_told():
    """Or what one client's data gave would decide whether its message, and others' in it, is answered."""
    app, heard = app_that_tells(Words)
    sent = values_in(app(task(), local_context()))
    kept = wire.coordinates(KEY.mask_key("0", 1), PLAN.rotation.padded, 0.5)
    np.testing.assert_array_equal(sent, np.zeros(len(kept)))
    assert [client for client, _ in heard] == ["0"]
    assert isinstance(heard[0][1], TypeError | ValueError)


def test_logs_of_a_task_hold_no_key(app, caplog):
    with caplog.at_level(logging.DEBUG):
        app(task("broken"), local_context())
    key = KEY.mask_key("broken", 1).reveal()
    assert key.hex() not in caplog.text
    assert repr(key) not in caplog.text


def joint(*clients):
    """One message with the tasks of several clients."""
    message = task(clients[0])
    message.content[wire.TASK] = told(*clients)
    return message


def test_clients_of_one_message_answer_each_as_on_their_own(app):
    """Each one's values are on their own, under their own mask; one that fails changes its own only."""
    clients = ("0", "broken", "7")
    reply = app(joint(*clients), local_context())
    assert {name: list(record) for name, record in reply.content.items()} == {wire.UPDATE: [wire.VALUES]}
    sent = sent_in(reply)
    for client, values in zip(clients, sent, strict=True):
        alone = app(task(client), local_context())
        assert [values] == sent_in(alone)
    assert [np.frombuffer(values, "f4").any() for values in untagged(reply)] == [True, False, True]

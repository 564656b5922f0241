"""The client app: each client's kept values leave it and nothing else, whether they are privatized on the host or on a device.

A CPU takes the part of the device: what counts is whether a device's memory is its own (`client.app`).
"""

import logging
import sys

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Message, MessageType, RecordDict

from client import app as client_app, training
from client.app import NOT_FINITE, make_client_app, part_of, unpack
from client.data import Examples
from client.models import build
from client.parameters import flat_parameters
from client.privatize import privatize
from client.settings import TrainingSettings
from client.training import Trainer
from experiments.engines.grid import local_context, set_identity
from fedmf.updates import wire
from fedmf.updates.wire import Turn, without_tags
from plans import KEY, small_plan
from poison import told, untagged, values_in

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
D = 650
PLAN = small_plan(dimension=D)
CLIENTS = ("0", "1", "2")
SCALE = np.linspace(0.2, 3, D, dtype="f4")


@pytest.fixture(autouse=True)
def _identity():
    set_identity()


@pytest.fixture
def on_device(monkeypatch):
    """What is on a CPU device counts as far from the host."""
    monkeypatch.setattr(client_app, "has_own_memory", lambda device: True)


def model():
    return build("logistic", input_shape=(8, 8), classes=10, seed=0)


def examples_of(client, context=None):
    if client == "broken":
        raise OSError("the disk is gone, and with it the secret 42")
    if client == "ending":
        sys.exit("a loader that ends its program")
    rng = np.random.default_rng(int(client))
    return Examples(rng.normal(size=(12, 8, 8)).astype("f4"), rng.integers(0, 10, 12))


def ask(*clients, vector=None, scale=None):
    """One message with the tasks of several clients."""
    arrays = {wire.VECTOR: flat_parameters(model()) if vector is None else vector}
    arrays |= {} if scale is None else {wire.SCALE: scale}
    record = ArrayRecord(
        {name: Array("float32", one.shape, wire.STYPE, wire.to_bytes(one)) for name, one in arrays.items()}
    )
    return Message(RecordDict({wire.MODEL: record, wire.TASK: told(*clients)}), 1, MessageType.TRAIN)


def values_of(app, message, dtype="<f4"):
    return [np.frombuffer(values, dtype) for values in untagged(app(message, local_context()))]


def app_of(plan=PLAN, kind=Trainer, device="cpu", **settings):
    """An app of trainers of `kind`, and the list of (client, error) that it tells of."""
    given, heard = TrainingSettings(0.5, device=device, **settings), []
    app = make_client_app(
        examples_of,
        lambda: kind(model(), given, "classification"),
        plan.client_plan,
        on_failure=lambda *failure: heard.append(failure),
    )
    return app, heard


def zeros(client):
    return np.zeros(len(wire.coordinates(KEY.mask_key(client, 1), PLAN.rotation.padded, 0.5)))


@pytest.mark.parametrize("scale", [None, SCALE], ids=["plain", "scaled"])
def test_client_trains_scales_clips_masks_and_sends_the_kept_values_only(scale):
    order = PLAN.seed.generator("data order", "0", 0)
    data, start = examples_of("0"), flat_parameters(model())
    update = Trainer(model(), TrainingSettings(0.5), "classification").update(
        start, data.x, data.y, order=order
    )
    expected = privatize(
        update if scale is None else update * scale, PLAN.client_plan, KEY.mask_key("0", 1)
    ).values
    app, _ = app_of()
    (found,) = values_of(app, ask("0", scale=scale))
    np.testing.assert_array_equal(found, expected)
    assert 0 < len(expected) < PLAN.rotation.padded


def test_clients_of_one_message_answer_each_as_on_their_own_with_nothing_but_their_values():
    """No loss, no count, no norm, no key: no noise would cover them. A client that fails changes its own values only."""
    app, heard = app_of()
    clients = ("0", "broken", "ending", "7")
    reply = app(ask(*clients), local_context())
    assert {name: list(record) for name, record in reply.content.items()} == {wire.UPDATE: [wire.VALUES]}
    for client, values in zip(clients, values_in(reply), strict=True):
        assert [values] == values_in(app(ask(client), local_context()))
    assert [np.frombuffer(values, "f4").any() for values in untagged(reply)] == [True, False, False, True]
    assert [client for client, _ in heard] == ["broken", "ending"] * 2


def test_each_clients_values_are_tagged_as_the_answer_to_its_own_task():
    """Those of a client that cannot train too: zeros that do not open would tell."""
    message = ask("0", "broken")
    message.content.config_records[wire.TASK][wire.FIXED] = "a digest"
    tasks, sent = unpack(message)
    assert [task.turn for task in tasks] == [
        Turn(message.metadata.run_id, 0, 1, name) for name in ("0", "broken")
    ]
    assert sent.fixed_digest == "a digest"
    assert unpack(part_of(message, tasks[1:]))[0] == tasks[1:]
    app, _ = app_of()
    message = ask("0", "broken")
    tasks, _ = unpack(message)
    for data, task in zip(values_in(app(message, local_context())), tasks, strict=True):
        kept = wire.coordinates(task.mask_key, PLAN.rotation.padded, 0.5)
        (opened,) = without_tags([data], [task.mask_key], [task.turn])
        assert opened is not None
        assert len(opened) == 4 * len(kept)


@pytest.mark.parametrize("vector", [None, np.full(D, np.nan, "f4"), np.full(D, 1e38, "f4")])
def test_an_exception_or_divergence_becomes_a_zero_update_and_is_logged_without_a_key(vector, caplog):
    """docs/privacy.md: a zeroed client always replies, so must one whose training fails."""
    client = "broken" if vector is None else "0"
    app = make_client_app(
        examples_of, lambda: Trainer(model(), TrainingSettings(0.5), "classification"), PLAN.client_plan
    )
    with caplog.at_level(logging.DEBUG):
        reply = app(ask(client, vector=vector), local_context())
    assert not reply.has_error()
    np.testing.assert_array_equal(np.frombuffer(untagged(reply)[0], "<f4"), zeros(client))
    assert f"client {client} could not train" in caplog.text
    assert (NOT_FINITE in caplog.text) == (vector is not None)
    key = KEY.mask_key(client, 1).reveal()
    assert key.hex() not in caplog.text
    assert repr(key) not in caplog.text


class Short(Trainer):
    """A custom trainer that gives an update of the wrong length."""

    def train(self, start, *arguments, **keywords):
        return torch.zeros(len(start) - 1)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("given", "scale", "loop"),
    [
        ({"l2_norm": 0.5}, SCALE, "users_own:whole_batch"),
        ({"rotation": "identity"}, SCALE, None),
        ({"l2_norm": None, "noise_multiplier": 0}, None, "users_own:whole_batch"),
    ],
    ids=["scaled", "not rotated", "unbounded"],
)
def test_values_of_a_device_are_those_of_the_host_to_rounding(
    given, scale, loop, device, on_device, monkeypatch
):
    plan = small_plan(dimension=D, **given)
    app, heard = app_of(plan, device=device, trainer=loop)
    found = values_of(app, ask(*CLIENTS, scale=scale))
    monkeypatch.undo()
    here, heard_here = app_of(plan, trainer=loop)
    expected = values_of(here, ask(*CLIENTS, scale=scale))
    assert heard == heard_here == []
    for one, other in zip(found, expected, strict=True):
        assert np.abs(other).max() > 0
        # Ten stages of the rotation, 2^-24 each; another device trains to other roundings.
        tolerance = (2e-6 if device == "cpu" else 1e-4) * float(np.abs(other).max())
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance)
    assert not all(np.array_equal(*pair) for pair in zip(found, expected, strict=True))  # another path


@pytest.mark.parametrize("far", [False, True], ids=["host", "device"])
def test_an_update_of_a_wrong_length_is_zeros_and_told(far, monkeypatch, caplog):
    """Or what one client's data gave would decide whether its message, and others' in it, is answered."""
    monkeypatch.setattr(client_app, "has_own_memory", lambda device: far)
    app, heard = app_of(kind=Short)
    np.testing.assert_array_equal(values_of(app, ask("0"))[0], zeros("0"))
    ((client, error),) = heard
    assert (client, str(error)) == ("0", "training gave an update of shape (649,); it must be (650,).")
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("settings", "value_type", "is_scaled"),
    [
        ({}, "float32", False),
        ({}, "int8", False),
        ({"momentum": 0.9, "weight_decay": 0.1}, "float32", True),
        ({"optimizer": "adam"}, "float32", True),
        ({"proximal": 0.3}, "int8", True),
        ({"trainer": "users_own:whole_batch"}, "float32", False),
    ],
    ids=str,
)
def test_a_message_takes_one_copy_of_model_and_scale_and_nothing_waits_but_one_copy_a_client(
    settings, value_type, is_scaled, monkeypatch
):
    """Torch's meta device refuses to be read and to be mixed with the host: what plays there plays on CUDA unmixed.

    Back come the kept values and a bit on whether they are finite; of int8 the whole update, which is rounded as a whole.
    """
    plan, back, there = small_plan(dimension=D, keep_probability=0.05, value_type=value_type), [], []
    monkeypatch.setattr(training, "pick_device", lambda device: torch.device("meta"))

    def cpu(tensor):
        back.append((tensor.device.type, tensor.numel()))
        return torch.ones(tensor.shape)

    app, heard = app_of(plan, **settings)
    monkeypatch.setattr(torch.Tensor, "cpu", cpu)
    message = ask(*CLIENTS, scale=SCALE if is_scaled else None)
    app(message, local_context())  # which makes the trainer
    back.clear()
    copied = torch.tensor
    monkeypatch.setattr(
        torch, "tensor", lambda data, **more: there.append(np.shape(data)) or copied(data, **more)
    )
    found = values_of(app, message, "<f4" if value_type == "float32" else "i1")
    assert heard == []
    assert there.count((D,)) == (2 if is_scaled else 1)
    assert back == [("meta", 2 + len(one) if value_type == "float32" else D) for one in found]
    assert all(one.any() for one in found)

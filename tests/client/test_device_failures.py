"""What fails on a device, in training or once an update is privatized there, is one client's zero update and no more."""

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import _pop_mode

from client import resident
from client.app import NOT_FINITE, make_client_app
from client.data import Examples
from client.settings import TrainingSettings
from client.training import Trainer
from experiments.engines.grid import local_context, set_identity
from fedmf.errors import DeviceLostError
from fedmf.updates import wire
from plans import KEY
from poison import (
    PLAN,
    Spoilt,
    app_of,
    examples_of,
    fail,
    fail_late,
    lose_device,
    lose_device_late,
    play_elsewhere,
)
from tasks import joint, untagged


@pytest.fixture(autouse=True)
def _on_device(monkeypatch):
    """A CPU in the part of a device, which works again after the test."""
    set_identity()
    monkeypatch.setattr(resident, "has_own_memory", lambda device: True)
    yield
    _bring_back()


def _bring_back():
    while torch._C._len_torch_dispatch_stack():
        _pop_mode()


def values_of(app, *clients):
    sent = untagged(app(joint(*clients), local_context()))
    assert len(sent) == len(clients)
    return [np.frombuffer(values, "<f4") for values in sent]


def alone(client):
    """What a client sends that nobody spoilt anything for."""
    return values_of(app_of(None), client)[0]


def zeros(client):
    return np.zeros(len(wire.coordinates(KEY.mask_key(client, 1), PLAN.rotation.padded, 0.5)))


def test_each_kind_of_failure_in_one_message_is_a_zero_of_its_own_and_told():
    """No data; an error in training; one where the update is privatized; a training that diverges."""
    spoils, made, told = iter([fail, fail_late]), [], []
    model = Spoilt(lambda model: next(spoils)(model))

    def make():
        made.append(1)
        return Trainer(model, TrainingSettings(0.5, device="cpu"))

    def data(client, context):
        if client == "no data":
            raise OSError("no disk")
        given = examples_of("special" if client in ("raises", "late") else client, context)
        return Examples(np.full_like(given.x, np.inf), given.y) if client == "diverges" else given

    app = make_client_app(data, make, PLAN.client_plan, on_failure=lambda *failure: told.append(failure))
    clients = ("1", "no data", "raises", "2", "late", "3", "diverges", "4")
    sent = dict(zip(clients, values_of(app, *clients), strict=True))
    for client in ("no data", "raises", "late", "diverges"):
        np.testing.assert_array_equal(sent[client], zeros(client))
    for client in "1234":
        np.testing.assert_array_equal(sent[client], alone(client))
        assert sent[client].any()
    assert [client for client, _ in told] == ["no data", "raises", "late", "diverges"]
    assert [str(error) for _, error in told] == [
        "no disk",
        "no device is lost",
        "CUDA error: an illegal memory access was encountered",
        NOT_FINITE,
    ]
    assert len(made) == 3  # anew after each error in a turn


@pytest.mark.parametrize("loses", [lose_device, lose_device_late], ids=["in training", "once privatized"])
def test_a_lost_device_is_lost_wherever_it_is_noticed(loses):
    with pytest.raises(DeviceLostError, match="end this process"):
        values_of(app_of(loses), "1", "special", "2")


@pytest.mark.parametrize("loses", [lose_device, lose_device_late], ids=["in training", "once privatized"])
def test_clients_after_a_lost_device_are_as_on_their_own(loses):
    """Another process plays them: in numpy here, hence to rounding."""
    sent = values_of(app_of(loses, play_elsewhere), "1", "special", "2", "3")
    _bring_back()
    np.testing.assert_array_equal(sent[0], alone("1"))
    np.testing.assert_array_equal(sent[1], zeros("special"))
    for client, values in (("2", sent[2]), ("3", sent[3])):
        np.testing.assert_allclose(values, alone(client), rtol=0, atol=1e-6)
        assert values.any()

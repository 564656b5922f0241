"""What one client's data does to the model or the device of a process reaches no other client."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import _pop_mode

from client import app as client_app
from client.app import NOT_FINITE, Resident, Sent, make_client_app
from client.data import Examples
from client.models import build
from client.parameters import flat_parameters
from client.settings import TrainingSettings
from client.training import Trainer
from experiments.engines.grid import LocalGrid, local_context, set_identity
from fedmf.errors import DeviceLostError
from fedmf.updates import wire
from plans import KEY, small_plan
from poison import (
    PLAN,
    DeadDevice,
    Spoilt,
    app_of,
    app_once,
    examples_of,
    fail,
    fail_late,
    joint,
    lose_device,
    lose_device_late,
    pool_of,
    untagged,
)

pytestmark = pytest.mark.long


SPOILS = {
    "storage": lambda model: setattr(model[1].weight, "data", torch.full((3, 4), np.nan)),
    "gradient": lambda model: setattr(model[1].bias, "grad", None),
    "module": lambda model: model.__setitem__(1, torch.nn.Linear(4, 3)),
    "hook": lambda model: model.register_forward_hook(lambda module, inputs, output: output * np.nan),
    "parameter hook": lambda model: model[1].weight.register_hook(lambda gradient: gradient * np.nan),
    "buffer": lambda model: model.register_buffer("memory", torch.zeros(1)),
    "attribute": lambda model: vars(model).update(
        spoil=None, forward=lambda x: torch.nn.Sequential.forward(model, x * 3)
    ),
    "flag": lambda model: model[1].weight.requires_grad_(False),
}


def raising(spoil):
    def spoil_and_raise(model):
        spoil(model)
        raise ValueError("the secret 42")

    return spoil_and_raise


def bring_back():
    while torch._C._len_torch_dispatch_stack():
        _pop_mode()


@pytest.fixture(autouse=True)
def _device():
    """A device that works again after the test."""
    set_identity()
    yield
    bring_back()


@pytest.fixture(params=[False, True], ids=["host", "device"])
def is_far(request, monkeypatch):
    """Whether updates are privatized on the CPU as on a device with memory of its own."""
    if request.param:
        monkeypatch.setattr(client_app, "has_own_memory", lambda device: True)
    return request.param


def values_of(app, *clients):
    sent = untagged(app(joint(*clients), local_context()))
    return [np.frombuffer(values, "<f4") for values in sent]


def alone(client):
    """What a client sends whom no other has spoilt anything for."""
    return values_of(app_of(None), client)[0]


def zeros(client):
    return np.zeros(len(wire.coordinates(KEY.mask_key(client, 1), PLAN.rotation.padded, 0.5)))


@pytest.mark.parametrize("ends", [raising, lambda spoil: spoil], ids=["raises", "continues"])
@pytest.mark.parametrize("spoil", SPOILS.values(), ids=SPOILS)
def test_a_client_that_spoils_the_model_changes_nothing_for_the_next(spoil, ends):
    before, _, after = values_of(app_of(ends(spoil)), "1", "special", "2")
    np.testing.assert_array_equal(before, alone("1"))
    np.testing.assert_array_equal(after, alone("2"))
    assert after.any()


LSTM = {"task": "next_token", "embedding": 3, "hidden": 5}
RNG = np.random.default_rng(0)
IMAGES = Examples(RNG.normal(size=(4, 8, 8)).astype("f4"), RNG.integers(0, 10, 4))
TEXTS = Examples(*RNG.integers(0, 10, (2, 4, 6)))


@pytest.mark.parametrize(("name", "settings", "data"), [("cnn", {}, IMAGES), ("lstm", LSTM, TEXTS)])
def test_honest_clients_share_one_trainer_and_one_model(name, settings, data):
    network = build(name, input_shape=data.x.shape[1:], classes=10, seed=0, **settings)
    start, made = (
        flat_parameters(network),
        iter([Trainer(network, TrainingSettings(0.1, device="cpu"), "classification")]),
    )
    resident = Resident(lambda: next(made), small_plan(dimension=len(start)).client_plan)
    trainer = resident.begin()
    model = trainer._model
    for _ in range(3):
        assert resident.run(Sent(start, None), data, np.random.default_rng(0), KEY).values.any()
    assert trainer._model is model  # of torch's own layers: copied for no client


class Remembering(torch.nn.Module):
    """Adds to its outputs how often it was called, which it keeps in `held`."""

    def __init__(self, held, count):
        super().__init__()
        self.linear, self.held, self.count = torch.nn.Linear(4, 3), held, count

    def forward(self, x):
        return self.linear(x.flatten(1)) + torch.arange(3.0) * self.count(self.held)


MEMORIES = {
    "a list": ([], lambda held: held.append(1) or len(held)),
    "a tensor": (torch.zeros(1), lambda held: held.add_(1)),
    "a dict in a dict": ({"a": {}}, lambda held: held["a"].setdefault(len(held["a"]), 1) and len(held["a"])),
    "an object": (SimpleNamespace(seen=0), lambda held: setattr(held, "seen", held.seen + 1) or held.seen),
    "a generator": (np.random.default_rng(0), lambda held: held.random()),
}


@pytest.mark.parametrize("kind", MEMORIES)
@pytest.mark.parametrize("trainer", [None, "users_own:whole_batch"], ids=["our loop", "custom loop"])
def test_what_a_model_remembers_of_one_client_reaches_no_other(kind, trainer):
    model = Remembering(*MEMORIES[kind])
    start = flat_parameters(model)
    x, y = np.random.default_rng(0).normal(size=(2, 6, 4)).astype("f4"), np.arange(12).reshape(2, 6) % 3

    def update(trainer, client):
        return trainer.update(start, x[client], y[client], order=np.random.default_rng(client))

    shared, fresh = (
        Trainer(model, TrainingSettings(0.1, batch_size=2, device="cpu", trainer=trainer), "classification")
        for _ in range(2)
    )
    update(shared, 0)
    np.testing.assert_array_equal(update(shared, 1), update(fresh, 1))
    np.testing.assert_array_equal(flat_parameters(model), start)


def test_what_is_observed_of_a_turn_changes_no_example_of_the_client():
    """Where a custom model writes into what it is given, the client would train on something else in the next epoch."""
    model, seen, data = Spoilt(), [], examples_of("1", None)
    model.register_forward_pre_hook(lambda module, given: given[0].zero_())
    resident = Resident(
        lambda: Trainer(model, TrainingSettings(0.5, device="cpu"), "classification"),
        PLAN.client_plan,
        seen.append,
    )
    resident.run(Sent(flat_parameters(model)), data, np.random.default_rng(0), KEY)
    np.testing.assert_array_equal(data.x, examples_of("1", None).x)
    assert len(seen) == 1


def test_each_kind_of_failure_in_one_message_is_a_zero_of_its_own_and_told(is_far):
    """No data; an error in training; one where the update is privatized; a training that diverges."""
    late = fail_late if is_far else fail
    spoils, made, told = iter([fail, late]), [], []
    model = Spoilt(lambda model: next(spoils)(model))

    def make():
        made.append(1)
        return Trainer(model, TrainingSettings(0.5, device="cpu"), "classification")

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
    lost = "CUDA error: an illegal memory access was encountered" if is_far else "no device is lost"
    assert [(client, str(error)) for client, error in told] == [
        ("no data", "no disk"),
        ("raises", "no device is lost"),
        ("late", lost),
        ("diverges", NOT_FINITE),
    ]
    assert len(made) == 3  # again after each error in a turn


@pytest.mark.parametrize("turns", [0, 1], ids=["the first trainer", "a later trainer"])
@pytest.mark.parametrize("dies", [True, False], ids=["dead device", "any other error"])
def test_a_device_found_dead_where_a_trainer_is_made_is_lost(turns, dies):
    model, made = Spoilt(fail), []

    def make():
        made.append("trainer")
        if len(made) > turns:
            if dies:
                DeadDevice().__enter__()
            raise RuntimeError("the trainer cannot be made")
        return Trainer(model, TrainingSettings(0.5, device="cpu"), "classification")

    resident, sent = Resident(make, PLAN.client_plan), Sent(flat_parameters(model), None)
    given = sent, examples_of("special", None), np.random.default_rng(0), KEY
    for _ in range(turns):
        with pytest.raises(ValueError, match="no device is lost"):
            resident.run(*given)
    with pytest.raises(RuntimeError, match="cannot be made"):
        resident.run(*given)
    assert resident.is_lost is dies


@pytest.mark.parametrize("loses", [lose_device, lose_device_late], ids=["in training", "once privatized"])
def test_a_lost_device_is_an_error_where_another_client_is_asked_for_and_none_is_silently_zero(loses, is_far):
    app, later = app_of(loses if is_far else lose_device), [joint("2"), joint("2", "1")]
    before, lost = values_of(app, "1", "special")
    for message in later:
        with pytest.raises(DeviceLostError, match="end this process"):
            app(message, local_context())
    bring_back()
    np.testing.assert_array_equal(lost, zeros("special"))
    np.testing.assert_allclose(before, alone("1"), rtol=0, atol=1e-6 if is_far else 0)


def test_a_client_before_whom_no_trainer_can_be_made_again_is_not_charged():
    app = app_once(fail)
    np.testing.assert_array_equal(values_of(app, "special")[0], zeros("special"))
    with pytest.raises(DeviceLostError, match="has no room"):
        app(joint("2"), local_context())


def test_a_worker_whose_device_is_lost_gives_way_to_another():
    with pool_of(app_of, lose_device, workers=1) as pool:
        replies = LocalGrid(pool).send_and_receive([joint(client) for client in ("1", "special", "2", "3")])
        sent = [untagged(reply)[0] for reply in replies]
        (later,) = LocalGrid(pool).send_and_receive([joint("2")])
    expected = {client: alone(client).tobytes() for client in "123"}
    assert sorted(sent) == sorted([zeros("special").astype("f4").tobytes(), *expected.values()])
    assert untagged(later) == [expected["2"]]

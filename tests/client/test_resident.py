"""What one client's data does to the model or the device of a process reaches no other client."""

from contextlib import suppress

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import _pop_mode

from client.models import build
from client.parameters import flat_parameters
from client.resident import Resident
from client.settings import TrainingSettings
from client.training import Trainer
from experiments.engines.grid import LocalGrid, local_context, set_identity
from fedmf.errors import DeviceLostError
from fedmf.updates import wire
from plans import KEY
from poison import PLAN, DeadDevice, Spoilt, app_of, dying_app, lose_device, play_elsewhere, pool_of
from tasks import joint, task, untagged

pytestmark = pytest.mark.long


def spoil_storage(model):
    model[1].weight.data = torch.full((3, 4), np.nan)


def spoil_gradient(model):
    model[1].bias.grad = None


def spoil_module(model):
    model[1] = torch.nn.Linear(4, 3)


def spoil_hook(model):
    model.register_forward_hook(lambda module, inputs, output: output * np.nan)


def spoil_parameter_hook(model):
    model[1].weight.register_hook(lambda gradient: gradient * np.nan)


def spoil_buffer(model):
    model.register_buffer("memory", torch.zeros(1))


def spoil_attribute(model):
    vars(model)["spoil"] = None
    model.forward = lambda x: torch.nn.Sequential.forward(model, x * 3)


def spoil_flag(model):
    model[1].weight.requires_grad_(False)


SPOILS = [value for name, value in list(globals().items()) if name.startswith("spoil_")]


def raising(spoil):
    def spoil_and_raise(model):
        spoil(model)
        raise ValueError("the secret 42")

    return spoil_and_raise


@pytest.fixture(autouse=True)
def _identity():
    set_identity()


@pytest.fixture
def _device():
    """A device that works again after the test."""
    yield
    while torch._C._len_torch_dispatch_stack():
        _pop_mode()


def values_of(app, *clients):
    return untagged(app(joint(*clients), local_context()))


def alone(client):
    """What a client sends whom nobody spoilt anything for."""
    return values_of(app_of(None), client)[0]


@pytest.mark.parametrize("ends", [raising, lambda spoil: spoil], ids=["raises", "goes on"])
@pytest.mark.parametrize("spoil", SPOILS, ids=lambda spoil: spoil.__name__)
def test_a_client_that_spoils_the_model_changes_nothing_for_the_next(spoil, ends):
    before, _, after = values_of(app_of(ends(spoil)), "1", "special", "2")
    assert before == alone("1")
    assert after == alone("2")
    assert np.frombuffer(after, "f4").any()


@pytest.mark.parametrize(
    ("model", "settings"),
    [("logistic", {}), ("mlp", {}), ("cnn", {}), ("lstm", {"embedding": 3, "hidden": 5})],
    ids=str,
)
def test_honest_clients_share_one_trainer(model, settings):
    is_text = model == "lstm"
    shape, task_name = ((6,), "next_token") if is_text else ((8, 8), "classification")
    network = build(model, input_shape=shape, classes=10, seed=0, task=task_name, **settings)
    made = []

    def make():
        made.append(Trainer(network, TrainingSettings(0.1, device="cpu")))
        return made[-1]

    resident, rng = Resident(make, PLAN.client_plan), np.random.default_rng(0)
    for _ in range(3):
        x = rng.integers(0, 10, (4, 6)) if is_text else rng.normal(size=(4, 8, 8)).astype("f4")
        y = rng.integers(0, 10, (4, 6) if is_text else 4)
        start = flat_parameters(network)
        with resident.turn() as player:
            assert (player.trainer.train(start, x, y, order=rng) != start).any()
    assert len(made) == 1


class Remembering(torch.nn.Module):
    """Adds to its outputs how often it was called, which it keeps in `held`."""

    def __init__(self, held, count):
        super().__init__()
        self.linear, self.held, self.count = torch.nn.Linear(4, 3), held, count

    def forward(self, x):
        return self.linear(x.flatten(1)) + torch.arange(3.0) * self.count(self.held)


class Holder:
    """An object of a user's own."""

    seen = 0


def one_more(held):
    held.seen += 1
    return held.seen


MEMORIES = {
    "a list": ([], lambda held: held.append(1) or len(held)),
    "a tensor": (torch.zeros(1), lambda held: held.add_(1)),
    "an array": (np.zeros(1), lambda held: float(held.__iadd__(1)[0])),
    "a dict in a dict": ({"a": {}}, lambda held: held["a"].setdefault(len(held["a"]), 1) and len(held["a"])),
    "an object": (Holder(), one_more),
    "a generator": (np.random.default_rng(0), lambda held: held.random()),
}


@pytest.mark.parametrize("kind", MEMORIES)
@pytest.mark.parametrize("trainer", [None, "own_training:whole_batch"], ids=["our loop", "own loop"])
def test_what_a_model_remembers_of_one_client_reaches_no_other(kind, trainer):
    model = Remembering(*MEMORIES[kind])
    start = flat_parameters(model)
    x, y = np.random.default_rng(0).normal(size=(2, 6, 4)).astype("f4"), np.arange(12).reshape(2, 6) % 3

    def update(trainer, client):
        return trainer.update(start, x[client], y[client], order=np.random.default_rng(client))

    resident, alone = (
        Trainer(model, TrainingSettings(0.1, batch_size=2, device="cpu", trainer=trainer)) for _ in range(2)
    )
    update(resident, 0)
    np.testing.assert_array_equal(update(resident, 1), update(alone, 1))


def test_a_model_of_torchs_own_layers_is_copied_for_no_client():
    trainer = Trainer(
        build("mlp", input_shape=(8, 8), classes=10, seed=0), TrainingSettings(0.1, device="cpu")
    )
    before = trainer._model
    trainer.update(
        trainer._flat.numpy().copy(),
        np.ones((2, 8, 8), "f4"),
        np.zeros(2, int),
        order=np.random.default_rng(0),
    )
    assert trainer._model is before


def test_after_an_exception_the_trainer_is_made_anew():
    made = []
    values_of(app_of(raising(lambda model: None), made=made), "1", "special", "2", "3")
    assert len(made) == 2


@pytest.mark.usefixtures("_device")
@pytest.mark.parametrize("turns", [0, 1], ids=["the first trainer", "a later trainer"])
@pytest.mark.parametrize("dies", [True, False], ids=["dead device", "any other error"])
def test_a_device_found_dead_where_a_trainer_is_made_is_lost(turns, dies):
    model, made = Spoilt(spoil_flag), []

    def make():
        made.append("trainer")
        if len(made) > turns:
            if dies:
                DeadDevice().__enter__()
            raise RuntimeError("the trainer cannot be made")
        return Trainer(model, TrainingSettings(0.5, device="cpu"))

    resident, rng = Resident(make, PLAN.client_plan), np.random.default_rng(0)
    arguments = flat_parameters(model), np.full((2, 2, 2), 77, "f4"), np.array([0, 1])
    for _ in range(turns):
        with suppress(ValueError), resident.turn() as player:
            player.trainer.train(*arguments, order=rng)
            raise ValueError("the trainer is made again after it")
    with pytest.raises(RuntimeError, match="cannot be made"), resident.turn():
        pytest.fail("there is no player")
    assert resident.is_lost is dies


def test_a_trainer_leaves_the_model_that_it_was_given_alone():
    model = Spoilt()
    start = flat_parameters(model)
    trainer = Trainer(model, TrainingSettings(0.5, device="cpu"))
    x, y = np.ones((2, 2, 2), "f4"), np.array([0, 1])
    assert trainer.update(start, x, y, order=np.random.default_rng(0)).any()
    np.testing.assert_array_equal(flat_parameters(model), start)


@pytest.mark.usefixtures("_device")
def test_without_another_process_a_lost_device_is_said_and_no_later_client_is_silently_zero():
    app, messages = dying_app(), [task("special"), task("2")]
    for message in messages:
        with pytest.raises(DeviceLostError, match="end this process"):
            app(message, local_context())


@pytest.mark.usefixtures("_device")
def test_clients_after_a_lost_device_are_played_in_another_process_as_on_their_own():
    """Two clients of one message lose a device each: they alone are zero, in this message and in the next."""
    app = app_of(lose_device, play_elsewhere)
    clients = ("1", "special", "2", "special", "3")
    later = ("3", "special", "2")
    messages = [joint(*clients), joint(*later)]
    sent = [data for message in messages for data in untagged(app(message, local_context()))]
    while torch._C._len_torch_dispatch_stack():
        _pop_mode()
    for client, values in zip(clients + later, sent, strict=True):
        if client == "special":
            assert not np.frombuffer(values, "f4").any()
            kept = wire.coordinates(KEY.mask_key("special", 1), PLAN.rotation.padded, 0.5)
            assert len(values) == 4 * len(kept)
        else:
            assert values == alone(client)


@pytest.mark.usefixtures("_device")
def test_where_the_other_process_dies_its_clients_are_zero():
    def dead(message, context):
        raise OSError("no process")

    sent = values_of(app_of(lose_device, dead), "special", "2")
    kept = [
        len(wire.coordinates(KEY.mask_key(name, 1), PLAN.rotation.padded, 0.5)) for name in ("special", "2")
    ]
    assert [np.frombuffer(values, "f4").tolist() for values in sent] == [[0.0] * count for count in kept]


def test_a_worker_whose_device_is_lost_gives_way_to_another():
    with pool_of(dying_app, workers=1) as pool:
        replies = LocalGrid(pool).send_and_receive([task(client) for client in ("1", "special", "2", "3")])
        sent = [untagged(reply)[0] for reply in replies]
        assert sorted(sent) == sorted([wire.NO_VALUES, *(alone(client) for client in "123")])
        (later,) = LocalGrid(pool).send_and_receive([task("2")])
        assert untagged(later) == [alone("2")]

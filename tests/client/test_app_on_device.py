"""The client app where training leaves an update on a device: privatized there, and never the whole of it on the host.

A CPU stands in for the device: what is told apart is whether a device's memory is its own (`client.resident`).
"""

from collections import Counter

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Message, MessageType, RecordDict
from torch import nn

from client import resident, training
from client.app import NOT_FINITE, make_client_app
from client.data import Examples
from client.models import build
from client.on_device import DevicePrivatizer
from client.parameters import flat_parameters
from client.resident import Player
from client.settings import TrainingSettings
from client.training import Trainer
from experiments.engines.grid import local_context, set_identity
from fedmf.updates import wire
from plans import small_plan
from tasks import told, untagged

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
SHAPE = {"input_shape": (8, 8), "classes": 10, "seed": 0}
D = 650
CLIENTS = ("0", "1", "2")


@pytest.fixture(autouse=True)
def _identity():
    set_identity()


@pytest.fixture
def on_device(monkeypatch):
    """What lies on a CPU device counts as far from the host."""
    monkeypatch.setattr(resident, "has_own_memory", lambda device: True)


def examples_of(client, context):
    if client == "broken":
        raise OSError("no disk")
    rng = np.random.default_rng(int(client))
    return Examples(rng.normal(size=(12, 8, 8)).astype("f4"), rng.integers(0, 10, 12))


def ask(*clients, vector=None, scale=None):
    """Return one message with the tasks of several clients."""
    vector = flat_parameters(build("logistic", **SHAPE)) if vector is None else vector
    arrays = {wire.VECTOR: vector} | ({} if scale is None else {wire.SCALE: scale})
    model = ArrayRecord(
        {name: Array("float32", one.shape, wire.STYPE, wire.to_bytes(one)) for name, one in arrays.items()}
    )
    return Message(RecordDict({wire.MODEL: model, wire.TASK: told(*clients)}), 1, MessageType.TRAIN)


def values_of(app, message, dtype="<f4"):
    return [np.frombuffer(values, dtype) for values in untagged(app(message, local_context()))]


def app_of(plan, make=None, device="cpu", data=examples_of, told=None, **settings):
    """Return a ClientApp whose failures go to `told`; any that nobody asked for is an error."""
    given = TrainingSettings(0.5, device=device, **settings)
    heard = [] if told is None else told
    app = make_client_app(
        data,
        (lambda: Trainer(build("logistic", **SHAPE), given)) if make is None else lambda: make(given),
        plan.client_plan,
        on_failure=lambda client, error: heard.append((client, error)),
    )
    app.told = heard
    return app


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("loop", [None, "own_training:whole_batch"])
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize(
    "given", [{"l2_norm": 0.5}, {"rotation": "identity"}, {"l2_norm": None, "noise_multiplier": 0}], ids=str
)
def test_values_are_those_of_the_host_to_rounding(given, scaled, loop, device, on_device, monkeypatch):
    plan = small_plan(dimension=D, **given)
    message = ask(*CLIENTS, scale=np.linspace(0.2, 3, D, dtype="f4") if scaled else None)
    app = app_of(plan, device=device, trainer=loop)
    found = values_of(app, message)
    monkeypatch.undo()
    here = app_of(plan, trainer=loop)
    expected = values_of(here, message)
    assert app.told == here.told == []
    for one, other in zip(found, expected, strict=True):
        assert np.abs(other).max() > 0
        # Ten stages of the rotation, 2^-24 each; another device trains to other roundings.
        tolerance = (2e-6 if device == "cpu" else 1e-4) * float(np.abs(other).max())
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance)
    assert not all(np.array_equal(*pair) for pair in zip(found, expected, strict=True))  # another path


def test_int8_levels_are_those_of_the_host_but_for_rounding(on_device, monkeypatch):
    plan = small_plan(dimension=D, value_type="int8")
    found = values_of(app_of(plan), ask("0"), "i1")[0].astype(int)
    monkeypatch.undo()
    expected = values_of(app_of(plan), ask("0"), "i1")[0].astype(int)
    assert expected.any()
    assert np.abs(found - expected).max() <= 1
    assert np.count_nonzero(found != expected) <= 3


class Whole(nn.Module):
    """One parameter, for a loop that makes it the update that a test asks for."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(700))

    def forward(self, x):
        return x * self.weight.sum()


def adversaries():
    """Updates (700,) that are hard to bound once rotated, or before."""
    rng = np.random.default_rng(0)
    signs = np.where(small_plan(dimension=700).rotation.unrotate(np.eye(1, 1024, dtype="f4")[0]) > 0, 1, -1)
    odd = 1 + (2 * rng.integers(0, 1 << 22, 700) + 1) * 2.0**-23
    return {
        "normal": rng.normal(size=700),
        "all on one coordinate once rotated": signs * odd,
        "one coordinate": np.eye(1, 700, 9)[0],
        "of all sizes": rng.normal(size=700) * 10.0 ** rng.uniform(-30, 0, 700),
        "denormal and one": np.where(np.arange(700) == 5, 1, 2.0**-140),
        "huge": np.full(700, 3e38),
        "not finite": np.where(np.arange(700) == 5, np.nan, 1),
        "infinite": np.where(np.arange(700) == 5, -np.inf, 1),
    }


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("rotation", ["hadamard", "identity"])
@pytest.mark.parametrize("longer", [0.9999, 3.0, 1e6])
def test_bounds_hold_for_the_whole_vector_whatever_training_gives(longer, rotation, device, on_device):
    """Keep probability 1, and norms in float64 at the bound itself."""
    for name, update in adversaries().items():
        plan = small_plan(dimension=700, keep_probability=1.0, l2_norm=0.1, linf_norm=0.02, rotation=rotation)
        length = np.linalg.norm(update) if name not in ("huge", "not finite", "infinite") else 1 / longer
        given = (update * (longer * 0.1 / length if length != 1 / longer else 1)).astype("f4")
        app = app_of(
            plan,
            lambda settings: Trainer(Whole(), settings),
            device,
            data=lambda client, context, given=given: Examples(given[None], np.zeros(1, int)),
            trainer="own_training:takes_its_example",
        )
        (sent,) = values_of(app, ask("0", vector=np.zeros(700, "f4")))
        wide = sent.astype("f8")
        assert np.isfinite(wide).all()
        assert np.sqrt(wide @ wide) <= 0.1, name
        assert np.abs(wide).max() <= 0.02, name
        is_finite = np.isfinite(given).all()
        assert wide.any() == is_finite, name
        assert [str(error) for _, error in app.told] == ([] if is_finite else [NOT_FINITE])


@pytest.mark.parametrize("value_type", ["float32", "int8"])
def test_one_transfer_a_client_and_one_copy_of_model_and_scale_a_message(value_type, on_device, monkeypatch):
    """Back come the kept values and a word on whether they are; of int8 the whole vector, which is rounded as a whole."""
    plan = small_plan(dimension=D, keep_probability=0.05, value_type=value_type)
    app = app_of(plan)
    back, there = [], []
    for name in ("cpu", "numpy", "tolist", "item"):
        real = getattr(torch.Tensor, name)

        def watched(tensor, *given, _real=real, _name=name, **more):
            back.append((_name, tensor.numel()))
            return _real(tensor, *given, **more)

        monkeypatch.setattr(torch.Tensor, name, watched)
    copied = torch.tensor
    monkeypatch.setattr(
        torch, "tensor", lambda data, **more: there.append(np.shape(data)) or copied(data, **more)
    )
    message = ask(*CLIENTS, scale=np.ones(D, "f4"))
    values_of(app, message, "<f4" if value_type == "float32" else "i1")  # which makes the trainer
    back.clear()
    there.clear()
    found = values_of(app, message, "<f4" if value_type == "float32" else "i1")
    assert there == [(D,), (D,)]
    sizes = [1 + (len(one) if value_type == "float32" else 1024) for one in found]
    assert [size for name, size in back if name == "cpu"] == sizes
    assert Counter(size for name, size in back if name != "cpu") == Counter(sizes)
    assert value_type == "int8" or max(sizes) < 100


@pytest.mark.parametrize(("value_type", "scaled"), [("float32", False), ("float32", True), ("int8", False)])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"momentum": 0.9},
        {"optimizer": "adam"},
        {"proximal": 0.3},
        {"trainer": "own_training:whole_batch"},
    ],
    ids=str,
)
def test_nothing_waits_for_the_device_but_one_copy_a_client(settings, value_type, scaled, monkeypatch):
    """Torch's meta device refuses to be read and to be mixed with the host: what plays there plays on CUDA unmixed."""
    plan, back = small_plan(dimension=D, keep_probability=0.05, value_type=value_type), []
    monkeypatch.setattr(training, "pick_device", lambda device: torch.device("meta"))

    def cpu(tensor):
        back.append((tensor.device.type, tensor.numel()))
        return torch.ones(tensor.shape)

    app = app_of(plan, lambda given: Trainer(build("logistic", **SHAPE), given), **settings)
    monkeypatch.setattr(torch.Tensor, "cpu", cpu)
    message = ask(*CLIENTS, scale=np.ones(D, "f4") if scaled else None)
    app(message, local_context())  # which makes the trainer
    back.clear()
    found = values_of(app, message, "<f4" if value_type == "float32" else "i1")
    assert app.told == []
    assert back == [("meta", 1 + (len(one) if value_type == "float32" else 1024)) for one in found]
    assert all(len(one) and one.all() for one in found)


def test_what_privatizes_is_made_once_for_a_trainer(on_device, monkeypatch):
    made, real = [], DevicePrivatizer.__init__
    monkeypatch.setattr(
        DevicePrivatizer,
        "__init__",
        lambda self, **given: made.append(given["device"]) or real(self, **given),
    )
    app = app_of(small_plan(dimension=D))
    for _ in range(2):
        values_of(app, ask(*CLIENTS))
    assert made == [torch.device("cpu")]
    values_of(app, ask("broken", "1"))  # no trainer had a part in that
    assert len(made) == 1


def test_a_cpu_privatizes_in_numpy_and_a_gpu_on_itself():
    assert resident.has_own_memory(torch.device("cuda", 1))
    trainer = Trainer(build("logistic", **SHAPE), TrainingSettings(0.5, device="cpu"))
    assert Player.of(trainer, small_plan(dimension=D).client_plan).privatizer is None


class WithUpdate(Trainer):
    """A trainer of one's own that gives the update itself."""

    def update(self, *given, **more):
        return -super().update(*given, **more)


class WithTrain(Trainer):
    """A trainer of one's own that trains otherwise."""

    def train(self, start, *given, **more):
        return super().train(start, *given, **more) + np.float32(0.25)


@pytest.mark.parametrize("kind", [WithUpdate, WithTrain])
def test_what_a_trainer_of_ones_own_gives_on_the_host_is_privatized_there(kind, on_device, monkeypatch):
    plan = small_plan(dimension=D)

    def make(settings):
        return kind(build("logistic", **SHAPE), settings)

    found = values_of(app_of(plan, make), ask(*CLIENTS))
    plain = values_of(app_of(plan), ask(*CLIENTS))
    monkeypatch.undo()
    expected = values_of(app_of(plan, make), ask(*CLIENTS))
    np.testing.assert_array_equal(np.concatenate(found), np.concatenate(expected))
    assert not np.allclose(np.concatenate(found), np.concatenate(plain), atol=1e-3)


def test_what_trains_stays_on_the_device_and_is_what_the_host_is_given():
    trainer = Trainer(build("logistic", **SHAPE), TrainingSettings(0.5, device="cpu"))
    start, examples = flat_parameters(build("logistic", **SHAPE)), examples_of("0", None)
    there = torch.tensor(start)
    given = examples.x, examples.y
    found = trainer.train_there(there, *given, order=np.random.default_rng(0)).clone()
    np.testing.assert_array_equal(there.numpy(), start)
    expected = trainer.train(start, *given, order=np.random.default_rng(0))
    np.testing.assert_array_equal(found.numpy(), expected)
    assert (expected != start).any()

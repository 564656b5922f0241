"""Clients that spoil their process, models and devices of it, and the tasks that the server sends them."""

import math
import multiprocessing
import os
from contextlib import contextmanager
from functools import partial

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from torch.utils._python_dispatch import TorchDispatchMode

from client.app import make_client_app
from client.data import ArrayClients, Dataset, Examples
from client.parameters import flat_parameters
from client.settings import TrainingSettings
from client.training import Trainer
from experiments.engines.processes import LocalProcess, Pool
from fedmf.updates import wire
from fedmf.updates.wire import TAG_BYTES
from plans import KEY, small_plan

PLAN = small_plan(dimension=15)
SPECIAL = 77.0  # in an input, it makes `Spoilt` spoil itself


class DeadDevice(TorchDispatchMode):
    """Fails every operation of torch from now on in this thread, as CUDA does after an assertion failed on it."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        raise RuntimeError("CUDA error: device-side assert triggered")


class LateError(TorchDispatchMode):
    """Fails the next norm, which is taken where an update is privatized; and where it `dies`, all that comes after."""

    def __init__(self, dies):
        super().__init__()
        self.dies, self.has_failed = dies, False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        is_norm = func is torch.ops.aten.linalg_vector_norm.default
        if (is_norm and not self.has_failed) or (self.dies and self.has_failed):
            self.has_failed = True
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return func(*args, **(kwargs or {}))


class Spoilt(torch.nn.Sequential):
    """Logistic regression that `spoil`s itself, given itself, when an input holds `SPECIAL`."""

    def __init__(self, spoil=None, *, seed=0):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            super().__init__(torch.nn.Flatten(), torch.nn.Linear(4, 3))
        vars(self)["spoil"] = spoil

    def forward(self, x):
        if bool((x == SPECIAL).any()) and self.spoil is not None:
            self.spoil(self)
        return super().forward(x)


def lose_device(model):
    """Let every later operation of this process fail, this client's next one first."""
    DeadDevice().__enter__()


def fail_late(model):
    """Let this client's update fail where it is privatized, and nothing after."""
    LateError(dies=False).__enter__()


def lose_device_late(model):
    """Let every operation of this process fail from where this client's update is privatized on."""
    LateError(dies=True).__enter__()


def examples_of(client, context):
    """Return a client's two examples; those of "special" hold `SPECIAL`."""
    x = torch.arange(8, dtype=torch.float32).reshape(2, 2, 2).numpy() / 8
    return Examples(x * 0 + SPECIAL if client == "special" else x, torch.tensor([0, 2]).numpy())


def app_of(spoil, made=None, examples=examples_of):
    """Return a ClientApp whose model spoils itself with the data of the client "special", which `examples` may give others."""

    def make_trainer():
        if made is not None:
            made.append("trainer")
        return Trainer(model, TrainingSettings(0.5, device="cpu"), "classification")

    model = Spoilt(spoil)
    return make_client_app(examples, make_trainer, PLAN.client_plan)


@contextmanager
def pool_of(make_app, *given, workers=2):
    """Yield a pool of processes of this machine that run the app of `make_app(*given)`."""
    processes = [LocalProcess(partial(make_app, *given)) for _ in range(workers)]
    try:
        yield Pool(processes)
    finally:
        for process in processes:
            process.end()


def load(clients=6, special=2) -> Dataset:
    """Return a dataset for `dataset.name=poison:load`; one client's examples hold `SPECIAL`."""
    x = np.random.default_rng(0).random((clients, 2, 2)).astype("f4")
    x[special] = SPECIAL
    y, one_each = np.arange(clients) % 3, np.arange(clients + 1)
    held, test = ArrayClients(x, y, one_each[:-1], one_each), Examples(x[:1], y[:1])
    return Dataset("poison", held, test, (2, 2), 3, "classification", "ours", "made up", "one row a client")


class Net(Spoilt):
    """A model for `model.name=poison:Net`: the special client loses the device and ends a worker (`dies`), or only fails."""

    def __init__(self, input_shape, classes, dies):
        super().__init__(lose_device_or_worker if dies else fail)


def lose_device_or_worker(model):
    """Lose the device of the first process, and end another."""
    end(model) if multiprocessing.parent_process() is not None else lose_device(model)


def fail(model):
    raise ValueError("no device is lost")


FULL = "NO_ROOM"  # variable: a file that is there while the device has no room


def raise_no_room():
    """Raise what CUDA raises where a tensor does not fit."""
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")


class RoomlessNet(torch.nn.Module):
    """A model for `model.name=poison:RoomlessNet`: no worker has room for it while the file that `FULL` names is there."""

    def __init__(self, input_shape: tuple[int, ...], classes: int):
        super().__init__()
        self.last = torch.nn.Linear(math.prod(input_shape), classes)

    def forward(self, x):
        return self.last(x.flatten(1))

    def _apply(self, fn, recurse=True):
        is_worker = multiprocessing.parent_process() is not None
        if is_worker and os.path.exists(os.environ.get(FULL, "")):
            raise_no_room()
        return super()._apply(fn, recurse)


def app_once(spoil):
    """Return a ClientApp that can make one trainer a process; its model is `spoil`ed by the client "special"."""
    made, model = [], Spoilt(spoil)

    def make_trainer():
        made.append("trainer")
        if len(made) > 1:
            raise_no_room()
        return Trainer(model, TrainingSettings(0.5, device="cpu"), "classification")

    return make_client_app(examples_of, make_trainer, PLAN.client_plan, at_once=True)


def end(model):
    """End this process, as a system without memory does."""
    os._exit(1)


def joint(*clients):
    """Return one message with the tasks of several clients, in round 2 of their epoch, around the model of `poison.Spoilt`."""
    vector = flat_parameters(Spoilt())
    array = Array("float32", vector.shape, wire.STYPE, wire.to_bytes(vector))
    content = RecordDict({wire.MODEL: ArrayRecord({wire.VECTOR: array}), wire.TASK: told(*clients)})
    return Message(content, 1, MessageType.TRAIN)


def told(*clients):
    """Return the record of several clients' tasks."""
    keys = [KEY.mask_key(client, 1).reveal() for client in clients]
    return ConfigRecord({wire.EPOCH: 0, wire.STEP: 1, wire.CLIENT: list(clients), wire.MASK_KEY: keys})


def values_in(reply):
    """Return the bytes that each client of a message sent."""
    return reply.content.config_records[wire.UPDATE][wire.VALUES]


def untagged(reply):
    """Return the bytes of each client's values, without the tags behind them."""
    return [data[:-TAG_BYTES] for data in values_in(reply)]

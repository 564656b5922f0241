"""A device without room for a model, on a CPU, and clients that leave less of it: what real workers meet on a full GPU."""

import math
import multiprocessing
import os

import torch

from client.app import make_client_app
from client.settings import TrainingSettings
from client.training import Trainer
from poison import PLAN, DeadDevice, Spoilt, examples_of

FULL = "NO_ROOM"  # variable: a file that is there while the device has no room


def refuse_room():
    """Raise what CUDA raises where a tensor does not fit."""
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")


class Net(torch.nn.Module):
    """A model for `model.name=no_room:Net`: no worker has room for it while the file that `FULL` names is there."""

    dies = False  # whether the device then answers no probe either

    def __init__(self, input_shape: tuple[int, ...], classes: int):
        super().__init__()
        self.last = torch.nn.Linear(math.prod(input_shape), classes)

    def forward(self, x):
        """Return the scores."""
        return self.last(x.flatten(1))

    def _apply(self, fn, recurse=True):
        is_worker = multiprocessing.parent_process() is not None
        if is_worker and os.path.exists(os.environ.get(FULL, "")):
            if self.dies:
                DeadDevice().__enter__()
            refuse_room()
        return super()._apply(fn, recurse)


class NetOfDeadDevice(Net):
    """The same where the device is gone."""

    dies = True


def app_once(spoil, elsewhere=None):
    """Return a ClientApp that can make one trainer a process; its model is `spoil`ed by the client "special"."""
    made, model = [], Spoilt(spoil)

    def make_trainer():
        made.append("trainer")
        if len(made) > 1:
            refuse_room()
        return Trainer(model, TrainingSettings(0.5, device="cpu"))

    return make_client_app(examples_of, make_trainer, PLAN.client_plan, elsewhere=elsewhere, at_once=True)


def app_that_dies(message, context):
    """Return an app whose process ends at the client "special"."""
    return app_once(end)


def end(model):
    """End this process, as a system without memory does."""
    os._exit(1)

"""Local training: a resident model, the parameters of which that train are views of one flat buffer.

A client's turn loads the flat vector in place and trains in place, so that the update is ready as one flat vector. A model of
torch's own layers and losses holds nothing but its parameters, and plays one client after another. Of any other, code of the
user's could leave what one client's data did: each client trains a copy of the model as it was made.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from client.drawing import is_known, may_draw, seeded
from client.loop import train
from client.losses import find_loss
from client.own_loop import find_loop, gather
from client.parameters import (
    check_trainable,
    digest_tensors,
    fixed_tensors,
    flat_parameters,
    set_training_mode,
    trained_parameters,
)
from client.settings import TrainingSettings
from fedmf.errors import SettingError
from fedmf.updates.vectors import Vector


def pick_device(device: str) -> torch.device:
    """Return the torch device that `device` names; "auto" is CUDA where there is one.

    Raises `SettingError` for "cuda" on a machine without.
    """
    available = torch.cuda.is_available()
    if device == "cuda" and not available:
        raise SettingError("device is cuda, but torch sees no CUDA device; use cpu or auto.")
    return torch.device("cuda" if device != "cpu" and available else "cpu")


def check_available(settings: TrainingSettings) -> None:
    """Raise `SettingError` for a device, a type or code that the settings name and this machine does not have."""
    device = pick_device(settings.device)
    if settings.autocast is not None and not _has_autocast(device, getattr(torch, settings.autocast)):
        raise SettingError(
            f"autocast is {settings.autocast}, which torch does not have on {device}; set it to None."
        )
    find_loss(settings.loss)
    if settings.trainer is not None:
        find_loop(settings.trainer)


class Trainer:
    """A copy of `model` that plays one client after another. It keeps nothing of a client between turns.

    `model` itself is left alone, so that another trainer can be made of it. Only parameters that require a gradient
    train. Raises `SettingError` for a model that `client.parameters.check_trainable` refuses.
    """

    def __init__(self, model: nn.Module, settings: TrainingSettings) -> None:
        check_trainable(model)
        check_available(settings)
        self._settings = settings
        self._device = pick_device(settings.device)
        self._made = deepcopy(model).to(self._device)
        set_training_mode(self._made)
        self._loss = find_loss(settings.loss)
        self._own_loop = None if settings.trainer is None else find_loop(settings.trainer)
        is_ours = self._own_loop is None and ":" not in settings.loss
        self._may_draw = not is_ours or may_draw(self._made)
        self._is_stateless = self._own_loop is None and all(map(is_known, self._made.modules()))
        self._flat = torch.from_numpy(flat_parameters(model)).to(self._device, copy=True)
        self._host = self._flat.cpu()  # on a CPU the same tensor: nothing is copied between them
        self._model = self._made
        self._point()

    def update(self, start: Vector, x: np.ndarray, y: np.ndarray, *, order: np.random.Generator) -> Vector:
        """Return trained minus `start`, (d,) float32; see `train`."""
        return self.train(start, x, y, order=order) - start

    def train(self, start: Vector, x: np.ndarray, y: np.ndarray, *, order: np.random.Generator) -> Vector:
        """Return what trains, (d,) float32, from `start` after the settings' passes over x [m, ...], y [m, ...].

        A view of the trainer's own memory, which the next call overwrites. `order` shuffles the examples, and seeds torch's
        generators for layers that draw. The result may be not finite when training diverges. Torch's gradient mode and
        default type are as they were afterwards.
        """
        np.copyto(self._host.numpy(), start)
        self._host.copy_(self.train_there(self._host, x, y, order=order))
        trained: Vector = self._host.numpy()
        return trained

    def train_there(
        self, start: Tensor, x: np.ndarray, y: np.ndarray, *, order: np.random.Generator
    ) -> Tensor:
        """Return what `train` does, (d,), where it was computed: on the trainer's device, where `start` may lie too.

        A device may raise an error of this only later, when something waits for what it computes.
        """
        # Code of one's own may write into what it is given, which would change the data of later epochs.
        given = torch.tensor if self._may_draw else torch.from_numpy
        inputs, targets = given(x).to(self._device), given(y).to(self._device)
        if not self._is_stateless:
            self._model = deepcopy(self._made)
            self._point()
        self._flat.copy_(start)
        if self._may_draw:
            with seeded(order, self._device), torch.enable_grad(), _default_type_kept():
                self._train(inputs, targets, order)
        else:
            self._train(inputs, targets, order)
        return self._flat

    def _train(self, inputs: Tensor, targets: Tensor, order: np.random.Generator) -> None:
        """Train the model in place, by our own loop or by the user's."""
        parameters = trained_parameters(self._model)
        if self._own_loop is None:
            examples, kept = (inputs, targets), list(parameters.values())
            train(self._model, kept, examples, settings=self._settings, loss=self._loss, order=order)
            return
        settings = replace(self._settings)  # a copy: it is frozen, but not against everything
        trained = self._own_loop(model=self._model, x=inputs, y=targets, settings=settings, order=order)
        self._flat.copy_(gather(trained, parameters))

    def _point(self) -> None:
        """Make the parameters of the model that train views of the flat buffer, in order."""
        start = 0
        for parameter in trained_parameters(self._model).values():
            end = start + parameter.numel()
            parameter.data = self._flat[start:end].view(parameter.shape)
            start = end

    @property
    def has_own_loop(self) -> bool:
        """Whether a loop of the user's own trains in place of ours."""
        return self._own_loop is not None

    def changed_tensors(self) -> list[str]:
        """Return the names of frozen parameters and buffers that the last turn changed: its client alone was given them so."""
        made, now = fixed_tensors(self._made), fixed_tensors(self._model)
        return [
            name for name in made if digest_tensors({name: made[name]}) != digest_tensors({name: now[name]})
        ]

    @cached_property
    def fixed_digest(self) -> str:
        """A public digest of the frozen parameters and buffers that the model was made with, "" without any."""
        return digest_tensors(fixed_tensors(self._made))

    @property
    def device(self) -> torch.device:
        """Where the model lies and computes."""
        return self._device


def _has_autocast(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether torch's autocast computes in `dtype` on `device`."""
    if not torch.amp.is_autocast_available(device.type):
        return False
    return device.type == "cpu" or dtype != torch.bfloat16 or torch.cuda.is_bf16_supported()


def probe_device(device: torch.device) -> None:
    """Return if `device` computes; raise what it raises if not."""
    torch.ones(1, device=device).add_(1).item()


@contextmanager
def _default_type_kept() -> Iterator[None]:
    """Put torch's default type back after the block."""
    dtype = torch.get_default_dtype()
    try:
        yield
    finally:
        torch.set_default_dtype(dtype)

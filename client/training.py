"""Local training: plain SGD on one resident model whose parameters are views of one flat buffer.

One model lives in the process for all clients. A client's turn loads the flat vector in place, trains in
place and subtracts in place, so that no copy of the model is made per client and the update is ready as one
flat vector.
"""

from copy import deepcopy

import numpy as np
import torch
from torch import nn

from client.losses import cross_entropy
from client.settings import TrainingSettings
from fedmf.errors import SettingError
from fedmf.updates.vectors import Layout, Vector


def pick_device(device: str) -> torch.device:
    """Return the torch device that `device` names; "auto" is CUDA where there is one.

    Raises `SettingError` for "cuda" on a machine without.
    """
    available = torch.cuda.is_available()
    if device == "cuda" and not available:
        raise SettingError("device is cuda, but torch sees no CUDA device; use cpu or auto.")
    return torch.device("cuda" if device != "cpu" and available else "cpu")


def layout_of(model: nn.Module) -> Layout:
    """Return names and shapes of the model's parameters."""
    return Layout(
        tuple(name for name, _ in model.named_parameters()),
        tuple(tuple(parameter.shape) for parameter in model.parameters()),
    )


def flat_parameters(model: nn.Module) -> Vector:
    """Return a copy of the model's parameters as one vector (d,), float32."""
    return np.concatenate(
        [parameter.detach().cpu().numpy().ravel() for parameter in model.parameters()], dtype="f4"
    )


def check_trainable(model: nn.Module) -> None:
    """Raise `SettingError` for a model with buffers: batch statistics and the like would leak unnoised."""
    if buffers := [name for name, _ in model.named_buffers()]:
        raise SettingError(
            f"the model has buffers ({', '.join(buffers)}), which no clipping or noise covers; "
            "use a model without."
        )


class Trainer:
    """A resident copy of `model` that plays one client after another. It keeps nothing of a client between turns.

    `model` itself is left alone, so that another trainer can be made of it. Raises `SettingError` for a model with
    buffers.
    """

    def __init__(self, model: nn.Module, settings: TrainingSettings) -> None:
        check_trainable(model)
        self._settings = settings
        self._device = pick_device(settings.device)
        self._model = deepcopy(model).to(self._device).train()
        parameters = list(self._model.parameters())
        self._flat = torch.cat([parameter.detach().reshape(-1) for parameter in parameters])
        self._gradient = torch.zeros_like(self._flat)
        self._host = self._flat.cpu()  # on a CPU the same tensor: nothing is copied between them
        _point_into(parameters, self._flat, self._gradient)
        self._made = _structure(self._model)

    def update(self, start: Vector, x: np.ndarray, y: np.ndarray, *, order: np.random.Generator) -> Vector:
        """Return trained minus `start`, (d,) float32, after the settings' passes over x [m, ...], y [m, ...].

        `order` shuffles the examples. The result may be not finite when training diverges.
        """
        settings = self._settings
        inputs, targets = torch.from_numpy(x).to(self._device), torch.from_numpy(y).to(self._device)
        np.copyto(self._host.numpy(), start)
        self._flat.copy_(self._host)
        for _ in range(settings.epochs):
            shuffled = torch.from_numpy(order.permutation(len(x))).to(self._device)
            for batch in torch.split(shuffled, settings.batch_size):
                self._gradient.zero_()
                torch.autograd.backward(cross_entropy(self._model(inputs[batch]), targets[batch]))
                self._flat.add_(self._gradient, alpha=-settings.learning_rate)
        self._host.copy_(self._flat)
        return self._host.numpy() - start

    def is_as_made(self) -> bool:
        """Say whether the model is what it was made as, but for the values of its parameters.

        Training may have given it other modules, tensors, hooks or attributes, which would play a part in the next
        client's turn. What lies deeper, in an attribute's own insides or outside the model, is not seen.
        """
        return _structure(self._model) == self._made

    @property
    def device(self) -> torch.device:
        """Where the model lies and computes."""
        return self._device


def probe_device(device: torch.device) -> None:
    """Return if `device` computes; raise what it raises if not."""
    torch.ones(1, device=device).add_(1).item()


def _point_into(parameters: list[nn.Parameter], flat: torch.Tensor, gradient: torch.Tensor) -> None:
    """Make parameters and their gradients views of two flat buffers, in order."""
    start = 0
    for parameter in parameters:
        end = start + parameter.numel()
        parameter.data = flat[start:end].view(parameter.shape)
        parameter.grad = gradient[start:end].view(parameter.shape)
        start = end


def _structure(model: nn.Module) -> list[object]:
    """Return what tells whether a model is still the same: its objects themselves and where its tensors lie.

    A module's attributes hold its tables of parameters, buffers, modules and hooks: these are compared one by one.
    """
    found: list[object] = []
    for module in model.modules():
        for name, value in vars(module).items():
            held = list(value.items()) if isinstance(value, dict) else [(name, value)]
            found.append((_Same(module), name, [(key, _Same(inner)) for key, inner in held]))
    for parameter in model.parameters():
        hooks = [len(getattr(parameter, table, None) or ()) for table in _HOOKS]
        found.append((_place(parameter), _place(parameter.grad), hooks, parameter.requires_grad))
    return found


_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")


def _place(tensor: torch.Tensor | None) -> object:
    """Return where a tensor lies in memory, and how."""
    return tensor if tensor is None else (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)


class _Same:
    """An object that equals itself alone, held so that its place in memory is not given to another."""

    def __init__(self, held: object) -> None:
        self._held = held

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self._held is other._held

    __hash__ = None  # type: ignore[assignment]  # compared only

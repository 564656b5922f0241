"""A training loop of one's own in place of ours: MODULE:FUNCTION.

    def train(
        model: nn.Module, x: Tensor, y: Tensor, settings: TrainingSettings, order: np.random.Generator
    ) -> nn.Module:

It is given a model in training mode, holding the weights that were sent, all examples of one client on the
model's device, and a generator seeded for this client and epoch. It trains the model and returns it. It may use only
what it is given, and must keep nothing outside the model between calls.

The guarantees are those of our loop. The update is the returned model's trained parameters minus what was sent; it is
clipped, rotated and masked after this; whatever is raised, or not finite, becomes a zero update; what is frozen is not
sent; torch's generators are seeded and put back; and every client is given a copy of the model as it was made.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from client.imports import check_takes, import_maker
from fedmf.errors import SettingError

TAKES = ("model", "x", "y", "settings", "order")


def find_loop(path: str) -> Callable[..., nn.Module]:
    """Return the function at `package.module:function`.

    Raises `SettingError` unless it is annotated with `-> nn.Module` and takes the arguments of `TAKES`, by name.
    """
    found = import_maker(path, "trainer", nn.Module)
    check_takes(found, {}, who=path, own=TAKES)
    return found


def gather(trained: Any, expected: Mapping[str, nn.Parameter]) -> Tensor:
    """Return the parameters `expected` of the model that a loop returned, as one vector (d,).

    Raises `SettingError` for what is no model, and for one that lacks a parameter or has it in another shape.
    """
    if not isinstance(trained, nn.Module):
        raise SettingError(f"trainer returned a {type(trained).__name__}; it must return the trained model.")
    now = dict(trained.named_parameters())
    for name, parameter in expected.items():
        if name not in now or now[name].shape != parameter.shape:
            found = tuple(now[name].shape) if name in now else "none"
            raise SettingError(
                f"trainer returned a model whose {name} has the shape {found}; it must be {tuple(parameter.shape)}."
            )
    flat = torch.cat([now[name].detach().reshape(-1) for name in expected])
    if flat.dtype != torch.float32:
        raise SettingError(f"trainer returned a model of type {flat.dtype}; what trains must stay float32.")
    return flat

"""Torch's own generators during one client's turn, for layers that draw, such as dropout.

They are global: without this, a client's draws would depend on who trained before it in the same process.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn

_KNOWN = (
    "torch.nn.modules.",
    "client.models",
)  # of which none keeps anything between two passes but running statistics
_DRAWING = (nn.RReLU, nn.FractionalMaxPool2d, nn.FractionalMaxPool3d, nn.modules.dropout._DropoutNd)


def is_known(module: nn.Module) -> bool:
    """Return whether a module is one of torch's or of this package, as its class has it and without hooks."""
    hooks = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks
    return type(module).__module__.startswith(_KNOWN) and "forward" not in vars(module) and not hooks


def may_draw(model: nn.Module) -> bool:
    """Say whether the model's training may draw from torch's generators: no only where every layer is known not to."""
    return any(_may_draw(module) for module in model.modules())


@contextmanager
def seeded(order: np.random.Generator, device: torch.device) -> Iterator[None]:
    """Seed torch's generators, of the CPU and of `device`, from `order` for the block, and put them back after it.

    The seed is drawn far down the stream of `order` (2^128 draws for Philox), so that what `order` draws next is the
    same with and without this.
    """
    further = np.random.Generator(order.bit_generator.jumped())  # type: ignore[attr-defined]
    seed = int(further.integers(2**63))
    is_cuda = device.type == "cuda"
    number = (torch.cuda.current_device() if device.index is None else device.index) if is_cuda else 0
    with torch.random.fork_rng(devices=[number] if is_cuda else []):
        torch.default_generator.manual_seed(seed)
        if is_cuda:
            torch.cuda.default_generators[number].manual_seed(seed)
        yield


def _may_draw(module: nn.Module) -> bool:
    return not is_known(module) or isinstance(module, _DRAWING) or bool(getattr(module, "dropout", 0))

"""One client's training by our own loop: batches, the loss of each, and a step along its gradient."""

from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np
import torch
from torch import Tensor, nn

from client.local_optimizer import new_step
from client.losses import Loss, counted
from client.settings import TrainingSettings


def train(
    model: nn.Module,
    parameters: Sequence[nn.Parameter],
    examples: tuple[Tensor, Tensor],
    *,
    settings: TrainingSettings,
    loss: Loss,
    order: np.random.Generator,
) -> None:
    """Train `model` in place on inputs [m, ...] and targets [m, ...], shuffled by `order`.

    `parameters` are those that train. They have no gradient before and after: autograd then hands over the arrays that it
    computed, so that none is zeroed first and none is copied.
    """
    inputs, targets = examples
    is_plain = settings.accumulate == 1 and settings.autocast is None
    step = new_step(settings, [parameter.detach() for parameter in parameters])
    for batch in islice(_batches(len(inputs), settings, order, inputs.device), settings.max_steps):
        if is_plain:
            torch.autograd.backward(loss(model(inputs[batch]), targets[batch]))
        else:
            _accumulate(model, inputs[batch], targets[batch], settings, loss)
        step([_taken_gradient(parameter) for parameter in parameters])


def _taken_gradient(parameter: nn.Parameter) -> Tensor:
    """Return the gradient of a parameter, zeros where the loss does not depend on it, and leave none behind."""
    gradient, parameter.grad = parameter.grad, None
    if gradient is None:
        return torch.zeros_like(parameter)
    return gradient if gradient.layout == torch.strided else gradient.to_dense()


def _batches(
    examples: int, settings: TrainingSettings, order: np.random.Generator, device: torch.device
) -> Iterator[Tensor]:
    """Yield the numbers of each batch's examples, for all epochs."""
    for _ in range(settings.epochs):
        shuffled = torch.from_numpy(order.permutation(examples)).to(device)
        yield from torch.split(shuffled, settings.batch_size)


def _accumulate(model: nn.Module, x: Tensor, y: Tensor, settings: TrainingSettings, loss: Loss) -> None:
    """Add the gradient of the batch's loss, part by part, each with the share of the batch's targets that it holds."""
    size = -(-settings.batch_size // settings.accumulate)
    total = counted(y)
    for inputs, targets in zip(torch.split(x, size), torch.split(y, size), strict=True):
        if present := counted(targets):
            torch.autograd.backward(loss(_outputs(model, inputs, settings), targets) * (present / total))


def _outputs(model: nn.Module, inputs: Tensor, settings: TrainingSettings) -> Tensor:
    """Return the model's outputs, of float32 also under autocast: the loss is computed in full."""
    if settings.autocast is None:
        return model(inputs)  # type: ignore[no-any-return]
    with torch.autocast(inputs.device.type, dtype=getattr(torch, settings.autocast)):
        outputs = model(inputs)
    return outputs.float()  # type: ignore[no-any-return]

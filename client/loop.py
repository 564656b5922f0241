"""One client's training by our own loop: batches, the loss of each, and a step of SGD or Adam along its gradient.

The state of the optimizer is made for one turn of one client, so that nothing of it reaches the next. Torch's `_foreach`
functions, which its own optimizers are made of, take all parameters in one call; `torch.optim` itself takes a second to import.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice

import numpy as np
import torch
from torch import Tensor, nn

from client.losses import Loss, counted
from client.settings import TrainingSettings

BETAS, EPSILON = (0.9, 0.999), 1e-8  # of Adam, as Kingma and Ba 2015 give them and torch has them

Step = Callable[[list[Tensor]], None]
"""Moves the parameters along their gradients, which it may overwrite."""


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
    computed, so that none is zeroed first and none is copied. With `accumulate` the gradient of a batch is that of its parts,
    each with the share of the batch's targets that it holds.
    """
    step = new_step(settings, [parameter.detach() for parameter in parameters])
    for x, y in islice(_batches(*examples, settings, order), settings.max_steps):
        if settings.accumulate == 1:
            torch.autograd.backward(loss(_outputs(model, x, settings), y))
        else:
            size, total = -(-settings.batch_size // settings.accumulate), counted(y)
            for inputs, targets in zip(torch.split(x, size), torch.split(y, size), strict=True):
                if present := counted(targets):
                    part = loss(_outputs(model, inputs, settings), targets)
                    torch.autograd.backward(part * (present / total))
        step([_taken_gradient(parameter) for parameter in parameters])


def _batches(
    x: Tensor, y: Tensor, settings: TrainingSettings, order: np.random.Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the inputs and targets of each batch, for all epochs."""
    for _ in range(settings.epochs):
        shuffled = torch.from_numpy(order.permutation(len(x))).to(x.device)
        for chosen in torch.split(shuffled, settings.batch_size):
            yield x[chosen], y[chosen]


def _outputs(model: nn.Module, x: Tensor, settings: TrainingSettings) -> Tensor:
    """Return the model's outputs, of float32 also under autocast: the loss is computed in full."""
    if settings.autocast is None:
        return model(x)  # type: ignore[no-any-return]
    with torch.autocast(x.device.type, dtype=getattr(torch, settings.autocast)):
        return model(x).float()  # type: ignore[no-any-return]


def _taken_gradient(parameter: nn.Parameter) -> Tensor:
    """Return the gradient of a parameter, zeros where the loss does not depend on it, and leave none behind."""
    gradient, parameter.grad = parameter.grad, None
    if gradient is None:
        return torch.zeros_like(parameter)
    return gradient if gradient.layout == torch.strided else gradient.to_dense()


def new_step(settings: TrainingSettings, parameters: list[Tensor]) -> Step:
    """Return the step of one client's turn, which changes `parameters` in place.

    With `proximal` it adds the gradient of mu/2 ||w - w_0||^2, where w_0 is what the parameters are now.
    """
    step = (_adam if settings.optimizer == "adam" else _sgd)(settings, parameters)
    if not settings.proximal:
        return step
    sent = [parameter.clone() for parameter in parameters]

    def proximal(gradients: list[Tensor]) -> None:
        torch._foreach_add_(gradients, torch._foreach_sub(parameters, sent), alpha=settings.proximal)
        step(gradients)

    return proximal


def _sgd(settings: TrainingSettings, parameters: list[Tensor]) -> Step:
    """Heavy-ball SGD: v = momentum v + g + decay w, w = w - rate v, from v = 0."""
    velocity = [torch.zeros_like(parameter) for parameter in parameters] if settings.momentum else []

    def step(gradients: list[Tensor]) -> None:
        direction = velocity or gradients
        if velocity:
            torch._foreach_mul_(velocity, settings.momentum)
            torch._foreach_add_(velocity, gradients)
        if settings.weight_decay:
            torch._foreach_add_(direction, parameters, alpha=settings.weight_decay)
        torch._foreach_add_(parameters, direction, alpha=-settings.learning_rate)

    return step


def _adam(settings: TrainingSettings, parameters: list[Tensor]) -> Step:
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019): w is first shrunk by rate times decay."""
    rate, decay, (mean_beta, square_beta) = settings.learning_rate, settings.weight_decay, BETAS
    mean, square = ([torch.zeros_like(parameter) for parameter in parameters] for _ in range(2))
    number = 0

    def step(gradients: list[Tensor]) -> None:
        nonlocal number
        number += 1
        torch._foreach_mul_(parameters, 1 - rate * decay)
        torch._foreach_lerp_(mean, gradients, 1 - mean_beta)
        torch._foreach_mul_(square, square_beta)
        torch._foreach_addcmul_(square, gradients, gradients, value=1 - square_beta)
        deviation = torch._foreach_sqrt(square)
        torch._foreach_div_(deviation, (1 - square_beta**number) ** 0.5)
        torch._foreach_add_(deviation, EPSILON)
        torch._foreach_addcdiv_(parameters, mean, deviation, value=-rate / (1 - mean_beta**number))

    return step

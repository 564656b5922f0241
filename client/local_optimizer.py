"""The step that a client takes along its gradient: SGD or Adam on the parameters that train.

The state is made for one turn of one client, so that nothing of it reaches the next. Torch's `_foreach` functions, which
its own optimizers are made of, take all parameters in one call.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from client.settings import TrainingSettings

BETAS, EPSILON = (0.9, 0.999), 1e-8  # of Adam, as Kingma and Ba 2015 give them and torch has them

Step = Callable[[list[Tensor]], None]
"""Moves the parameters along their gradients, which it may overwrite."""


def new_step(settings: TrainingSettings, parameters: list[Tensor]) -> Step:
    """Return the step of one client's turn, which changes `parameters` in place."""
    step = _adam if settings.optimizer == "adam" else _momentum if settings.momentum else _sgd
    taken = step(settings, parameters)
    return _with_proximal(settings.proximal, parameters, taken) if settings.proximal else taken


def _sgd(settings: TrainingSettings, parameters: list[Tensor]) -> Step:
    rate, decay = settings.learning_rate, settings.weight_decay

    def step(gradients: list[Tensor]) -> None:
        if decay:
            torch._foreach_add_(gradients, parameters, alpha=decay)
        torch._foreach_add_(parameters, gradients, alpha=-rate)

    return step


def _momentum(settings: TrainingSettings, parameters: list[Tensor]) -> Step:
    """Heavy-ball SGD: v = momentum v + g + decay w, w = w - rate v, from v = 0."""
    rate, decay, momentum = settings.learning_rate, settings.weight_decay, settings.momentum
    velocity = [torch.zeros_like(parameter) for parameter in parameters]

    def step(gradients: list[Tensor]) -> None:
        torch._foreach_mul_(velocity, momentum)
        torch._foreach_add_(velocity, gradients)
        torch._foreach_add_(velocity, parameters, alpha=decay)
        torch._foreach_add_(parameters, velocity, alpha=-rate)

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


def _with_proximal(mu: float, parameters: list[Tensor], step: Step) -> Step:
    """Return `step` with the gradient of mu/2 ||w - w_0||^2 added, where w_0 is what the parameters are now."""
    sent = [parameter.clone() for parameter in parameters]

    def proximal(gradients: list[Tensor]) -> None:
        torch._foreach_add_(gradients, torch._foreach_sub(parameters, sent), alpha=mu)
        step(gradients)

    return proximal

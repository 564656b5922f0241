"""The step that a client takes along its gradient: SGD or Adam on the flat vector of what trains.

The state is made for one turn of one client, so that nothing of it reaches the next.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from client.settings import TrainingSettings

BETAS, EPSILON = (0.9, 0.999), 1e-8  # of Adam, as Kingma and Ba 2015 give them and torch has them

Step = Callable[[], None]
"""Moves the parameters along the gradient that is there when it is called."""


def new_step(settings: TrainingSettings, parameters: Tensor, gradient: Tensor) -> Step:
    """Return the step of one client's turn, which changes `parameters` (d,) in place; it may overwrite `gradient`."""
    step = _adam if settings.optimizer == "adam" else _momentum if settings.momentum else _sgd
    taken = step(settings, parameters, gradient)
    return _with_proximal(settings.proximal, parameters, gradient, taken) if settings.proximal else taken


def _sgd(settings: TrainingSettings, parameters: Tensor, gradient: Tensor) -> Step:
    rate, decay = settings.learning_rate, settings.weight_decay

    def step() -> None:
        if decay:
            gradient.add_(parameters, alpha=decay)
        parameters.add_(gradient, alpha=-rate)

    return step


def _momentum(settings: TrainingSettings, parameters: Tensor, gradient: Tensor) -> Step:
    """Heavy-ball SGD: v = momentum v + g + decay w, w = w - rate v, from v = 0."""
    rate, decay, momentum = settings.learning_rate, settings.weight_decay, settings.momentum
    velocity = torch.zeros_like(parameters)

    def step() -> None:
        velocity.mul_(momentum).add_(gradient).add_(parameters, alpha=decay)
        parameters.add_(velocity, alpha=-rate)

    return step


def _adam(settings: TrainingSettings, parameters: Tensor, gradient: Tensor) -> Step:
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019): w is first shrunk by rate times decay."""
    rate, decay, (mean_beta, square_beta) = settings.learning_rate, settings.weight_decay, BETAS
    mean, square = torch.zeros_like(parameters), torch.zeros_like(parameters)
    number = 0

    def step() -> None:
        nonlocal number
        number += 1
        parameters.mul_(1 - rate * decay)
        mean.lerp_(gradient, 1 - mean_beta)
        square.mul_(square_beta).addcmul_(gradient, gradient, value=1 - square_beta)
        deviation = square.sqrt().div_((1 - square_beta**number) ** 0.5).add_(EPSILON)
        parameters.addcdiv_(mean, deviation, value=-rate / (1 - mean_beta**number))

    return step


def _with_proximal(mu: float, parameters: Tensor, gradient: Tensor, step: Step) -> Step:
    """Return `step` with the gradient of mu/2 ||w - w_0||^2 added, where w_0 is what the parameters are now."""
    sent = parameters.clone()

    def proximal() -> None:
        gradient.add_(parameters - sent, alpha=mu)
        step()

    return proximal

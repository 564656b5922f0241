"""Local training: a resident model, the parameters of which that train are views of one flat buffer.

A client's turn loads the flat vector in place and trains in place, so that the update is ready as one flat vector. A model of
torch's own layers and losses has no state but its parameters, and trains one client after another. With any other code, of a
user, a client could leave what its data did: each client trains a copy of the model as it was made.

The state of our loop's optimizer is made for one turn of one client, so that nothing of it reaches the next. The steps are the
functions that torch's optimizers are made of: the classes around them take a second to make the first of, and twice as long.

A custom loop takes the place of ours, MODULE:FUNCTION:

    def train(
        model: nn.Module, x: Tensor, y: Tensor, settings: TrainingSettings, order: np.random.Generator
    ) -> nn.Module:

It is given a model in training mode with the weights that were sent, all examples of one client on the model's device, and a
generator seeded for this client and epoch. It trains the model and returns it. It may use only what it is given, and must
keep nothing outside the model between calls. The guarantees are those of our loop: the update is the returned model's trained
parameters minus what was sent, and is clipped, rotated and masked; whatever is raised, or not finite, becomes a zero update;
what is frozen is not sent; torch's generators are seeded and put back.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import deepcopy
from dataclasses import replace
from functools import cached_property, partial
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from client.data.dataset import REGRESSION, Examples
from client.imports import calling, check_takes, import_maker
from client.metrics import Metric
from client.models import Cnn
from client.parameters import (
    check_trainable,
    digest_tensors,
    fixed_tensors,
    flat_parameters,
    set_parameters,
    set_training_mode,
    trained_parameters,
)
from client.scoring import Loss, Score, find_loss, loss_of, score
from client.settings import TrainingSettings
from fedmf.errors import SettingError
from fedmf.updates.vectors import Vector

# Modules of these keep nothing between two passes but running statistics.
_KNOWN = ("torch.nn.modules.", "client.models")
_DRAWING = (nn.RReLU, nn.FractionalMaxPool2d, nn.FractionalMaxPool3d, nn.modules.dropout._DropoutNd)

BETAS, EPSILON = (0.9, 0.999), 1e-8  # of Adam, as Kingma and Ba 2015 give them and torch has them

# Moves the parameters along their gradients, which it may overwrite.
Step = Callable[[list[Tensor]], None]


def pick_device(device: str) -> torch.device:
    """Return the torch device that `device` names; "auto" is CUDA where there is one.

    Raises `SettingError` for "cuda" on a machine without.
    """
    available = torch.cuda.is_available()
    if device == "cuda" and not available:
        raise SettingError("device is cuda, but torch sees no CUDA device; use cpu or auto.")
    return torch.device("cuda" if device != "cpu" and available else "cpu")


def check_available(
    settings: TrainingSettings, task: str
) -> tuple[torch.device, Loss, Callable[..., Any] | None]:
    """Return the device, the loss and the custom loop, if any, of the settings for data of a `task`.

    Raises `SettingError` for a device, a type or code that this machine does not have.
    """
    device = pick_device(settings.device)
    if settings.autocast is not None:
        calling(
            f"autocast is {settings.autocast}, which does not work on {device}",
            torch.autocast,
            device.type,
            getattr(torch, settings.autocast),
        )
    loop = None
    if settings.trainer is not None:
        loop = import_maker(settings.trainer, "trainer", nn.Module)
        check_takes(loop, {}, who=settings.trainer, own=("model", "x", "y", "settings", "order"))
    return device, find_loss(settings.loss, task), loop


def usual_rate(model: nn.Module, task: str) -> float:
    """Return the clients' learning rate where none is given: gradients of squared errors of inputs of about 1 are the steepest."""
    if task == REGRESSION:
        return 0.03
    return 0.3 if type(model) is Cnn else 1.0


class Trainer:
    """A copy of `model` that trains one client after another. It keeps nothing of a client between turns.

    `model` itself is left alone, so that another trainer can be made of it. Only parameters that require a gradient
    train. `task` is that of the data: the settings that a turn obeys always have a loss and a learning rate, those of task and model where none is given.
    `own_loop` is the custom loop that trains in place of ours, None without; `is_known`: no code of a user
    runs in a turn, and nothing draws. Raises `SettingError` for a model that
    `client.parameters.check_trainable` refuses.
    """

    def __init__(self, model: nn.Module, settings: TrainingSettings, task: str) -> None:
        check_trainable(model)
        loss = loss_of(settings.loss, task)
        rate = settings.learning_rate or usual_rate(model, task)
        self._settings = replace(settings, loss=loss, learning_rate=rate)
        self.device, self.loss, self.own_loop = check_available(settings, task)
        self._made = deepcopy(model).to(self.device)
        set_training_mode(self._made)
        is_ours = self.own_loop is None and ":" not in loss
        self.is_known = is_ours and all(map(_is_known, self._made.modules()))
        self._flat = torch.from_numpy(flat_parameters(model)).to(self.device, copy=True)
        self._model = self._made
        self._point()

    def update(self, start: Vector, x: np.ndarray, y: np.ndarray, *, order: np.random.Generator) -> Vector:
        """Return trained minus `start`, (d,) float32, on the host; see `train`."""
        return self.train(torch.tensor(start), x, y, order=order).cpu().numpy() - start

    def train(self, start: Tensor, x: np.ndarray, y: np.ndarray, *, order: np.random.Generator) -> Tensor:
        """Return what trains, (d,) float32, from `start` after the settings' passes over x [m, ...], y [m, ...].

        A view of the trainer's own memory on its device, which the next call overwrites. `order` shuffles the examples, and
        seeds torch's generators for layers that draw. The result may be not finite when training diverges. Torch's gradient
        mode and default type are as they were afterwards. A device may raise an error of this only later, when something
        waits for what it computes.
        """
        given: Callable[[np.ndarray], Tensor] = torch.from_numpy
        apart: AbstractContextManager[None] = nullcontext()
        if not self.is_known:
            self._model = deepcopy(self._made)
            self._point()
            # A user's code may write into what it is given, which would change the data of later epochs.
            given, apart = torch.tensor, _seeded(order, self.device)
        self._flat.copy_(start)
        inputs, targets = (given(part).to(self.device) for part in (x, y))
        parameters, settings = trained_parameters(self._model), self._settings
        with apart:
            if self.own_loop is None:
                # They have no gradient before and after: autograd then hands over the arrays that it computed, so that none
                # is zeroed first and none is copied.
                kept = list(parameters.values())
                step = new_step(settings, [parameter.detach() for parameter in kept])
                for some, theirs in islice(_batches(inputs, targets, settings, order), settings.max_steps):
                    torch.autograd.backward(self.loss(_outputs(self._model, some, settings), theirs))
                    step([_taken_gradient(parameter) for parameter in kept])
            else:
                # Of copied settings: they are frozen, but not against everything.
                trained = self.own_loop(
                    model=self._model, x=inputs, y=targets, settings=replace(settings), order=order
                )
                self._flat.copy_(_gather(trained, parameters))
        return self._flat

    def score(
        self,
        parameters: Vector,
        examples: Examples,
        uncounted: tuple[int, ...] = (),
        metrics: Mapping[str, Callable[[], Metric]] = {},
    ) -> Score:
        """Return the score of a copy of the model with `parameters` (d,), in evaluation mode; for public examples, and simulations.

        No noise covers what it is of a client's examples. The trainer itself stays as it is.
        """
        model = deepcopy(self._made).eval()
        set_parameters(model, parameters)
        return score(model, examples, loss=self.loss, uncounted=uncounted, metrics=metrics)

    def _point(self) -> None:
        """Make the parameters of the model that train views of the flat buffer, in order."""
        start = 0
        for parameter in trained_parameters(self._model).values():
            end = start + parameter.numel()
            parameter.data = self._flat[start:end].view(parameter.shape)
            start = end

    def changed_tensors(self) -> list[str]:
        """Return the names of frozen parameters and buffers that the last turn changed: no other client is given them so."""
        made, now = fixed_tensors(self._made), fixed_tensors(self._model)
        return [
            name for name in made if digest_tensors({name: made[name]}) != digest_tensors({name: now[name]})
        ]

    @cached_property
    def fixed_digest(self) -> str:
        """A public digest of the frozen parameters and buffers that the model was made with, "" without any."""
        return digest_tensors(fixed_tensors(self._made))


def _batches(
    x: Tensor, y: Tensor, settings: TrainingSettings, order: np.random.Generator
) -> Iterator[tuple[Tensor, Tensor]]:
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
    common: dict[str, Any] = {
        "lr": settings.learning_rate,
        "weight_decay": settings.weight_decay,
        "foreach": True,
        "maximize": False,
    }
    if settings.optimizer == "adam":  # decoupled weight decay: Loshchilov and Hutter 2019
        step: Step = partial(
            adam,
            parameters,
            exp_avgs=[torch.zeros_like(parameter) for parameter in parameters],
            exp_avg_sqs=[torch.zeros_like(parameter) for parameter in parameters],
            max_exp_avg_sqs=[],
            state_steps=[torch.zeros(()) for _ in parameters],
            decoupled_weight_decay=True,
            amsgrad=False,
            beta1=BETAS[0],
            beta2=BETAS[1],
            eps=EPSILON,
            **common,
        )
    else:
        step = partial(
            sgd,
            parameters,
            momentum_buffer_list=[None] * len(parameters),
            momentum=settings.momentum,
            dampening=0.0,
            nesterov=False,
            **common,
        )
    if not settings.proximal:
        return step
    sent = [parameter.clone() for parameter in parameters]

    def proximal(gradients: list[Tensor]) -> None:
        torch._foreach_add_(gradients, torch._foreach_sub(parameters, sent), alpha=settings.proximal)
        step(gradients)

    return proximal


def _is_known(module: nn.Module) -> bool:
    """Return whether a module, of torch or of this package and without hooks, neither keeps anything nor draws."""
    hooks = (
        module._forward_pre_hooks,
        module._forward_hooks,
        module._backward_pre_hooks,
        module._backward_hooks,
    )
    is_as_written = "forward" not in vars(module) and not any(hooks)
    may_draw = isinstance(module, _DRAWING) or bool(getattr(module, "dropout", 0))
    return type(module).__module__.startswith(_KNOWN) and is_as_written and not may_draw


@contextmanager
def _seeded(order: np.random.Generator, device: torch.device) -> Iterator[None]:
    """Seed torch's generators, of the CPU and of `device`, from `order` for the block, and put them back after it.

    They are global: without this, a client's draws would depend on who trained before it in the same process. The seed is
    drawn far down the stream of `order` (2^128 draws for Philox), so that what `order` draws next is the same with and without
    this. Torch's gradient mode and default type are put back too.
    """
    further = np.random.Generator(order.bit_generator.jumped())  # type: ignore[attr-defined]
    seed, dtype = int(further.integers(2**63)), torch.get_default_dtype()
    number = (
        (torch.cuda.current_device() if device.index is None else device.index)
        if device.type == "cuda"
        else None
    )
    try:
        with torch.random.fork_rng([] if number is None else [number]), torch.enable_grad():
            torch.default_generator.manual_seed(seed)
            if number is not None:
                torch.cuda.default_generators[number].manual_seed(seed)
            yield
    finally:
        torch.set_default_dtype(dtype)


def _gather(trained: Any, expected: Mapping[str, nn.Parameter]) -> Tensor:
    """Return the parameters `expected` of the model that a loop returned, as one vector (d,).

    Raises `SettingError` for what is no model, and for one that lacks a parameter or has it in another shape or type.
    """
    if not isinstance(trained, nn.Module):
        raise SettingError(
            f"trainer returned an object of type {type(trained).__name__}; it must return the trained model."
        )
    now = dict(trained.named_parameters())
    for name, parameter in expected.items():
        found = now.get(name)
        if found is None or found.shape != parameter.shape or found.dtype != torch.float32:
            which = "absent" if found is None else f"{found.dtype} of shape {tuple(found.shape)}"
            raise SettingError(
                f"trainer returned a model whose {name} is {which}; it must be float32 of shape {tuple(parameter.shape)}."
            )
    return torch.cat([now[name].detach().reshape(-1) for name in expected])

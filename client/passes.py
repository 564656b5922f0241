"""Passes of a model alone: forward in training and in evaluation, the loss, backward, each checked by what it gives."""

from inspect import signature

import numpy as np
import torch
from torch import Tensor, nn

from client.data.dataset import Dataset, Examples
from client.losses import Loss, counted
from client.reasons import calling, reason
from client.scoring import SCORED_AT_ONCE
from fedmf.errors import SettingError


def check_training(model: nn.Module, x: Tensor, y: Tensor, classes: int, loss: Loss, accumulate: int) -> None:
    """Check one pass in training, whose gradients are left."""
    model.zero_grad()
    outputs = _outputs(model, x, y, classes, "")
    value = _loss_of(loss, outputs, y)
    if accumulate > 1:
        _check_is_mean(loss, outputs.detach(), y, value.item())
    calling("the gradient of the loss could not be computed", torch.autograd.backward, value)
    _check_gradients(model)


def said_of_one(model: nn.Module, x: Tensor, y: Tensor, loss: Loss) -> str | None:
    """Return a sentence if one example alone cannot be trained on, else None."""
    try:
        value = loss(model(x), y)
        torch.autograd.backward(value)
        finite = [value, *(parameter.grad for parameter in model.parameters() if parameter.grad is not None)]
        why = (
            "" if all(bool(torch.isfinite(each).all()) for each in finite) else "what it gives is not finite"
        )
    except (Exception, SystemExit) as error:
        why = reason(error)
    if not why:
        return None
    return (
        f"the model cannot be trained on one example alone: {why}; clients with one example, or whose last batch holds "
        "one, will fail and send zeros."
    )


def check_scoring(model: nn.Module, dataset: Dataset, device: torch.device) -> None:
    """Check the outputs in evaluation, of as many test examples as are scored at once."""
    test = Examples(dataset.test.x[:SCORED_AT_ONCE], dataset.test.y[:SCORED_AT_ONCE])
    x, y = (torch.tensor(np.asarray(part), device=device) for part in (test.x, test.y))
    with torch.no_grad():
        _outputs(model.eval(), x, y, dataset.classes, "in evaluation mode ")


def _check_is_mean(loss: Loss, outputs: Tensor, y: Tensor, whole: float) -> None:
    """Check that the loss of a batch is that of its halves, each with the share of the targets that it holds."""
    half = len(y) // 2
    parts = [(outputs[:half], y[:half]), (outputs[half:], y[half:])]
    if any(counted(targets) == 0 for _, targets in parts):
        return  # a single example, or all that counts in one half: nothing to compare
    joined = sum(float(loss(*part)) * counted(part[1]) for part in parts) / counted(y)
    if not np.isclose(joined, whole, rtol=1e-3, atol=1e-6):
        raise SettingError(
            f"accumulate is set, but the loss is no mean over the targets: {whole:.6g} for a batch and {joined:.6g} from "
            "its halves, so that parts of a batch would give another gradient; divide it by the number of targets that "
            "count, or leave accumulate out."
        )


def _outputs(model: nn.Module, x: Tensor, y: Tensor, classes: int, when: str) -> Tensor:
    """Return what the model makes of `x`, after checking that it is one finite value for each class."""
    wanted = [*y.shape, classes]
    try:
        signature(model.forward).bind(x)
    except TypeError as error:
        raise SettingError(
            f"the model's forward takes {signature(model.forward)}, but it is called with one argument, the inputs; "
            "give all others a default."
        ) from error
    except ValueError:
        pass  # compiled code has no signature to look at
    outputs = calling(
        f"the model {when}cannot take {_short(x.dtype)} inputs of shape {list(x.shape)}", model, x
    )
    what = f"one tensor of shape {wanted}, a value for each of the data set's {classes} classes"
    if not isinstance(outputs, Tensor):
        raise SettingError(f"the model {when}returns a {type(outputs).__name__}; it must return {what}.")
    if list(outputs.shape) != wanted:
        raise SettingError(
            f"the model {when}returns the shape {list(outputs.shape)} for inputs of shape {list(x.shape)}; it must "
            f"return {what}."
        )
    if not outputs.is_floating_point():
        raise SettingError(
            f"the model {when}returns {_short(outputs.dtype)} values; it must return real numbers."
        )
    if not bool(torch.isfinite(outputs).all()):
        raise SettingError(
            f"the model {when}returns values that are not finite before any training; all of them must be."
        )
    return outputs


def _loss_of(loss: Loss, outputs: Tensor, y: Tensor) -> Tensor:
    """Return the loss, after checking that it is one finite number that depends on the parameters."""
    value = calling(
        f"the loss cannot take outputs of shape {list(outputs.shape)} and {_short(y.dtype)} targets of shape "
        f"{list(y.shape)}",
        loss,
        outputs,
        y,
    )
    if not isinstance(value, Tensor) or value.numel() != 1:
        found = f"shape {list(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
        raise SettingError(f"the loss gives {found}; it must give one number, as a tensor.")
    if not bool(torch.isfinite(value).all()):
        raise SettingError(f"the loss is {value.item()} before any training; it must be finite.")
    if not value.requires_grad:
        raise SettingError(
            "the loss does not depend on the model's parameters, so that nothing would be trained; its outputs must be "
            "computed from them, and not be detached."
        )
    return value


def _check_gradients(model: nn.Module) -> None:
    """Check that gradients are finite, and that there is one at all."""
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    found = {name: gradient for name, gradient in gradients.items() if gradient is not None}
    if not found:
        raise SettingError("no parameter of the model gets a gradient; at least one must.")
    for name, gradient in found.items():
        if not bool(torch.isfinite(gradient).all()):
            raise SettingError(
                f"the gradient of parameter {name} is not finite before any training; all of them must be."
            )
    if not any(bool(gradient.any()) for gradient in found.values()):
        raise SettingError(
            "all gradients are 0 before any training, so that nothing would be learnt; what is trained on must change with "
            "the parameters."
        )


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")

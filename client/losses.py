"""What a client's training makes small: the losses by name, or a custom function.

    cross_entropy     integer targets [...], outputs [..., classes]: mean cross-entropy in nats
    mse               mean squared error
    bce_with_logits   mean binary cross-entropy of logits, in nats

The last two compare outputs and targets element by element. Targets have the shape of the outputs, or lack their last
axis: then integer targets are class numbers and count as one-hot rows, and where that axis has length 1 they are the
values themselves. No other shapes are broadcast. Every loss is the mean over the counted targets: an integer target
equal to `IGNORED_TARGET` counts for nothing.
"""

import inspect
from collections.abc import Callable
from functools import partial

from torch import Tensor, nn

from client.data.dataset import IGNORED_TARGET
from client.imports import calling, import_maker
from client.settings import check_loss
from fedmf.errors import SettingError

Loss = Callable[[Tensor, Tensor], Tensor]
"""Of outputs and targets, the mean over the counted targets, a scalar."""


def find_loss(name: str) -> Loss:
    """Return the loss called `name`, or the function at `package.module:function`, annotated with `-> Tensor`.

    Raises `SettingError` for an unknown name, and for a function that does not promise a `Tensor` of two arguments.

    >>> import torch
    >>> float(find_loss("mse")(torch.tensor([[0.5, 0.5]]), torch.tensor([1])))
    0.25
    """
    check_loss("loss", name)
    if ":" not in name:
        return cross_entropy if name == "cross_entropy" else partial(by_element, name)
    found = import_maker(name, "loss", Tensor)
    calling(
        f"loss is {name!r}, which cannot be called with outputs and targets",
        inspect.signature(found).bind,
        None,
        None,
    )
    return found


def counted(targets: Tensor) -> int:
    """Return how many targets a loss is the mean over: all numbers, and integers other than `IGNORED_TARGET`."""
    return targets.numel() if targets.is_floating_point() else int((targets != IGNORED_TARGET).sum())


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy in nats over targets other than `IGNORED_TARGET`.

    One expression for both tasks: `outputs` is [n, classes] with `targets` [n], or [n, length, vocabulary]
    with [n, length].
    """
    return nn.functional.cross_entropy(outputs.flatten(0, -2), targets.flatten(), ignore_index=IGNORED_TARGET)


def by_element(name: str, outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the loss `name`, mse or bce_with_logits, the mean over counted targets, see the module."""
    return _BY_ELEMENT[name](*_fitted(outputs, targets, name))


_BY_ELEMENT: dict[str, Callable[..., Tensor]] = {
    "mse": nn.functional.mse_loss,
    "bce_with_logits": nn.functional.binary_cross_entropy_with_logits,
}


def _fitted(outputs: Tensor, targets: Tensor, loss: str) -> tuple[Tensor, Tensor]:
    """Return outputs and targets of one shape and type, without what counts for nothing. Raises `SettingError`."""
    lacks_last = outputs.ndim > 0 and targets.shape == outputs.shape[:-1]
    is_class = lacks_last and outputs.shape[-1] > 1
    if not (targets.shape == outputs.shape or lacks_last) or (is_class and targets.is_floating_point()):
        raise SettingError(
            f"loss is {loss!r}, which compares element by element, but the model's outputs have the shape "
            f"{list(outputs.shape)} and the {targets.dtype} targets {list(targets.shape)}; they must be of one shape, "
            "or integer targets lack the last axis."
        )
    if lacks_last and not is_class:
        outputs = outputs.squeeze(-1)
    if not targets.is_floating_point():
        chosen = targets != IGNORED_TARGET
        outputs, targets = outputs[chosen], targets[chosen]
    if is_class:
        targets = nn.functional.one_hot(targets, outputs.shape[-1])
    return outputs, targets.to(outputs.dtype)

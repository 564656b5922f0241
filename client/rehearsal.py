"""One forward and backward pass and one client's turn on public examples, before any client is asked.

Refused is also what would run and learn nothing: a turn that changes nothing, and a parameter that trains but that the
loss does not reach, which would be sent and noised into a random walk.

A model that raises, or gives no numbers, would make every client's update zero: the run would spend its whole privacy
budget on nothing and end well. Here that is one sentence. Nothing of it is left: what is rehearsed with are copies, and
the global generators are put back.
"""

import random
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from copy import deepcopy
from inspect import signature
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from client.contents import attributes
from client.data.converted import pieces
from client.data.dataset import IGNORED_TARGET, Dataset, Examples
from client.losses import Loss, counted
from client.parameters import layout_of, set_training_mode, trained_parameters
from client.reasons import reason
from client.scoring import SCORED_AT_ONCE
from client.training import Trainer
from fedmf.errors import FedmfError, SettingError
from fedmf.updates.vectors import Layout, Vector

T = TypeVar("T")


def rehearse(
    dataset: Dataset,
    model: nn.Module,
    make_trainer: Callable[[], Trainer],
    start: Vector,
    *,
    loss: Loss,
    batch_size: int,
    accumulate: int = 1,
) -> str | None:
    """Raise `SettingError` if `model` cannot be trained and scored on up to `batch_size` examples of the test split.

    The model is rehearsed alone, with `loss`, in training and in evaluation; then a trainer of its own takes one turn
    from `start` (d,). The error says what was found and what would be right. With `accumulate` the loss must be a mean.
    Returns what is to be said of a model that cannot be trained on one example alone, which some clients may have.
    `model` and torch's, numpy's and Python's global generators are as they were, in any case.
    """
    examples = public_batch(dataset.test, batch_size)
    if len(examples) == 0:
        raise SettingError(
            f"dataset {dataset.name} has no test example whose target counts; it must have at least one."
        )
    with _global_generators_kept():
        _check_data(dataset, examples)
        trainer = _calling("the trainer could not be made", make_trainer)
        with torch.random.fork_rng(devices=_cuda_devices(trainer)):
            return _check_model_and_turn(dataset, model, trainer, start, examples, loss, accumulate)


def _check_model_and_turn(
    dataset: Dataset,
    model: nn.Module,
    trainer: Trainer,
    start: Vector,
    examples: Examples,
    loss: Loss,
    accumulate: int,
) -> str | None:
    """Check the model alone, and then a turn of `trainer`; return what is to be said of single examples."""
    # Copies once more: a model that writes into its inputs must not change what the turn is given.
    x, y = (torch.tensor(part, device=trainer.device) for part in (examples.x, examples.y))
    copy = deepcopy(model).to(trainer.device)
    set_training_mode(copy)
    changed = _check_passes(copy, x, y, dataset.classes, loss, accumulate)
    unreached = [name for name, parameter in trained_parameters(copy).items() if parameter.grad is None]
    alone = _said_of_one(copy, x[:1], y[:1], loss) if len(x) > 1 else None
    _check_scoring(copy, dataset, trainer.device)
    update = _check_turn(trainer, start, examples, changed)
    _refuse_unreached(layout_of(model), update, unreached, by_own_loop=trainer.has_own_loop)
    return alone


def public_batch(examples: Examples, size: int) -> Examples:
    """Return copies of the first `size` examples that have a target which counts.

    >>> public_batch(Examples(np.arange(3.0), np.array([IGNORED_TARGET, 1, 2])), 1).x.tolist()
    [1.0]
    """
    parts = [(part != IGNORED_TARGET).reshape(len(part), -1).any(axis=1) for part in pieces(examples.y)]
    rows = np.flatnonzero(np.concatenate(parts or [np.empty(0, bool)]))[:size]
    return Examples(examples.x[rows], examples.y[rows])  # an array of indices copies


@contextmanager
def _global_generators_kept() -> Iterator[None]:
    """Put the CPU's global generators back: a run must not depend on whether it was rehearsed."""
    # The old numpy generator: what a user's own code may draw from.
    of_python, of_numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)  # noqa: NPY002


def _cuda_devices(trainer: Trainer) -> list[int]:
    """Return the CUDA devices whose generators a turn may move; none where it computes on a CPU."""
    return list(range(torch.cuda.device_count())) if trainer.device.type == "cuda" else []


def _check_data(dataset: Dataset, examples: Examples) -> None:
    """Check that the test split is what the data set says: shape of the inputs, range of the targets."""
    shape = tuple(examples.x.shape[1:])
    if shape != tuple(dataset.input_shape):
        raise SettingError(
            f"a test example of dataset {dataset.name} has the shape {list(shape)}; the data set says that inputs have "
            f"the shape {list(dataset.input_shape)}."
        )
    for targets in map(np.asarray, pieces(dataset.test.y)):
        if not np.issubdtype(targets.dtype, np.integer):
            return  # for a loss that takes no classes; it says itself what it cannot use
        wrong = targets[((targets < 0) | (targets >= dataset.classes)) & (targets != IGNORED_TARGET)]
        if wrong.size:
            raise SettingError(
                f"a test example of dataset {dataset.name} has the target {wrong.flat[0]}; with {dataset.classes} classes "
                f"targets must lie in 0 to {dataset.classes - 1}, or be {IGNORED_TARGET}, which is not counted."
            )


def _check_passes(model: nn.Module, x: Tensor, y: Tensor, classes: int, loss: Loss, accumulate: int) -> str:
    """Check one pass in training, whose gradients are left; return which attribute of `model` it changed, or ""."""
    model.zero_grad()
    before = attributes(model)
    outputs = _outputs(model, x, y, classes, "")
    value = _loss_of(loss, outputs, y)
    if accumulate > 1:
        _check_is_mean(loss, outputs.detach(), y, value.item())
    _calling("the gradient of the loss could not be computed", torch.autograd.backward, value)
    _check_gradients(model)
    after = attributes(model)
    changed = [key for key in {**before, **after} if before.get(key) != after.get(key)]
    return ".".join(filter(None, map(str, changed[0]))) if changed else ""


def _said_of_one(model: nn.Module, x: Tensor, y: Tensor, loss: Loss) -> str | None:
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


def _check_scoring(model: nn.Module, dataset: Dataset, device: torch.device) -> None:
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
    outputs = _calling(
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
    value = _calling(
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


def _refuse_unreached(
    layout: Layout, update: Vector, unreached: Collection[str], *, by_own_loop: bool
) -> None:
    """Refuse parameters that train and get no gradient: they would be sent, and noise alone would move them.

    A loop of one's own may have a loss of its own: there, those that its turn left as they were.
    """
    moved = {name for name, values in layout.split(update).items() if values.any()}
    left = [name for name in unreached if not by_own_loop or name not in moved]
    if left:
        raise SettingError(
            f"{', '.join(left[:5])}{' and others' if len(left) > 5 else ''} of the model would be sent and noised, but "
            "the loss does not depend on them, so that the noise alone would move them; freeze what is not to train "
            "(requires_grad=False, or trainable set to the names of the others), or use it in forward."
        )


def _check_turn(trainer: Trainer, start: Vector, examples: Examples, changed: str) -> Vector:
    """Return one client's update, after checking it: finite, not zero, and the model is as before but for it."""
    update = _calling(
        f"a client's turn on {len(examples)} test examples failed",
        lambda: trainer.update(start, examples.x, examples.y, order=np.random.default_rng(0)),
    )
    if update.shape != start.shape:
        raise SettingError(
            f"a client's turn gave an update of shape {list(update.shape)}; it must be {list(start.shape)}."
        )
    if not np.isfinite(update).all():
        raise SettingError(
            f"a client's turn on {len(examples)} test examples gave an update that is not finite; a lower learning_rate "
            "of the clients may help."
        )
    if not update.any():
        raise SettingError(
            f"a client's turn on {len(examples)} test examples left every parameter as it was, so that nothing would be "
            "learnt; training must change the model that it is given, or return the one that it changed."
        )
    if not trainer.is_as_made():
        what = ", ".join(trainer.changed_tensors()) or (
            f"its attribute {changed}" if changed else "a module, tensor, hook or attribute of it"
        )
        raise SettingError(
            f"training changes the model beyond its parameters ({what}), which would carry what one client's data did to "
            "the next one; forward, and a training loop of one's own, must leave the module as it is."
        )
    return update


def _calling(failed: str, function: Callable[..., T], *arguments: object) -> T:
    """Return what `function` returns; what it raises becomes a sentence that begins with `failed`."""
    try:
        return function(*arguments)
    except FedmfError:
        raise
    except (Exception, SystemExit) as error:
        raise SettingError(f"{failed}: {reason(error)}.") from error


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")

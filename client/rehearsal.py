"""One client's turn on public examples before any client is asked, and four checks of what a turn cannot show.

A model that raises, or gives no numbers, would make every client's update zero: the run would spend its whole privacy
budget on nothing and end well. Here that is one sentence. It is an error too if a run would train and learn nothing: a turn that
changes nothing, and a parameter that trains but that the loss does not reach, which would be sent and noised into a random
walk. Nothing of it is left: what is rehearsed with are copies, and the global generators are put back.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy

import numpy as np
import torch
from torch import Tensor, nn

from client.data.dataset import IGNORED_TARGET, OF_NUMBERS, Dataset, Examples, pieces
from client.imports import calling, reason
from client.parameters import layout_of, set_training_mode, trained_parameters
from client.scoring import SCORED_AT_ONCE, Loss
from client.training import Trainer
from fedmf.errors import SettingError
from fedmf.updates.vectors import Vector


def rehearse(
    dataset: Dataset,
    model: nn.Module,
    make_trainer: Callable[[], Trainer],
    start: Vector,
    *,
    batch_size: int,
) -> str | None:
    """Raise `SettingError` if `model` cannot be trained and scored on up to `batch_size` examples of the test split.

    A trainer of its own takes one turn from `start` (d,). A turn does not show whether the model can be scored, whether the
    loss reaches all that trains, and whether one example alone can be trained on, which some clients may have: the warning
    about that is returned. Nor does it show whether a user's code keeps something between turns. `model` and torch's, numpy's
    and Python's global generators are as they were, in any case.
    """
    # Copies of the first examples that have a target which counts.
    parts = [(part != IGNORED_TARGET).reshape(len(part), -1).any(axis=1) for part in pieces(dataset.test.y)]
    rows = np.flatnonzero(np.concatenate(parts))[:batch_size]
    examples = Examples(dataset.test.x[rows], dataset.test.y[rows])  # an array of indices copies
    with global_generators_kept():
        trainer = calling("the trainer could not be made", make_trainer)
        device = trainer.device
        with torch.random.fork_rng(range(torch.cuda.device_count()) if device.type == "cuda" else []):
            check_outputs(deepcopy(model).to(device), dataset, device)
            with global_generators_kept():
                update = turn(trainer, start, examples)
                unreached = unreached_parameters(deepcopy(model).to(device), examples, trainer.loss, device)
                moved = {name for name, values in layout_of(model).split(update).items() if values.any()}
                # A custom loop may have a loss of its own, which reaches what its turn moved.
                if left := [name for name in unreached if trainer.own_loop is None or name not in moved]:
                    raise SettingError(
                        f"{', '.join(left[:5])}{' and others' if len(left) > 5 else ''} of the model would be sent and noised, but "
                        "the loss does not depend on them, so that the noise alone would move them; freeze what is not to train "
                        "(requires_grad=False, or trainable set to the names of the others), or use it in forward."
                    )
                warning = warning_of_one(trainer, start, examples)
            if not trainer.is_known:
                # A copy of the model shares closures with it, and what `__deepcopy__` leaves: they can carry a client's data to the
                # next one. A GPU may add in another order at each turn: there 1 percent is let pass.
                again = trainer.update(start, examples.x, examples.y, order=np.random.default_rng(0))
                allowed = 0.0 if device.type == "cpu" else 0.01 * np.linalg.norm(update)
                if not np.linalg.norm(again - update) <= allowed:
                    raise SettingError(
                        "a client's turn gives another update once other clients had theirs, so that what one client's data leave "
                        "could reach the next; keep nothing in closures, globals, classes or files, and draw from torch's generators "
                        "only."
                    )
            return warning


def turn(trainer: Trainer, start: Vector, examples: Examples) -> Vector:
    """Return one client's update, after checking that it is finite, not zero, and of what trains alone."""
    what = f"a client's turn on {len(examples)} test examples"
    update = calling(
        f"{what} failed", trainer.update, start, examples.x, examples.y, order=np.random.default_rng(0)
    )
    if not np.isfinite(update).all():
        raise SettingError(
            f"{what} gave an update that is not finite; a lower learning_rate of the clients may help."
        )
    if not update.any():
        raise SettingError(
            f"{what} left every parameter as it was, so that nothing would be learnt; training must change the model that it is "
            "given, or return the one that it changed."
        )
    if changed := trainer.changed_tensors():
        raise SettingError(
            f"training changes {', '.join(changed)} of the model, which no clipping or noise covers: every client would begin "
            "with the value before training, and the model that is released holds it. Make it a parameter that trains, or leave it as it is."
        )
    return update


def check_outputs(model: nn.Module, dataset: Dataset, device: torch.device) -> None:
    """Check that the model in evaluation gives one finite number for each class, of as many examples as are scored at once.

    Of regression and multilabel, one for each number of a target.
    """
    x, y = (np.asarray(part[:SCORED_AT_ONCE]) for part in (dataset.test.x, dataset.test.y))
    wanted, shape = [*y.shape, dataset.classes], list(x.shape)
    each = f"each of the dataset's {dataset.classes} classes"
    if dataset.task in OF_NUMBERS:
        wanted, each = [*y.shape], "each number of a target"
    with torch.no_grad():
        outputs = calling(
            f"the model cannot take {x.dtype} inputs of shape {shape}",
            model.eval(),
            torch.tensor(x, device=device),
        )
    is_tensor = isinstance(outputs, Tensor)
    if not is_tensor or list(outputs.shape) != wanted:
        found = f"the shape {list(outputs.shape)}" if is_tensor else f"the type {type(outputs).__name__}"
        raise SettingError(
            f"the model returns {found} for inputs of shape {shape} in evaluation mode; it must return one tensor of shape "
            f"{wanted}, a value for {each}."
        )
    if not outputs.is_floating_point() or not bool(torch.isfinite(outputs).all()):
        raise SettingError(
            f"the model returns {outputs.dtype} values before any training that are no finite real numbers; all of them must be."
        )


def unreached_parameters(model: nn.Module, examples: Examples, loss: Loss, device: torch.device) -> list[str]:
    """Return the names of the parameters that train and that the loss in training does not depend on."""
    set_training_mode(model)
    x, y = (torch.tensor(part, device=device) for part in (examples.x, examples.y))
    calling(
        "the gradient of the loss could not be computed", lambda: torch.autograd.backward(loss(model(x), y))
    )
    return [name for name, parameter in trained_parameters(model).items() if parameter.grad is None]


def warning_of_one(trainer: Trainer, start: Vector, examples: Examples) -> str | None:
    """Return a sentence if one example alone cannot be trained on, else None."""
    try:
        update = trainer.update(start, examples.x[:1], examples.y[:1], order=np.random.default_rng(0))
        why = "" if np.isfinite(update).all() else "what it gives is not finite"
    except (Exception, SystemExit) as error:
        why = reason(error)
    if not why:
        return None
    return (
        f"the model cannot be trained on one example alone: {why}; clients with one example, or whose last batch holds "
        "one, will fail and send zeros."
    )


@contextmanager
def global_generators_kept() -> Iterator[None]:
    """Put the CPU's global generators back: a run must not depend on whether it was rehearsed."""
    # The old numpy generator: what a user's own code may draw from.
    of_python, of_numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        with torch.random.fork_rng([]):
            yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)  # noqa: NPY002

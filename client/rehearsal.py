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

import numpy as np
import torch
from torch import nn

from client.data.dataset import IGNORED_TARGET, Dataset, Examples
from client.data.rows import pieces
from client.losses import Loss
from client.parameters import layout_of, set_training_mode, trained_parameters
from client.passes import check_scoring, check_training, said_of_one
from client.reasons import calling
from client.training import Trainer
from fedmf.errors import SettingError
from fedmf.updates.vectors import Layout, Vector


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
        trainer = calling("the trainer could not be made", make_trainer)
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
    check_training(copy, x, y, dataset.classes, loss, accumulate)
    unreached = [name for name, parameter in trained_parameters(copy).items() if parameter.grad is None]
    alone = said_of_one(copy, x[:1], y[:1], loss) if len(x) > 1 else None
    check_scoring(copy, dataset, trainer.device)
    update = _check_turn(trainer, start, examples)
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


def _check_turn(trainer: Trainer, start: Vector, examples: Examples) -> Vector:
    """Return one client's update, after checking it: finite, not zero, and of what trains alone."""
    update = calling(
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
    if changed := trainer.changed_tensors():
        raise SettingError(
            f"training changes {', '.join(changed)} of the model, which no clipping or noise covers: every client would begin "
            "with the value before training, and the model that is released holds it. Make it a parameter that trains, or leave it as it is."
        )
    return update

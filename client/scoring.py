"""The losses that a model is trained on, and its scores: loss, accuracy as the literature counts it, and further metrics.

    cross_entropy     integer targets [...], outputs [..., classes]: mean cross-entropy in nats
    mse               mean squared error
    bce_with_logits   mean binary cross-entropy of logits, in nats

or a custom function. The last two compare outputs and targets element by element. Targets have the shape of the outputs, or
lack their last axis: then integer targets are class numbers and count as one-hot rows, and where that axis has length 1 they
are the values themselves. No other shapes are broadcast. Every loss is the mean over the counted targets: an integer target
equal to `IGNORED_TARGET` counts for nothing.
"""

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from client.data.dataset import IGNORED_TARGET, MULTILABEL, REGRESSION, Examples
from client.imports import calling, import_maker
from client.metrics import HEADLINES, Metric
from client.settings import check_loss
from fedmf.errors import SettingError, one_line

SCORED_AT_ONCE = 256  # examples

# Of outputs and targets, the mean over the counted targets, a scalar.
Loss = Callable[[Tensor, Tensor], Tensor]


def loss_of(name: str | None, task: str) -> str:
    """Return the name of a loss, of a task where none is given.

    >>> loss_of(None, "regression"), loss_of(None, "multilabel"), loss_of(None, "next_token"), loss_of("mse", "multilabel")
    ('mse', 'bce_with_logits', 'cross_entropy', 'mse')
    """
    return name or {REGRESSION: "mse", MULTILABEL: "bce_with_logits"}.get(task, "cross_entropy")


def find_loss(name: str | None, task: str) -> Loss:
    """Return the loss that `loss_of` names, or the function at `package.module:function`, annotated with `-> Tensor`.

    Raises `SettingError` for an unknown name, and for a function that does not promise a `Tensor` of two arguments.

    >>> float(find_loss("mse", "classification")(torch.tensor([[0.5, 0.5]]), torch.tensor([1])))
    0.25
    """
    name = loss_of(name, task)
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


_BY_ELEMENT: dict[str, Loss] = {
    "mse": nn.functional.mse_loss,
    "bce_with_logits": nn.functional.binary_cross_entropy_with_logits,
}


def by_element(name: str, outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the loss `name`, mse or bce_with_logits, the mean over counted targets.

    Raises `SettingError` for shapes that are not compared, see the module.
    """
    lacks_last = outputs.ndim > 0 and targets.shape == outputs.shape[:-1]
    is_class = lacks_last and outputs.shape[-1] > 1
    if not (targets.shape == outputs.shape or lacks_last) or (is_class and targets.is_floating_point()):
        raise SettingError(
            f"loss is {name!r}, which compares element by element, but the model's outputs have the shape "
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
    return _BY_ELEMENT[name](outputs, targets.to(outputs.dtype))


@dataclass(frozen=True)
class Score:
    """`accuracy` in [0, 1] over `counted` targets; `loss` is the mean of the loss that is trained, in nats for cross-entropies.

    `metrics` holds the further ones by name, nan where one is not defined or failed; `failures` has the reasons of those. Where
    a target is a row of numbers (regression, multilabel) it counts once, and the accuracy is nan.
    """

    accuracy: float
    loss: float
    counted: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    failures: Mapping[str, str] = field(default_factory=dict)

    @property
    def values(self) -> dict[str, float]:
        """The scores by name, what the model is judged by first: accuracy, unless `metrics` have the headline of another task."""
        first = {name: self.metrics[name] for name in HEADLINES if name in self.metrics}
        return {**(first or {"accuracy": self.accuracy}), "loss": self.loss, **self.metrics}


@torch.no_grad()
def score(
    model: nn.Module,
    examples: Examples,
    *,
    loss: Loss = cross_entropy,
    uncounted: tuple[int, ...] = (),
    batch_size: int = SCORED_AT_ONCE,
    metrics: Mapping[str, Callable[[], Metric]] = {},
) -> Score:
    """Return the score of `model` on `examples`, on the device that holds the model.

    Targets equal to `IGNORED_TARGET` count for nothing; those in `uncounted` (a dataset's out-of-vocabulary
    and end-of-sentence tokens) count for the loss only. `batch_size` bounds the memory and changes no number
    but by rounding. Without any counted target the accuracy is nan, without any real one the loss is. `loss` is what
    clients train on; `metrics` are those of `find_metrics`. A metric that raises loses itself only.
    """
    device = next(model.parameters()).device
    left_out = torch.tensor([IGNORED_TARGET, *uncounted], device=device)
    failures: dict[str, str] = {}
    started: dict[str, Metric] = {}
    values = dict.fromkeys(metrics, math.nan)
    for name, start_metric in metrics.items():
        with _alone(failures, name, device):
            started[name] = start_metric()
    correct = chosen_targets = real = 0
    total = 0.0
    for start in range(0, len(examples), batch_size):
        batch = slice(start, start + batch_size)
        x = torch.as_tensor(examples.x[batch][:], device=device)
        y = torch.as_tensor(examples.y[batch][:], device=device)
        logits = model(x)
        if y.shape == logits.shape[:-1]:
            is_real, is_counted = y != IGNORED_TARGET, ~torch.isin(y, left_out)
            correct += int((logits.argmax(-1) == y)[is_counted].sum())
        else:
            is_real = is_counted = torch.ones(len(y), dtype=torch.bool, device=device)
        present = counted(y)
        total += float(loss(logits, y)) * present if present else 0.0
        real += present
        chosen_targets += int(is_counted.sum())
        for name in [name for name in started if name not in failures]:
            with _alone(failures, name, device):
                # Indexing copies, so that no metric can change what another is given.
                chosen = is_real if started[name].sees_uncounted else is_counted
                started[name].add(logits[chosen], y[chosen])
    for name in [name for name in started if name not in failures]:
        with _alone(failures, name, device):
            value: Any = started[name].value()
            values[name] = float(value.item() if hasattr(value, "item") else value)
    return Score(
        correct / chosen_targets if chosen_targets and y.shape == logits.shape[:-1] else math.nan,
        total / real if real else math.nan,
        chosen_targets,
        values,
        failures,
    )


def check_scored(result: Score, scored: str) -> None:
    """Raise `SettingError` if a metric could not be computed; `scored` names what it was to score."""
    for name, why in result.failures.items():
        raise SettingError(
            f"metrics holds {name}, which cannot score {scored}: {why}. A metric gives a float for outputs [m, classes] "
            "and targets [m], nan where it is not defined."
        )


@contextmanager
def _alone(failures: dict[str, str], name: str, device: torch.device) -> Iterator[None]:
    """Note what the metric `name` raises in `failures`: it may be a user's own and raise or draw, and must not reach the training."""
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):  # besides the CPU
            yield
    except (Exception, SystemExit) as error:
        failures[name] = one_line(error)

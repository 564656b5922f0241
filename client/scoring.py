"""Scores of a model: the loss that it is trained on, its accuracy as the literature counts it, and further metrics."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor, nn

from client.data.dataset import IGNORED_TARGET, Examples
from client.imports import one_line
from client.losses import Loss, counted, cross_entropy
from client.metrics import NamedMetric, as_number
from fedmf.errors import SettingError

SCORED_AT_ONCE = 256  # examples

T = TypeVar("T")


@dataclass(frozen=True)
class Score:
    """`accuracy` in [0, 1] over `counted` targets; `loss` is the mean of the loss that is trained, in nats for cross-entropy.

    `metrics` holds the further ones by name, nan where one is not defined or failed; `failures` has the reasons of those.
    """

    accuracy: float
    loss: float
    counted: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    failures: Mapping[str, str] = field(default_factory=dict)


@torch.no_grad()
def score(
    model: nn.Module,
    examples: Examples,
    *,
    loss: Loss = cross_entropy,
    uncounted: tuple[int, ...] = (),
    batch_size: int = SCORED_AT_ONCE,
    metrics: Sequence[NamedMetric] = (),
) -> Score:
    """Return the score of `model` on `examples`, on the device that holds the model.

    Targets equal to `IGNORED_TARGET` count for nothing; those in `uncounted` (a data set's out-of-vocabulary
    and end-of-sentence tokens) count for the loss only. `batch_size` bounds the memory and changes no number
    but by rounding. Without any counted target the accuracy is nan, without any real one the loss is. `loss` is what
    clients train on. A metric that raises loses itself only.
    """
    device = next(model.parameters()).device
    left_out = torch.tensor([IGNORED_TARGET, *uncounted], device=device)
    evaluated = [_Evaluated(metric, device) for metric in metrics]
    correct = chosen_targets = real = 0
    total = 0.0
    for start in range(0, len(examples), batch_size):
        batch = slice(start, start + batch_size)
        x = torch.as_tensor(examples.x[batch][:], device=device)
        y = torch.as_tensor(examples.y[batch][:], device=device)
        logits = model(x)
        is_real, is_counted = y != IGNORED_TARGET, ~torch.isin(y, left_out)
        present = counted(y)
        total += float(loss(logits, y)) * present if present else 0.0
        real += present
        correct += int((logits.argmax(-1) == y)[is_counted].sum())
        chosen_targets += int(is_counted.sum())
        for metric in evaluated:
            metric.add(logits, y, is_real, is_counted)
    return Score(
        correct / chosen_targets if chosen_targets else math.nan,
        total / real if real else math.nan,
        chosen_targets,
        {metric.name: metric.value() for metric in evaluated},
        {metric.name: metric.failure for metric in evaluated if metric.failure},
    )


def refuse_failures(result: Score, metrics: Sequence[NamedMetric], scored: str) -> None:
    """Raise `SettingError` if one of `metrics` could not be computed; `scored` names what it was to score."""
    for metric in metrics:
        if metric.name in result.failures:
            raise SettingError(
                f"metrics holds {metric.entry}, which cannot score {scored}: "
                f"{result.failures[metric.name]}. A metric gives a float for outputs [m, classes] and targets [m], nan "
                "where it is not defined."
            )


class _Evaluated:
    """A metric in one evaluation. It may be a user's own and raise or draw, and must not reach the training."""

    def __init__(self, metric: NamedMetric, device: torch.device) -> None:
        self.name, self.failure = metric.name, ""
        self._is_own = ":" in metric.entry
        self._drawing = [device] if device.type == "cuda" else []  # besides the CPU
        self._started = self._attempt(metric.start)

    def add(self, outputs: Tensor, targets: Tensor, is_real: Tensor, is_counted: Tensor) -> None:
        """Give the metric a batch: copies, so that no metric can change another's."""
        if (started := self._started) is not None:
            shown = is_real if started.sees_uncounted else is_counted
            self._attempt(lambda: started.add(outputs[shown], targets[shown]))

    def value(self) -> float:
        """Return the metric, nan if it failed."""
        if (started := self._started) is None:
            return math.nan
        found = self._attempt(lambda: as_number(started.value()) if self._is_own else started.value())
        return math.nan if found is None else found

    def _attempt(self, function: Callable[[], T]) -> T | None:
        """Return what `function` returns; what it raises is the metric's failure, after which nothing is asked of it."""
        try:
            with torch.random.fork_rng(self._drawing):
                return function()
        except (Exception, SystemExit) as error:
            self.failure, self._started = one_line(error), None
            return None

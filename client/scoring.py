"""How good a model is: the loss that it is trained on, its accuracy as the literature counts it, and further metrics."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from client.data.dataset import IGNORED_TARGET, Examples
from client.losses import Loss, counted, cross_entropy
from client.metrics import Metric, NamedMetric, as_number
from client.reasons import one_line
from fedmf.errors import SettingError

SCORED_AT_ONCE = 256  # examples


@dataclass(frozen=True)
class Score:
    """`accuracy` in [0, 1] over `counted` targets; `loss` is the mean of the loss that is trained.

    It is in nats for cross-entropy. `metrics` holds the further ones by name, nan where one is not defined; `failures` says of those that could not
    be computed why, and they are nan too.
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
    collected = _Collected(metrics, device)
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
        collected.add(logits, y, is_real, is_counted)
    nan = math.nan
    values = collected.values()
    return Score(
        correct / chosen_targets if chosen_targets else nan,
        total / real if real else nan,
        chosen_targets,
        values,
        collected.failures,
    )


def refuse_failures(result: Score, metrics: Sequence[NamedMetric], scored: str) -> None:
    """Raise `SettingError` if one of `metrics` could not be computed; `scored` says what it was to score."""
    for metric in metrics:
        if metric.name in result.failures:
            raise SettingError(
                f"metrics holds {metric.path or metric.name}, which cannot score {scored}: "
                f"{result.failures[metric.name]}. A metric gives a float for outputs [m, classes] and targets [m], nan "
                "where it is not defined."
            )


class _Collected:
    """The metrics of one evaluation. They may be a user's own and raise, and must not reach the training."""

    def __init__(self, metrics: Sequence[NamedMetric], device: torch.device) -> None:
        self.failures: dict[str, str] = {}
        self._metrics = metrics
        self._drawing = [device] if device.type == "cuda" else []  # besides the CPU
        self._started: dict[str, Metric] = {}
        for metric in metrics:
            with self._kept_apart(metric):
                self._started[metric.name] = metric.start()

    def add(self, outputs: Tensor, targets: Tensor, is_real: Tensor, is_counted: Tensor) -> None:
        """Give a batch to every metric that has not failed."""
        for metric in self._standing():
            started = self._started[metric.name]
            with self._kept_apart(metric):
                shown = is_real if started.sees_uncounted else is_counted
                started.add(outputs[shown], targets[shown])  # copies, so that no metric can spoil another's

    def values(self) -> dict[str, float]:
        """Return the metrics by name, nan for those that failed."""
        values = {metric.name: math.nan for metric in self._metrics}
        for metric in self._standing():
            with self._kept_apart(metric):
                value = self._started[metric.name].value()
                values[metric.name] = value if metric.path is None else as_number(value)
        return values

    def _standing(self) -> list[NamedMetric]:
        return [metric for metric in self._metrics if metric.name not in self.failures]

    @contextmanager
    def _kept_apart(self, metric: NamedMetric) -> Iterator[None]:
        """Note what the block raises, and put torch's own generators back to where they were before it."""
        try:
            with torch.random.fork_rng(self._drawing):
                yield
        except (Exception, SystemExit) as error:
            self.failures[metric.name] = one_line(error)

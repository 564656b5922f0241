"""Scores of a model: the loss that it is trained on, its accuracy as the literature counts it, and further metrics."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from client.data.dataset import IGNORED_TARGET, Examples
from client.imports import one_line
from client.losses import Loss, counted, cross_entropy
from client.metrics import Metric, NamedMetric
from fedmf.errors import SettingError

SCORED_AT_ONCE = 256  # examples


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
    failures: dict[str, str] = {}
    started: dict[str, Metric] = {}
    values = dict.fromkeys((metric.name for metric in metrics), math.nan)
    for metric in metrics:
        with _alone(failures, metric.name, device):
            started[metric.name] = metric.start()
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
        correct / chosen_targets if chosen_targets else math.nan,
        total / real if real else math.nan,
        chosen_targets,
        values,
        failures,
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


@contextmanager
def _alone(failures: dict[str, str], name: str, device: torch.device) -> Iterator[None]:
    """Note what the metric `name` raises in `failures`: it may be a user's own and raise or draw, and must not reach the training."""
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):  # besides the CPU
            yield
    except (Exception, SystemExit) as error:
        failures[name] = one_line(error)

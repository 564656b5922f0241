"""Metrics besides loss and accuracy: values that take the model's outputs batch by batch and are a number at the end.

A metric sees the targets that the accuracy counts (`Dataset.uncounted` and padding left out), flattened, so that it
is the same for one label an example and for one a token: outputs [m, classes] and targets [m]. It is computed from the
released model and the public test split, so that it costs no privacy and changes nothing of the training.

One of one's own, MODULE:NAME, is a function annotated with `-> float`, which is given the outputs of the whole
split at once (float32 on the CPU: 4 bytes times targets times classes, and as much again while they are joined), or a
class of `Metric`, which needs no more memory than it keeps itself.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from numbers import Real
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from client.imports import import_path, makes
from client.metric_names import ALWAYS, METRICS, check_metrics, metric_name
from fedmf.errors import SettingError

_PLACES = 5  # of top5


class Metric(ABC):
    """A number over many targets: `add` takes them batch by batch, `value` is asked for once, at the end."""

    sees_uncounted: ClassVar[bool] = False
    """Whether `add` is given the targets too that the loss counts and the accuracy does not."""

    @abstractmethod
    def add(self, outputs: Tensor, targets: Tensor) -> None:
        """Take in one batch: what the model says, [m, classes], and what is right, [m] int64."""

    @abstractmethod
    def value(self) -> float:
        """Return the number over everything taken in; nan where it is not defined."""


@dataclass(frozen=True)
class NamedMetric:
    """A metric by the name it is recorded under; `start` makes the empty one of an evaluation.

    `path` is the import path of one of the user's own, None for those of this module.
    """

    name: str
    start: Callable[[], Metric]
    path: str | None = None


class Top5(Metric):
    """The share of targets that are among the five largest outputs."""

    def __init__(self) -> None:
        self._found = self._seen = 0

    def add(self, outputs: Tensor, targets: Tensor) -> None:
        """Count the targets that are found."""
        best = outputs.topk(_PLACES, dim=-1).indices
        self._found += int((best == targets[:, None]).any(-1).sum())
        self._seen += len(targets)

    def value(self) -> float:
        """Return the share, nan without any target."""
        return self._found / self._seen if self._seen else math.nan


class MacroF1(Metric):
    """The plain mean of the classes' F1 = 2 hits / (times said + times right), as scikit-learn's "macro".

    A class that is neither said nor right has no F1 and is left out; one that is said and never right counts as 0.
    """

    def __init__(self, classes: int) -> None:
        self._classes = classes
        self._hits, self._said, self._right = (np.zeros(classes, np.int64) for _ in range(3))

    def add(self, outputs: Tensor, targets: Tensor) -> None:
        """Count by class: three numbers each, which a vocabulary can afford and a confusion matrix cannot."""
        chosen = outputs.argmax(-1)
        for count, labels in (
            (self._hits, targets[chosen == targets]),
            (self._said, chosen),
            (self._right, targets),
        ):
            count += torch.bincount(labels, minlength=self._classes).cpu().numpy()

    def value(self) -> float:
        """Return the mean over the classes that occur, nan without any."""
        occurrences = self._said + self._right
        occurring = occurrences > 0
        return (
            float((2 * self._hits[occurring] / occurrences[occurring]).mean())
            if occurring.any()
            else math.nan
        )


class Perplexity(Metric):
    """The exponential of the mean cross-entropy, whatever loss is trained on, over all targets but padding."""

    sees_uncounted = True

    def __init__(self) -> None:
        self._total, self._seen = 0.0, 0

    def add(self, outputs: Tensor, targets: Tensor) -> None:
        """Add up the batch's cross-entropy."""
        self._total += float(nn.functional.cross_entropy(outputs.float(), targets, reduction="sum"))
        self._seen += len(targets)

    def value(self) -> float:
        """Return the perplexity, infinite where no float holds it, nan without any target."""
        mean = self._total / self._seen if self._seen else math.nan
        return math.inf if mean > math.log(np.finfo(np.float64).max) else math.exp(mean)


class OfAllOutputs(Metric):
    """The value of a function of the whole split's outputs, kept on the CPU as float32."""

    def __init__(self, function: Callable[[Tensor, Tensor], float]) -> None:
        self._function = function
        self._outputs: list[Tensor] = []
        self._targets: list[Tensor] = []

    def add(self, outputs: Tensor, targets: Tensor) -> None:
        """Keep a copy of the batch."""
        self._outputs.append(outputs.float().cpu())
        self._targets.append(targets.cpu())

    def value(self) -> float:
        """Return what the function gives."""
        return self._function(torch.cat(self._outputs), torch.cat(self._targets))


def find_metrics(entries: Sequence[str], *, classes: int) -> tuple[NamedMetric, ...]:
    """Return the metrics that `entries` name, accuracy and loss apart, for a model of `classes` outputs.

    Imports what MODULE:NAME names. Raises `SettingError` for a name that is not known or not clear, for an import path
    that leads to neither a function annotated with `-> float` nor a class of `Metric`, and for top5 of five classes.
    """
    check_metrics(entries)
    return tuple(_find(entry, classes) for entry in entries if entry not in ALWAYS)


def _find(entry: str, classes: int) -> NamedMetric:
    """Return one metric."""
    if ":" in entry:
        return NamedMetric(metric_name(entry), _own(entry), entry)
    if entry == "top5":
        if classes <= _PLACES:
            raise SettingError(
                f"metrics holds top5, which is 1 for any model of {classes} classes; it needs more than {_PLACES}."
            )
        return NamedMetric(entry, Top5)
    assert entry in METRICS
    return NamedMetric(entry, Perplexity if entry == "perplexity" else partial(MacroF1, classes))


def _own(path: str) -> Callable[[], Metric]:
    """Return what makes an empty metric of the user's own."""
    found = import_path(path, "metrics")
    if makes(found, Metric):
        return found  # type: ignore[no-any-return]
    if makes(found, float):
        return partial(OfAllOutputs, found)
    raise SettingError(
        f"metrics holds {path!r}, which does not say that it gives a float, so that it was not called; annotate the "
        "function with `-> float`, or name a class of client.Metric."
    )


def as_number(value: Any) -> float:
    """Return what a metric gave as a float. Raises `ValueError` for what is no number, or an infinite one.

    >>> as_number(np.float32(0.5)), as_number(torch.tensor([2]))
    (0.5, 2.0)
    """
    if isinstance(value, Tensor | np.ndarray) and math.prod(value.shape) == 1:
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, Real | Decimal):
        raise ValueError(f"it gave a {type(value).__name__}, which is no number")
    if math.isinf(value):
        raise ValueError(f"it gave {value}; a value that is not defined is nan")
    return float(value)

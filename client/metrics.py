"""Metrics besides loss and accuracy: values that take the model's outputs batch by batch and are a number at the end.

A metric is given the targets that the accuracy counts (`Dataset.uncounted` and padding left out), flattened, so that it
is the same for one label an example and for one a token: outputs [m, classes] and targets [m]. Of regression and multilabel
both are [m, k], targets float32, and an output above 0 stands for the label 1. It is computed from the
released model and the public test split, so that it costs no privacy and changes nothing of the training.

A custom metric, MODULE:NAME, is a function annotated with `-> float`, which is given the outputs of the whole
split at once (float32 on the CPU: 4 bytes times targets times classes, and as much again while they are joined), or a
class of `Metric`, which needs no more memory than it keeps itself.

Torch is imported where a metric needs it: a program that only reads runs uses the names alone.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from client.data.dataset import CLASSIFICATION, MULTILABEL, REGRESSION
from client.imports import import_path, lent, makes
from fedmf.checks import meant
from fedmf.errors import SettingError

if TYPE_CHECKING:
    from torch import Tensor

# What a run is judged by: each records one of them, the first metric of its task, or accuracy of classes and tokens.
HEADLINES = ("accuracy", "r2", "label_accuracy")
ALWAYS = (*HEADLINES, "loss")
BETTER_IF_LARGER = {
    "accuracy": True,
    "loss": False,
    "top5": True,
    "f1": True,
    "perplexity": False,
    "r2": True,
    "mse": False,
    "mae": False,
    "label_accuracy": True,
    "exact_match": True,
}
METRICS = tuple(BETTER_IF_LARGER)

# Keys of metrics.jsonl, of summary.json, of the tables and plots made of them: no custom metric may take their place.
# fmt: off
TAKEN = frozenset({
    "round", "epoch", "step", "cohort_size", "replies", "epsilon", "uplink_bytes", "downlink_bytes",
    "seconds", "measured_value_bytes", "delta", "adjacency", "unit_of_privacy", "statement", "rounds",
    "parameters", "clients", "rounds_per_epoch", "epochs", "keep_probability", "linf_over_l2",
    "noise_multiplier", "sigma", "compression_ratio", "uplink_bytes_per_client",
    "envelope_bytes_per_client", "wall_seconds", "targets", "examples", "dataset", "source", "seed",
    "seeds", "runs", "private", "bytes_to_target", "workload", "logger", "output", "test_examples",
    "evaluation_examples", "shape", "noise", "bytes", "chance", "learnt", "learning",
    "clipped_share", "norm_p10", "norm_p50", "norm_p90", "client_loss", "noise_over_sum",
})
# fmt: on
_PLACES = 5  # of top5


def headline(values: Mapping[str, object]) -> str:
    """Return the name of what a run is judged by, of the values that it recorded.

    >>> headline({"loss": 0.5, "r2": 0.3}), headline({})
    ('r2', 'accuracy')
    """
    return next((name for name in HEADLINES if name in values), HEADLINES[0])


def metric_name(entry: str) -> str:
    """Return the name under which a metric is recorded: its own, of MODULE:NAME the last part.

    >>> metric_name("f1"), metric_name("mine.scores:recall")
    ('f1', 'recall')
    """
    return entry.rpartition(":")[2]


def further_metrics(entries: object) -> dict[str, str]:
    """Return {name: entry} of the metrics besides those of `ALWAYS` in a recorded list, of whatever origin.

    >>> further_metrics(["accuracy", "f1", "mine:recall", 3, "no name"]), further_metrics(None)
    ({'f1': 'f1', 'recall': 'mine:recall'}, {})
    """
    texts = [entry for entry in entries if isinstance(entry, str)] if isinstance(entries, list) else []
    named = {metric_name(entry): entry for entry in texts}
    return {
        name: entry for name, entry in named.items() if name.isidentifier() and name not in (*ALWAYS, *TAKEN)
    }


def check_metrics(entries: Sequence[str]) -> None:
    """Raise `SettingError` for a metric that is not known, for a name twice, and for one that means something else."""
    names = [metric_name(entry) for entry in entries]
    for entry, name in zip(entries, names, strict=True):
        is_own = ":" in entry
        if not (name.isidentifier() if is_own else entry in METRICS):
            raise SettingError(
                f"metrics holds {entry!r}, which is no metric; it may hold {', '.join(METRICS)} and "
                f"MODULE:FUNCTION{meant(entry, METRICS)}"
            )
        if is_own and name in {*METRICS, *TAKEN}:
            raise SettingError(
                f"metrics holds {entry!r}, but {name} is recorded already and means something else; rename the function."
            )
        if names.count(name) > 1:
            raise SettingError(
                f"metrics holds {name} twice; every metric is recorded once, under its own name."
            )


def check_optimized(name: str | None, entries: Sequence[str], first: str | None = None) -> None:
    """Raise `SettingError` unless `name` is None or that of a metric which a run with `entries` records.

    `first` is the headline of its task, None where the task is not known yet: then any may be.
    """
    known = list(dict.fromkeys((first or HEADLINES[0], "loss", *map(metric_name, entries))))
    if name is not None and name not in (known if first else (*known, *HEADLINES)):
        hint = f" Add {name} to metrics first." if name in METRICS and name not in HEADLINES else ""
        raise SettingError(
            f"optimized_metric is {name!r}, which this run does not record; it records {', '.join(known)}.{hint}"
        )


class Metric(ABC):
    """A number over many targets: `add` takes them batch by batch, `value` is asked for once, at the end."""

    sees_uncounted: ClassVar[bool] = False
    """Whether `add` is given the targets too that the loss counts and the accuracy does not."""

    @abstractmethod
    def add(self, outputs: "Tensor", targets: "Tensor") -> None:
        """Take in one batch: the model's outputs, [m, classes], and the targets, [m] int64."""

    @abstractmethod
    def value(self) -> float:
        """Return the number over everything taken in; nan where it is not defined."""


class Top5(Metric):
    """The share of targets that are among the five largest outputs, nan without any target."""

    def __init__(self) -> None:
        self._found = self._seen = 0

    def add(self, outputs: "Tensor", targets: "Tensor") -> None:
        self._found += int((outputs.topk(_PLACES).indices == targets[:, None]).sum())
        self._seen += len(targets)

    def value(self) -> float:
        return self._found / self._seen if self._seen else math.nan


class MacroF1(Metric):
    """The plain mean of the classes' F1 = 2 hits / (times predicted + times right), as scikit-learn's "macro".

    A class that is neither predicted nor right has no F1 and is left out; one that is predicted and never right counts as 0.
    Three counts a class are kept, which a vocabulary can afford and a confusion matrix cannot.
    """

    def __init__(self, classes: int) -> None:
        self._hits, self._occurrences = np.zeros(classes, np.int64), np.zeros(classes, np.int64)

    def add(self, outputs: "Tensor", targets: "Tensor") -> None:
        chosen, classes = outputs.argmax(-1), len(self._hits)
        self._hits += targets[chosen == targets].bincount(minlength=classes).cpu().numpy()
        for labels in (chosen, targets):
            self._occurrences += labels.bincount(minlength=classes).cpu().numpy()

    def value(self) -> float:
        occurring = self._occurrences > 0
        each = 2 * self._hits[occurring] / self._occurrences[occurring]
        return float(each.mean()) if len(each) else math.nan


class Perplexity(Metric):
    """The exponential of the mean cross-entropy, whatever loss is trained on, over all targets but padding.

    It is infinite where no float holds it, and nan without any target.
    """

    sees_uncounted = True

    def __init__(self) -> None:
        self._total, self._seen = 0.0, 0

    def add(self, outputs: "Tensor", targets: "Tensor") -> None:
        from torch.nn.functional import cross_entropy

        self._total += float(cross_entropy(outputs.float(), targets, reduction="sum"))
        self._seen += len(targets)

    def value(self) -> float:
        mean = self._total / self._seen if self._seen else math.nan
        return math.inf if mean > math.log(np.finfo(np.float64).max) else math.exp(mean)


class OfAllOutputs(Metric):
    """The value of a function of the whole split's outputs, copies of which are kept on the CPU as float32."""

    def __init__(self, function: Callable[["Tensor", "Tensor"], float]) -> None:
        self._function = function
        self._batches: list[tuple[Tensor, Tensor]] = []

    def add(self, outputs: "Tensor", targets: "Tensor") -> None:
        self._batches.append((outputs.float().cpu(), targets.cpu()))

    def value(self) -> float:
        import torch

        outputs, targets = (torch.cat(parts) for parts in zip(*self._batches, strict=True))
        return self._function(outputs, targets)


def r2(outputs: "Tensor", targets: "Tensor") -> float:
    """Return 1 less the squared error over that of the mean of the targets [m, k], the mean over those of k that vary."""
    residual = (outputs.double() - targets).square().sum(0)
    around_mean = (targets.double() - targets.double().mean(0)).square().sum(0)
    return float((1 - residual / around_mean)[around_mean > 0].mean())


def label_f1(outputs: "Tensor", targets: "Tensor") -> float:
    """Return the plain mean of the labels' F1, as `MacroF1`: one that is neither predicted nor right is left out."""
    chosen, is_right = outputs > 0, targets > 0
    each = 2 * (chosen & is_right).sum(0) / (chosen.sum(0) + is_right.sum(0))
    return float(each.nanmean())


# The metrics of the tasks of these names, the headline first.
OF_NUMBERS: dict[str, dict[str, Callable[["Tensor", "Tensor"], float]]] = {
    REGRESSION: {
        "r2": r2,
        "mse": lambda outputs, targets: float((outputs - targets).square().mean()),
        "mae": lambda outputs, targets: float((outputs - targets).abs().mean()),
    },
    MULTILABEL: {
        "label_accuracy": lambda outputs, targets: float(((outputs > 0) == (targets > 0)).float().mean()),
        "exact_match": lambda outputs, targets: float(((outputs > 0) == (targets > 0)).all(1).float().mean()),
        "f1": label_f1,
    },
}


def find_metrics(
    entries: Sequence[str], *, classes: int, task: str = CLASSIFICATION
) -> Mapping[str, Callable[[], Metric]]:
    """Return {name: what makes an empty one} of the metrics in `entries` but accuracy and loss, for `classes` outputs.

    The headline of regression and multilabel is the first. Imports what MODULE:NAME names. Raises `SettingError` for a name
    that is not known, not clear or of another task, for an import path that leads to neither a function annotated with
    `-> float` nor a class of `Metric`, and for top5 of five classes.
    """
    check_metrics(entries)
    known: dict[str, Callable[[], Metric]] = {
        "top5": Top5,
        "f1": partial(MacroF1, classes),
        "perplexity": Perplexity,
    }
    if task in OF_NUMBERS:
        known = {name: partial(OfAllOutputs, function) for name, function in OF_NUMBERS[task].items()}
        entries = [next(iter(known)), *entries]
    # "accuracy", the default of a run, stands for what its task is judged by.
    wanted = list(dict.fromkeys(entry for entry in entries if entry not in ("accuracy", "loss")))
    if unknown := [entry for entry in wanted if ":" not in entry and entry not in known]:
        raise SettingError(
            f"metrics holds {unknown[0]}, which is not of the task {task}; it may hold {', '.join(known)} and MODULE:FUNCTION."
        )
    if "top5" in wanted and classes <= _PLACES:
        raise SettingError(
            f"metrics holds top5, which is 1 for any model of {classes} classes; it needs more than {_PLACES}."
        )
    return {metric_name(entry): _own(entry) if ":" in entry else known[entry] for entry in wanted}


def _own(path: str) -> Callable[[], Metric]:
    """Return what makes an empty custom metric."""
    found = import_path(path, "metrics")
    if makes(found, Metric):
        return found  # type: ignore[no-any-return]
    if path in lent or makes(found, float):
        return partial(OfAllOutputs, found)
    raise SettingError(
        f"metrics holds {path!r}, which does not say that it gives a float, so that it was not called; annotate the "
        "function with `-> float`, or name a class of client.Metric."
    )

"""Words and numbers as pages and tables write them: what fields of a run are called, digits, bounds, means over seeds."""

import math
import re
import statistics
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from rich.filesize import decimal

from client.imports import LENT
from client.metrics import METRICS
from fedmf.checks import rounded_up

# Key -> (words, unit). Others are shown under their own names.
FIELDS = {
    "accuracy": ("accuracy on the test set", "%"),
    "loss": ("loss on the test set", ""),
    "r2": ("R² on the test set", ""),
    "label_accuracy": ("share of labels that are right on the test set", "%"),
    "mse": ("mean squared error on the test set", ""),
    "mae": ("mean absolute error on the test set", ""),
    "exact_match": ("share of examples with all labels right on the test set", "%"),
    "top5": ("top-5 accuracy on the test set", "%"),
    "f1": ("F1 on the test set, mean over classes", ""),
    "perplexity": ("perplexity on the test set", ""),
    "chance": ("score of the best constant answer", ""),
    "learnt": ("better than the best constant answer", ""),
    "learning": ("whether it learnt", ""),
    "clipped_share": ("share of clients clipped (unprotected)", "%"),
    "client_loss": ("mean loss of the clients before their turn (unprotected)", ""),
    "noise_over_sum": ("norm of the noise over that of the clients' sum (unprotected)", ""),
    "when": ("started", "minute"),
    "data": ("data", "code"),
    "model": ("model", "code"),
    "epsilon": ("epsilon spent", ""),
    "unit_of_privacy": ("whom epsilon protects", ""),
    "statement": ("what epsilon covers and what not", ""),
    "test_examples": ("test examples", ""),
    "shape.input_shape": ("shape of an example", ""),
    "shape.classes": ("classes, or numbers of a target", ""),
    "shape.task": ("task", ""),
    "parameters": ("model parameters d", ""),
    "clients": ("clients N with training examples", ""),
    "cohort_size": ("clients in a cohort n", ""),
    "rounds_per_epoch": ("rounds in an epoch T", ""),
    "epochs": ("epochs E", ""),
    "keep_probability": ("keep probability gamma", ""),
    "linf_over_l2": ("bound on one coordinate over the L2 bound", ""),
    "noise_multiplier": ("noise multiplier z", ""),
    "more_noise_for_clip_norm": ("more noise, for the clip norm's counts", "%"),
    "count_noise": ("error of such a count of an epoch, std", "clients"),
    "count_noise_share": ("the same, of the clients asked in an epoch", "%"),
    "next_clip_norm": ("clip norm of the next round", ""),
    "effective_noise_multiplier": ("noise multiplier over gamma, for comparison", ""),
    "epsilon_rdp": ("epsilon by Renyi divergence", ""),
    "epsilon_tight": ("epsilon by the tight accountant", ""),
    "epsilon_exact": ("epsilon of the Gaussian mechanism, exact", ""),
    "epsilon_tight_is": ("the tight accountant is", ""),
    "order": ("Renyi order of epsilon", ""),
    "counted_over_l2": ("length of an update that epsilon counts", "clip norms"),
    "floating_point.a": ("finite precision: half of what epsilon has for it", ""),
    "floating_point.beta": ("finite precision: probabilities left out", ""),
    "floating_point.phi": ("finite precision: rounding of float64, over the lattice's", ""),
    "mean_noise_std": ("noise on a coordinate of a round's mean update, std", "clip norms"),
    "rms_error": ("error of the noise in the model, rms over rounds", ""),
    "last_error": ("the same in the last round", ""),
    "independent_rms_error": ("the same of independent noise, rms", ""),
    "lowest_rms_error": (
        "the least of any mechanism that restarts each epoch with disjoint public cohorts, rms",
        "",
    ),
    "model_noise_std": ("noise on a coordinate of the model, std", "clip norms times learning rate"),
    "noise_over_signal": ("noise over signal in the last model", ""),
    "rounds": ("rounds of the run", ""),
    "sigma": ("standard deviation of the fresh noise sigma", "units of the update"),
    "compression_ratio": ("compression of the values sent", "times"),
    "uplink_bytes_per_client": ("values that a client sends in a round", "bytes"),
    "uplink_bytes_per_client_in_all": ("values that a client sends in the run", "bytes"),
    "uplink_bytes_of_all_clients": ("values that all clients send in the run", "bytes"),
    "envelope_bytes_per_client": ("envelope of its message", "bytes"),
    "bytes": ("bytes", "bytes"),
    "wall_seconds": ("wall time", "s"),
    "started": ("started (UTC)", ""),
    "until": ("ended (UTC)", ""),
    "software.code": ("code of fedmf (digest)", ""),
    "software.bundle": ("bundle of Flower (digest)", ""),
    "software.image": ("container image", ""),
    "software.git_commit": ("git commit of fedmf", ""),
    "software.git_modified": ("with changes that no commit contains", ""),
    "machine.cores": ("cores that it could use", ""),
    "machine.memory_bytes": ("memory", "bytes"),
}


# What metrics are called in a line; others by their own names.
SHORT = {
    "accuracy": "accuracy",
    "r2": "R²",
    "label_accuracy": "labels right",
    "mse": "mean squared error",
    "mae": "mean absolute error",
    "exact_match": "all labels right",
    "top5": "top-5 accuracy",
    "f1": "F1",
}


def number(value: Any) -> str:
    """Return a value as people read it: four significant digits, thousands separated, a dash for the unknown.

    >>> number(1437), number(0.19912), number(1e-4), number(419430.4), number(None), number(True)
    ('1,437', '0.1991', '0.0001', '419,430', '–', 'yes')
    """
    if value is None or isinstance(value, bool):
        return {None: "–", True: "yes", False: "no"}[value]
    if isinstance(value, float):
        is_whole = abs(value) < 1e15 and (value.is_integer() or abs(value) >= 1e4)
        return f"{value:,.0f}" if is_whole else f"{value:.4g}".replace("e-0", "e-")
    return f"{value:,}" if isinstance(value, int) else str(value)


def bound(value: float | None) -> str:
    """Return an epsilon or a delta as `number` writes one, but never less than it is.

    >>> bound(5.7164028), number(5.7164028), bound(1e-5), bound(None)
    ('5.717', '5.716', '1e-5', '–')
    """
    return number(None if value is None else float(rounded_up(value)))


def holds_for(delta: float | str | None, unit: str | None, adjacency: str | None) -> str:
    """Return at which delta, for whom and under which adjacency an epsilon holds.

    >>> holds_for(1e-5, "one image = one client", "zero_out")
    'at delta = 1e-5, for one image = one client, under zero-out adjacency'
    """
    at = delta if isinstance(delta, str) else bound(delta)
    relation = "replacement" if adjacency == "replace" else text_of("adjacency", adjacency)
    return f"at delta = {at}, for {number(unit)}, under {relation} adjacency"


def times(ratio: float) -> str:
    """Return how many times one thing is another, in three digits.

    >>> times(6.348), times(1234.5)
    ('6.35', '1,234')
    """
    return f"{ratio:.3g}" if ratio < 999.5 else f"{ratio:,.0f}"


# How a value with this unit, or of this kind, is written.
_FORMS: dict[str, Callable[[Any], str]] = {
    "%": lambda share: f"{100 * share:.1f} %",
    "bytes": lambda count: decimal(round(count)),
    "times": lambda ratio: (
        f"{times(ratio)} times" if ratio >= 1 else f"none: {times(1 / ratio)} times as many bytes"
    ),
    "s": lambda seconds: f"{number(seconds)} s" if seconds < 60 else str(timedelta(seconds=round(seconds))),
    "minute": lambda time: str(time)[:16].replace("T", " "),
    "code": lambda name: re.sub(
        f"^{LENT}\\w+:", "", str(name)
    ),  # an object of a Python program without its digest
}


def words_of(name: str, entry: str = "") -> str:
    """Return what a field is called; `entry` is that of a metric, for a user's own its import path.

    >>> words_of("f1", "f1"), words_of("recall", "mine:recall"), words_of("l2_norm")
    ('F1 on the test set, mean over classes', 'recall on the test set (mine:recall)', 'l2 norm')
    """
    if entry and entry not in METRICS:
        return f"{name} on the test set ({entry})"
    return FIELDS.get(name, (name.removeprefix("software.").replace("_", " "), ""))[0]


def unit_of(name: str) -> str:
    """Return the unit of a field, "" for none."""
    return FIELDS.get(name, ("", ""))[1]


def text_of(name: str, value: Any) -> str:
    """Return the value of a field or setting with its unit, a dash where it is not known; an epsilon or a delta is rounded up.

    >>> text_of("accuracy", 0.935), text_of("loss", 0.31), text_of("adjacency", "zero_out"), text_of("f1", None)
    ('93.5 %', '0.31', 'zero-out', '–')
    >>> text_of("privacy.epsilon", 5.7164028), text_of("sigma_by_epoch", [0.25, 0.25, 0.5])
    ('5.717', '0.25, 0.5')
    >>> text_of("machine.memory_bytes", 4.2e6), text_of("wall_seconds", 12.5), text_of("wall_seconds", 9000)
    ('4.2 MB', '12.5 s', '2:30:00')
    >>> text_of("model", "python-0123456789ab:Net"), text_of("when", "2026-11-26T20:03:11Z")
    ('Net', '2026-11-26 20:03')
    >>> text_of("compression_ratio", 6.348), text_of("compression_ratio", 0.964)
    ('6.35 times', 'none: 1.04 times as many bytes')
    """
    unit, last = unit_of(name), name.rsplit(".", 1)[-1]
    if isinstance(value, list):
        items = map(number, value)
        return ", ".join(dict.fromkeys(items) if name.endswith("_by_epoch") else items)
    if unit in _FORMS and value is not None:
        return _FORMS[unit](value)
    if last == "adjacency":
        return number(value).replace("_", "-")
    is_bound = last in ("delta", "max_epsilon") or last.startswith("epsilon")
    text = bound(value) if is_bound and isinstance(value, float) else number(value)
    return text if value is None else f"{text} {unit}".strip()


class Estimate(NamedTuple):
    """A mean over seeds and its standard error (None for a single seed)."""

    mean: float
    error: float | None

    def __str__(self) -> str:
        """Return mean ± standard error, the error with two digits."""
        if self.error is None or self.error <= 1e-9 * abs(self.mean):
            return number(self.mean)
        return f"{number(self.mean)} ± {self.error:{'.2g' if self.error < 100 else ',.0f'}}"

    def in_percent(self) -> str:
        """Return mean ± standard error of shares, in percent."""
        return f"{100 * self.mean:.1f}{'' if self.error is None else f' ± {100 * self.error:.1f}'} %"


def estimate(values: Sequence[float | None]) -> Estimate | None:
    """Return mean and standard error (sample deviation over sqrt n), or None where a value is missing.

    >>> str(estimate([0.9, 0.92, 0.94])), estimate([0.5]), estimate([0.5, None])
    ('0.92 ± 0.012', Estimate(mean=0.5, error=None), None)
    """
    known = [value for value in values if value is not None]
    if len(known) < len(values) or not known:
        return None
    error = statistics.stdev(known) / math.sqrt(len(known)) if len(known) > 1 else None
    return Estimate(statistics.fmean(known), error)

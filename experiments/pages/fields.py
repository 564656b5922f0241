"""The fields of a run's files: what each is called on a page, and the unit of its value."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from rich.filesize import decimal

from client.metric_names import METRICS
from experiments.pages.page import SOURCE, Table
from experiments.pages.wording import bound, number, times
from experiments.settings.recorded import flattened

# Key -> (words, unit). Others are shown under their own names.
FIELDS = {
    "accuracy": ("accuracy on the test set", "%"),
    "loss": ("loss on the test set", "nats"),
    "top5": ("top-5 accuracy on the test set", "%"),
    "f1": ("F1 on the test set, mean over classes", ""),
    "perplexity": ("perplexity on the test set", ""),
    "epsilon": ("epsilon spent", ""),
    "unit_of_privacy": ("whom epsilon protects", ""),
    "statement": ("what epsilon covers and what not", ""),
    "test_examples": ("test examples", ""),
    "shape.input_shape": ("shape of an example", ""),
    "shape.classes": ("classes", ""),
    "shape.task": ("task", ""),
    "parameters": ("model parameters d", ""),
    "clients": ("clients N with training examples", ""),
    "cohort_size": ("clients in a cohort n", ""),
    "rounds_per_epoch": ("rounds in an epoch T", ""),
    "epochs": ("epochs E", ""),
    "keep_probability": ("keep probability gamma", ""),
    "linf_over_l2": ("bound on one coordinate over the L2 bound", ""),
    "noise_multiplier": ("noise multiplier z", ""),
    "sigma": ("standard deviation of the fresh noise sigma", "units of the update"),
    "compression_ratio": ("compression of the values sent", "times"),
    "uplink_bytes_per_client": ("values that a client sends in a round", "bytes"),
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
IN_WORDS = ("paragraph", "provenance")  # of the statement: in other sections of the page


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
    ('93.5 %', '0.31 nats', 'zero-out', '–')
    >>> text_of("privacy.epsilon", 5.7164028), text_of("sigma_by_epoch", [0.25, 0.25, 0.5])
    ('5.717', '0.25, 0.5')
    >>> text_of("machine.memory_bytes", 4.2e6), text_of("wall_seconds", 12.5), text_of("wall_seconds", 9000)
    ('4.2 MB', '12.5 s', '2:30:00')
    """
    unit, last = unit_of(name), name.rsplit(".", 1)[-1]
    if isinstance(value, list):
        items = map(number, value)
        return ", ".join(dict.fromkeys(items) if name.endswith("_by_epoch") else items)
    if last == "adjacency":
        return str(value).replace("_", "-")
    if value is None:
        return number(None)
    if unit == "%":
        return f"{100 * value:.1f} %"
    if unit == "bytes":
        return decimal(round(value))
    if unit == "s" and value >= 60:
        return str(timedelta(seconds=round(value)))
    if unit == "times":
        return f"{times(value)} times"
    is_bound = last in ("delta", "max_epsilon") or last.startswith("epsilon")
    return f"{bound(value) if is_bound and isinstance(value, float) else number(value)} {unit}".strip()


def table_of(
    documents: Sequence[Mapping[str, Any]], file: str, metrics: Mapping[str, str] | None = None
) -> Table:
    """Return documents of one kind field by field, differing values next to each other: words, value, file and key.

    Lists of sentences are left out: they are elsewhere on the page. `metrics` are entries of metrics by name.
    """
    values: dict[str, list[str]] = {}
    for document in documents:
        for key, value in flattened(document):
            in_words = isinstance(value, list) and all(isinstance(item, str) for item in value)
            if not in_words and not key.startswith(IN_WORDS):
                values.setdefault(key, []).append(text_of(key, value))
    rows = [
        (words_of(key, (metrics or {}).get(key, "")), ", ".join(dict.fromkeys(texts)), f"{file}: {key}")
        for key, texts in values.items()
    ]
    return Table(("field", "value", SOURCE), rows)

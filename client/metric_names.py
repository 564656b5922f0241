"""Which metrics there are, and under which names a run records them; without torch, for whoever only reads a run."""

from collections.abc import Iterable, Sequence

from fedmf.checks import meant
from fedmf.errors import SettingError

ALWAYS = ("accuracy", "loss")
METRICS = (*ALWAYS, "top5", "f1", "perplexity")

BETTER_IF_LARGER = {"accuracy": True, "loss": False, "top5": True, "f1": True, "perplexity": False}

# Keys of metrics.jsonl, of summary.json, of the tables and plots made of them: no metric of one's own may take their place.
# fmt: off
TAKEN = frozenset({
    "round", "epoch", "step", "cohort_size", "replies", "epsilon", "uplink_bytes", "downlink_bytes",
    "seconds", "measured_value_bytes", "delta", "adjacency", "unit_of_privacy", "statement", "rounds",
    "parameters", "clients", "rounds_per_epoch", "epochs", "keep_probability", "linf_over_l2",
    "noise_multiplier", "sigma", "compression_ratio", "uplink_bytes_per_client",
    "envelope_bytes_per_client", "wall_seconds", "targets", "examples", "dataset", "source", "seed",
    "seeds", "runs", "private", "bytes_to_target", "workload", "logger", "output", "test_examples",
    "evaluation_examples", "shape", "noise", "bytes",
})
# fmt: on


def metric_name(entry: str) -> str:
    """Return the name under which a metric is recorded: its own, of MODULE:NAME the last part.

    >>> metric_name("f1"), metric_name("mine.scores:recall")
    ('f1', 'recall')
    """
    return entry.rpartition(":")[2]


def further_metrics(entries: object) -> dict[str, str]:
    """Return {name: entry} of the metrics besides accuracy and loss in a recorded list, whoever wrote it.

    >>> further_metrics(["accuracy", "f1", "mine:recall", 3, "no name"]), further_metrics(None)
    ({'f1': 'f1', 'recall': 'mine:recall'}, {})
    """
    named = (
        {metric_name(entry): entry for entry in entries if isinstance(entry, str)}
        if isinstance(entries, list)
        else {}
    )
    return {
        name: entry for name, entry in named.items() if name.isidentifier() and name not in (*ALWAYS, *TAKEN)
    }


def check_metrics(entries: Sequence[str]) -> None:
    """Raise `SettingError` for a metric that is not known, for a name twice, and for one that means something else."""
    for entry in entries:
        name = metric_name(entry)
        if ":" not in entry and entry not in METRICS:
            raise SettingError(
                f"metrics holds {entry!r}, which is no metric; it may hold {', '.join(METRICS)} and "
                f"MODULE:FUNCTION{meant(entry, METRICS)}"
            )
        if ":" in entry and not name.isidentifier():
            raise SettingError(
                f"metrics holds {entry!r}, which names no function; it must be MODULE:FUNCTION."
            )
        if ":" in entry and (name in METRICS or name in TAKEN):
            raise SettingError(
                f"metrics holds {entry!r}, but {name} is recorded already and means something else; rename the function."
            )
    if twice := _repeated(map(metric_name, entries)):
        raise SettingError(f"metrics holds {twice} twice; every metric is recorded once, under its own name.")


def check_optimized(name: str | None, entries: Sequence[str]) -> None:
    """Raise `SettingError` unless `name` is None or that of a metric which a run with `entries` records."""
    known = list(dict.fromkeys((*ALWAYS, *map(metric_name, entries))))
    if name is None or name in known:
        return
    hint = f" Add {name} to metrics first." if name in METRICS else ""
    raise SettingError(
        f"optimized_metric is {name!r}, which this run does not record; it records {', '.join(known)}.{hint}"
    )


def _repeated(names: Iterable[str]) -> str | None:
    """Return the first name that comes twice, None where none does."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None

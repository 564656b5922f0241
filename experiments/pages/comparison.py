"""Runs grouped by the settings in which they differ: the seeds of one setting become a mean with a standard error.

Metrics do not split groups, because they change nothing of the training. A metric's mean is over the runs that recorded a
value of it; their number is given where it is not that of all.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from client.metric_names import ALWAYS
from experiments.pages.wording import Estimate, bound, estimate, number, text_of
from experiments.run_files.directory import CONFIG, SUMMARY
from experiments.run_files.reader import Run, is_finished, read_run
from experiments.run_files.same_settings import REPETITION, without
from fedmf.errors import RunDirectoryError

MEASURES = ("epsilon", "compression_ratio", "uplink_bytes_per_client", "wall_seconds")
EITHER = ("privacy.epsilon", "privacy.noise_multiplier")
STEP = 0.05


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seed only; `settings` are those in which the groups differ."""

    settings: dict[str, Any]
    runs: tuple[Run, ...]

    @property
    def seeds(self) -> list[Any]:
        """The seeds of the runs, each once."""
        return list({repr(seed): seed for run in self.runs for seed in [run.config.get("seed")]}.values())

    def mean(self, name: str) -> Estimate | None:
        """Return mean and standard error of a number in the summaries, or None where a run has none."""
        return estimate([run.summary.get(name) for run in self.runs])

    def metric(self, name: str) -> tuple[Estimate | None, int]:
        """Return mean and standard error of a metric over the runs that have a value of it, and how many these are."""
        runs = [run for run in self.runs if name in ALWAYS or name in run.further_metrics]
        values = [value for run in runs if (value := run.summary.get(name)) is not None]
        return estimate(values), len(values)

    def bytes_to_reach(self, target: float | None) -> Estimate | None:
        """Return mean and standard error of the bytes sent until an accuracy was reached, or None where it was not."""
        return None if target is None else estimate([bytes_to_reach(run, target) for run in self.runs])


@dataclass(frozen=True)
class Comparison:
    """The groups below a directory, why runs or metrics are `left_out`, the `target` accuracy, and all `metrics`."""

    directory: Path
    groups: Sequence[Group]
    left_out: Mapping[str, str]
    target: float | None
    metrics: Sequence[str]

    @property
    def runs(self) -> list[Run]:
        """All runs, group by group."""
        return [run for group in self.groups for run in group.runs]


def read_comparison(directory: Path, target: float | None = None) -> Comparison:
    """Return the finished runs below `directory`, grouped; without a target it is the highest that all reach.

    That is the largest multiple of 5 % that every run reaches in some round, None where it is 0.
    """
    runs, left_out = find_runs(directory)
    metrics = dict(item for run in runs for item in run.further_metrics.items())
    for name, entry in list(metrics.items()):
        if any(run.further_metrics.get(name, entry) != entry for run in runs):
            left_out[name] = "not the same metric in all runs"
            del metrics[name]
    if target is None:
        reached = min(max(run.column("accuracy")[1], default=0.0) for run in runs)
        target = round(math.floor(reached / STEP + 1e-9) * STEP, 2) or None
    return Comparison(directory, group_runs(runs), left_out, target, [*ALWAYS, *metrics])


def find_runs(directory: Path) -> tuple[list[Run], dict[str, str]]:
    """Return the finished runs below `directory`, by path, and why others are left out, by name."""
    if not directory.is_dir():
        raise RunDirectoryError(f"directory is {directory}; it must be a directory of runs.")
    finished, left_out = [], {}
    for file in sorted(directory.rglob(CONFIG)):
        try:
            finished.append(read_run(file.parent))
        except RunDirectoryError as error:
            name = str(file.parent.relative_to(directory))
            left_out[name] = f"unreadable: {error}" if is_finished(file.parent) else "unfinished"
    if not finished:
        reasons = "".join(f" {name} is {why}" for name, why in left_out.items())
        raise RunDirectoryError(
            f"{directory} contains no finished run; it must contain at least one with {SUMMARY}.{reasons}"
        )
    return finished, left_out


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """Return the runs by settings, seeds apart, in order of the settings in which they differ."""
    settings = [without(run.config, REPETITION) for run in runs]
    keys = sorted({key for own in settings for key in own})
    differing = [key for key in keys if len({repr(own.get(key)) for own in settings}) > 1]
    groups: dict[str, Group] = {}
    for run, own in zip(runs, settings, strict=True):
        shown = {key: own.get(key) for key in differing}
        others = groups.get(repr(shown), Group(shown, ()))
        groups[repr(shown)] = Group(shown, (*others.runs, run))
    return sorted(groups.values(), key=lambda group: [_order(value) for value in group.settings.values()])


def _order(value: Any) -> tuple[bool, bool, Any]:
    """Return a sort key for settings of any type: nothing, numbers, then words."""
    is_number = isinstance(value, int | float)
    return value is not None, not is_number, value if is_number else str(value)


def label(settings: dict[str, Any]) -> str:
    """Return settings in one line, under short names; of epsilon and noise multiplier the one that was given.

    >>> label({"privacy.epsilon": 8.0, "mechanism.name": "optimal"})
    'epsilon = 8, mechanism = optimal'
    """
    names = short_names(settings)
    shown = [key for key, value in settings.items() if not (value is None and key in EITHER)]
    return ", ".join(f"{names[key]} = {text_of(key, settings[key])}" for key in shown) or "all runs"


def short_names(keys: Iterable[str]) -> dict[str, str]:
    """Return the names of settings without their groups, except where two would then be the same.

    >>> short_names(["compression.keep_probability", "client.epochs", "population.epochs"]).values()
    dict_values(['keep probability', 'client epochs', 'population epochs'])
    """
    words = {key: key.removesuffix(".name").replace("_", " ") for key in keys}
    last = {key: name.rsplit(".", 1)[-1] for key, name in words.items()}
    times = Counter(last.values())
    return {key: last[key] if times[last[key]] == 1 else words[key].replace(".", " ") for key in words}


def bytes_to_reach(run: Run, target: float) -> float | None:
    """Return the bytes that all clients had sent when a scored round first reached `target`, or None."""
    sent = accumulate(float(line["uplink_bytes"]) for line in run.rounds)
    reached = ((line.get("accuracy") or 0.0) >= target for line in run.rounds)
    return next((so_far for so_far, enough in zip(sent, reached, strict=True) if enough), None)


def as_document(compared: Comparison) -> dict[str, Any]:
    """Return the comparison as one JSON document."""
    return {
        "runs": len(compared.runs),
        "left_out": dict(compared.left_out),
        "target_accuracy": compared.target,
        "groups": [_group_document(group, compared.target, compared.metrics) for group in compared.groups],
    }


def _group_document(group: Group, target: float | None, metrics: Sequence[str]) -> dict[str, Any]:
    """Return one group's settings and values; NAME_runs is how many runs have a value of a metric."""
    document = {
        **group.settings,
        "seeds": group.seeds,
        "runs": len(group.runs),
        "private": not any(map(is_not_private, group.runs)),
        **{name: " | ".join(values) for name, values in claims(group.runs).items()},
    }
    means = {name: group.metric(name)[0] for name in metrics}
    means |= {name: group.mean(name) for name in MEASURES}
    means["bytes_to_target"] = group.bytes_to_reach(target)
    for name, mean in means.items():
        document |= {
            name: mean and mean.mean,
            f"{name}_standard_error": mean and mean.error,
        }
        if name in metrics:
            document[f"{name}_runs"] = group.metric(name)[1]
    return document


def claims(runs: Sequence[Run]) -> dict[str, list[str]]:
    """Return the delta, units of privacy and adjacencies that the epsilons of `runs` hold for."""
    writers = {"delta": bound, "unit_of_privacy": number, "adjacency": number}
    return {
        name: sorted({write(run.privacy.get(name, run.summary.get(name))) for run in runs})
        for name, write in writers.items()
    }


def is_not_private(run: Run) -> bool:
    """Return whether a run protects nobody: no finite epsilon, or secrets that derive from its seed."""
    return run.summary.get("epsilon") is None or bool((run.config.get("run") or {}).get("reproducible"))

"""Runs grouped by the settings in which they differ: the seeds of one setting become a mean with a standard error.

Metrics do not split groups, because they change nothing of the training. A metric's mean is over the runs that recorded a
value of it; their number is given where it is not that of all.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from client.metric_names import ALWAYS
from experiments.pages.fields import text_of
from experiments.pages.wording import Estimate, bound, estimate, number
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
    def label(self) -> str:
        """The group's settings in one line."""
        return label(self.settings)

    @property
    def seeds(self) -> list[Any]:
        """The seeds of the runs, each once."""
        return list({repr(seed): seed for run in self.runs for seed in [run.config.get("seed")]}.values())

    def mean(self, value: Callable[[Run], float | None]) -> Estimate | None:
        """Return mean and standard error of a number over the runs, or None where a run has none."""
        return estimate([value(run) for run in self.runs])

    def metric(self, name: str) -> tuple[Estimate | None, int]:
        """Return mean and standard error of a metric over the runs that have a value of it, and how many these are."""
        runs = [run for run in self.runs if name in ALWAYS or name in run.further_metrics]
        values = [value for run in runs if (value := run.summary.get(name)) is not None]
        return estimate(values), len(values)


@dataclass(frozen=True)
class Comparison:
    """The groups below a directory, why runs are `left_out`, the `target` accuracy, and {metric: what it is} of further metrics."""

    directory: Path
    groups: Sequence[Group]
    left_out: Mapping[str, str]
    target: float | None
    metrics: Mapping[str, Sequence[str]]

    @property
    def runs(self) -> list[Run]:
        """All runs, group by group."""
        return [run for group in self.groups for run in group.runs]

    @property
    def further_metrics(self) -> list[str]:
        """The names of metrics besides accuracy and loss that are the same metric in all runs that recorded them."""
        return [name for name, entries in self.metrics.items() if len(entries) == 1]


def read_comparison(directory: Path, target: float | None = None) -> Comparison:
    """Return the finished runs below `directory`, grouped; without a target it is the highest that all reach."""
    runs, left_out = find_runs(directory)
    metrics: dict[str, list[str]] = {}
    for run in runs:
        for name, entry in run.further_metrics.items():
            if entry not in metrics.setdefault(name, []):
                metrics[name].append(entry)
    if target is None:
        target = common_accuracy(runs)
    return Comparison(directory, group_runs(runs), left_out, target, metrics)


def find_runs(directory: Path) -> tuple[list[Run], dict[str, str]]:
    """Return the finished runs below `directory`, by path, and why others are left out, by name."""
    if not directory.is_dir():
        wrong = "is a file" if directory.exists() else "does not exist"
        raise RunDirectoryError(f"directory is {directory}, which {wrong}; it must be a directory of runs.")
    places = sorted(file.parent for file in directory.rglob(CONFIG) if "checkpoint" not in file.parts)
    finished, left_out = [], {}
    for place in places:
        try:
            finished.append(read_run(place))
        except RunDirectoryError as error:
            name = str(place.relative_to(directory))
            left_out[name] = f"unreadable: {error}" if is_finished(place) else "unfinished"
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


def common_accuracy(runs: Sequence[Run]) -> float | None:
    """Return the largest multiple of 5 % that every run reaches in some round, None where that is 0."""
    reached = min(max(run.column("accuracy")[1], default=0.0) for run in runs)
    return round(math.floor(reached / STEP + 1e-9) * STEP, 2) or None


def bytes_by_round(run: Run) -> dict[int, float]:
    """Return the bytes that all clients had sent after each round."""
    sent = accumulate(float(line["uplink_bytes"]) for line in run.rounds)
    return dict(zip((line["round"] for line in run.rounds), sent, strict=True))


def bytes_to_reach(run: Run, target: float) -> float | None:
    """Return the bytes that all clients had sent when a scored round first reached `target`, or None."""
    reached = (place for place, accuracy in zip(*run.column("accuracy"), strict=True) if accuracy >= target)
    return next((bytes_by_round(run)[place] for place in reached), None)


def as_document(compared: Comparison) -> dict[str, Any]:
    """Return the comparison as one JSON document."""
    metrics = [*ALWAYS, *compared.further_metrics]
    return {
        "runs": len(compared.runs),
        "left_out": dict(compared.left_out),
        "target_accuracy": compared.target,
        "groups": [_group_document(group, compared.target, metrics) for group in compared.groups],
    }


def _group_document(group: Group, target: float | None, metrics: Sequence[str]) -> dict[str, Any]:
    """Return one group's settings and values; NAME_runs is how many runs have a value of a metric."""
    values: dict[str, Any] = {}
    for name in metrics:
        mean, count = group.metric(name)
        values |= {**_mean_and_error(name, mean), f"{name}_runs": count}
    for name in MEASURES:
        values |= _mean_and_error(name, group.mean(recorded(name)))
    reached = group.mean(lambda run: bytes_to_reach(run, target)) if target else None
    return {
        **group.settings,
        "seeds": group.seeds,
        "runs": len(group.runs),
        "private": not any(map(is_not_private, group.runs)),
        **{name: " | ".join(values) for name, values in claims(group.runs).items()},
        **values,
        **_mean_and_error("bytes_to_target", reached),
    }


def _mean_and_error(name: str, value: Estimate | None) -> dict[str, float | None]:
    mean, error = (value.mean, value.error) if value else (None, None)
    return {name: mean, f"{name}_standard_error": error}


def recorded(name: str) -> Callable[[Run], float | None]:
    """Return what finds a number in the summary of a run, None where it has none."""
    return lambda run: run.summary.get(name)


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

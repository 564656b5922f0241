"""Runs grouped by what they differ in: the seeds of one setting become a mean with a standard error.

Metrics part no groups, because they change nothing of the training. A metric's mean is over the runs that recorded a
value of it, and their number is said where it is not that of all.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from client.metric_names import ALWAYS
from experiments.pages.estimate import Estimate, estimate
from experiments.pages.wording import bound, figure
from experiments.run_files.directory import CONFIG, SUMMARY
from experiments.run_files.reader import Run, is_finished, read_run
from experiments.run_files.same_settings import REPETITION, without
from fedmf.errors import RunDirectoryError

MEASURES = ("epsilon", "compression_ratio", "uplink_bytes_per_client", "wall_seconds")
EITHER = ("privacy.epsilon", "privacy.noise_multiplier")
SCORED_ON = "run.evaluation_examples"
KEEP = "compression.keep_probability"
STEP = 0.05


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seed only; `settings` are those in which the groups differ."""

    settings: dict[str, Any]
    runs: tuple[Run, ...]

    @property
    def label(self) -> str:
        """Return the group's settings in one line."""
        return label(self.settings)

    @property
    def seeds(self) -> list[Any]:
        """Return the seeds of the runs, each once."""
        seeds = []
        for run in self.runs:
            if (seed := run.config.get("seed")) not in seeds:
                seeds.append(seed)
        return seeds

    def estimate(self, measure: str) -> Estimate | None:
        """Return mean and standard error of a number in summary.json, or None where a run has none."""
        return estimate([run.summary.get(measure) for run in self.runs])

    def epsilon(self) -> str:
        """Return the epsilon that the runs spent, never less: the smallest and the largest where these are not the same."""
        spent = [float(value) for run in self.runs if (value := run.summary.get("epsilon")) is not None]
        if len(spent) < len(self.runs):
            return "not private"
        said = dict.fromkeys(bound(value) for value in (min(spent), max(spent)))
        return " to ".join(said)

    def metric(self, name: str) -> tuple[Estimate | None, int]:
        """Return mean and standard error of a metric over the runs that have a value of it, and how many these are."""
        recorded = [
            run.summary.get(name) for run in self.runs if name in ALWAYS or name in run.further_metrics
        ]
        values = [value for value in recorded if value is not None]
        return estimate(values), len(values)


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
            f"{directory} holds no finished run; it must hold at least one with {SUMMARY}.{reasons}"
        )
    return finished, left_out


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """Return the runs by settings, seeds apart, in order of the settings in which they differ."""
    settings = [
        without(run.config, REPETITION) | {SCORED_ON: run.summary.get("evaluation_examples")} for run in runs
    ]  # scores of a round are of so many examples: unlike ones are no repetitions
    keys = sorted({key for own in settings for key in own})
    differing = [key for key in keys if len({repr(own.get(key)) for own in settings}) > 1]
    members: dict[str, list[int]] = {}
    for index, own in enumerate(settings):
        members.setdefault(repr([own.get(key) for key in differing]), []).append(index)
    groups = [
        Group(
            {key: settings[indices[0]].get(key) for key in differing}, tuple(runs[index] for index in indices)
        )
        for indices in members.values()
    ]
    return sorted(groups, key=lambda group: [_order(value) for value in group.settings.values()])


def further_metrics(groups: Sequence[Group]) -> list[str]:
    """Return the names of the metrics besides accuracy and loss that some run recorded, each of one meaning."""
    return [name for name, entries in _recorded_metrics(groups).items() if len(entries) == 1]


def unclear_metrics(groups: Sequence[Group]) -> dict[str, list[str]]:
    """Return {name: import paths} of metrics that are not the same in all runs: these cannot be compared."""
    return {name: entries for name, entries in _recorded_metrics(groups).items() if len(entries) > 1}


def _recorded_metrics(groups: Sequence[Group]) -> dict[str, list[str]]:
    """Return what each name stands for in the runs that recorded it."""
    recorded: dict[str, list[str]] = {}
    for group in groups:
        for run in group.runs:
            for name, entry in run.further_metrics.items():
                if entry not in recorded.setdefault(name, []):
                    recorded[name].append(entry)
    return recorded


def label(settings: dict[str, Any]) -> str:
    """Return settings in one line, under short names; of epsilon and noise multiplier the one that was given.

    >>> label({"privacy.epsilon": 8.0, "mechanism.name": "optimal"})
    'epsilon = 8, mechanism = optimal'
    """
    names = short_names(settings)
    shown = [key for key, value in settings.items() if not (value is None and key in EITHER)]
    return ", ".join(f"{names[key]} = {figure(key, settings[key])}" for key in shown) or "all runs"


def short_names(keys: Iterable[str]) -> dict[str, str]:
    """Return the names of settings without their groups, except where two would then be the same.

    >>> short_names(["compression.keep_probability", "client.epochs", "population.epochs"]).values()
    dict_values(['keep probability', 'client epochs', 'population epochs'])
    """
    words = {key: key.removesuffix(".name").replace("_", " ") for key in keys}
    last = {key: name.rsplit(".", 1)[-1] for key, name in words.items()}
    times = Counter(last.values())
    return {key: last[key] if times[last[key]] == 1 else words[key].replace(".", " ") for key in words}


def common_accuracy(groups: Sequence[Group]) -> float | None:
    """Return the largest multiple of 5 % that every run reaches in some round, None where that is 0."""
    reached = min(max(run.column("accuracy")[1], default=0.0) for group in groups for run in group.runs)
    steps = math.floor(reached / STEP + 1e-9)
    return round(steps * STEP, 2) if steps else None


def bytes_to_reach(run: Run, target: float) -> float | None:
    """Return the bytes that all clients had sent when a scored round first reached `target`, or None."""
    sent = accumulate(float(line["uplink_bytes"]) for line in run.rounds)
    for line, total in zip(run.rounds, sent, strict=True):
        if (line.get("accuracy") or 0.0) >= target:
            return total
    return None


def as_document(groups: Sequence[Group], left_out: Mapping[str, str], target: float | None) -> dict[str, Any]:
    """Return the comparison as one JSON document."""
    return {
        "runs": sum(len(group.runs) for group in groups),
        "left_out": dict(left_out),
        "target_accuracy": target,
        "groups": [_group_document(group, target, [*ALWAYS, *further_metrics(groups)]) for group in groups],
    }


def _group_document(group: Group, target: float | None, metrics: Sequence[str]) -> dict[str, Any]:
    """Return one group's settings and figures; NAME_runs is how many runs have a value of a metric."""
    figures: dict[str, Any] = {}
    for name in metrics:
        value, count = group.metric(name)
        figures[name] = value and value.mean
        figures[f"{name}_standard_error"] = value and value.error
        figures[f"{name}_runs"] = count
    for measure in MEASURES:
        value = group.estimate(measure)
        figures[measure] = value and value.mean
        figures[f"{measure}_standard_error"] = value and value.error
    reached = estimate([bytes_to_reach(run, target) for run in group.runs]) if target else None
    return {
        **group.settings,
        "seeds": group.seeds,
        "runs": len(group.runs),
        "private": not any(is_not_private(run) for run in group.runs),
        **{name: " | ".join(values) for name, values in claims(group.runs).items()},
        **figures,
        "bytes_to_target": reached and reached.mean,
        "bytes_to_target_standard_error": reached and reached.error,
    }


def claims(runs: Sequence[Run]) -> dict[str, list[str]]:
    """Return the delta, units of privacy and adjacencies that the epsilons of `runs` hold for."""
    return {
        name: sorted({figure(name, run.privacy.get(name, run.summary.get(name))) for run in runs})
        for name in ("delta", "unit_of_privacy", "adjacency")
    }


def is_not_private(run: Run) -> bool:
    """Return whether a run protects nobody: no finite epsilon, or secrets that derive from its seed."""
    return run.summary.get("epsilon") is None or bool((run.config.get("run") or {}).get("reproducible"))


def _order(value: Any) -> tuple[int, float, str]:
    """Return a sort key for settings of any type: nothing, numbers, then words."""
    if value is None:
        return 0, 0.0, ""
    if isinstance(value, int | float):
        return 1, float(value), ""
    return 2, 0.0, str(value)

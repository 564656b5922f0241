"""Runs grouped by the settings in which they differ, and the page about them.

The seeds of one setting become a mean with a standard error. Metrics do not split groups, because they change nothing of
the training: a metric's mean is over the runs that recorded a value of it, whose number is given where it is not that of all.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from client.metric_names import ALWAYS
from experiments.pages.figures import COLOURS, LinePlot, Series
from experiments.pages.page import Page, Section, Table
from experiments.pages.wording import Estimate, bound, estimate, number, text_of, unit_of
from experiments.run_files.directory import CONFIG, METRICS, PRIVACY, SUMMARY
from experiments.run_files.reader import Run, is_finished, read_run
from experiments.run_files.same_settings import REPETITION, without
from fedmf.errors import RunDirectoryError

CLAIMS = ("delta", "unit_of_privacy", "adjacency")
STEP = 0.05  # of the accuracies that are a target
MOST_LINES = len(COLOURS)
SAME = 0.01  # values closer than this share are one: a calibration ends close to its target, not on it
EITHER = ("privacy.epsilon", "privacy.noise_multiplier")
KEEP = "compression.keep_probability"
# What accuracy is drawn against: (words, key of the summary, the settings that it follows from: the first of these in which
# the groups differ). Groups that differ in anything else are other lines.
MEASURES = (
    ("epsilon spent", "epsilon", (EITHER, ("population.epochs",))),
    (
        "values that a client sends in a round",
        "uplink_bytes_per_client",
        ((KEEP, "compression.value_type", "compression.rotation"),),
    ),
    ("keep probability", "keep_probability", ((KEEP,),)),
)
Lines = dict[str, list[tuple[float, float, float]]]  # x, accuracy and its standard error of each line


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seed only; `settings` are those in which groups differ, `row` is its JSON document."""

    settings: dict[str, Any]
    runs: Sequence[Run]
    row: dict[str, Any]


@dataclass(frozen=True)
class Comparison:
    """The groups below a directory, why runs or metrics are `left_out`, the `target` accuracy, and all `metrics`."""

    directory: Path
    groups: Sequence[Group]
    left_out: Mapping[str, str]
    target: float | None
    metrics: Sequence[str]

    @property
    def document(self) -> dict[str, Any]:
        """The comparison as one JSON document."""
        return {
            "runs": sum(len(group.runs) for group in self.groups),
            "left_out": dict(self.left_out),
            "target_accuracy": self.target,
            "groups": [group.row for group in self.groups],
        }


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
    names = [*ALWAYS, *metrics]
    settings = [without(run.config, REPETITION) for run in runs]
    keys = sorted({key for own in settings for key in own})
    differing = [key for key in keys if len({repr(own.get(key)) for own in settings}) > 1]
    shown = [{key: own.get(key) for key in differing} for own in settings]
    groups = []
    for own in sorted({repr(each): each for each in shown}.values(), key=_order):
        members = [run for run, other in zip(runs, shown, strict=True) if other == own]
        groups.append(Group(own, members, {**own, **_row(members, names, target)}))
    return Comparison(directory, groups, left_out, target, names)


def _order(settings: dict[str, Any]) -> list[tuple[bool, bool, Any]]:
    """Return a sort key for settings of any type: nothing, numbers, then words."""
    return [
        (value is not None, isinstance(value, str), value if isinstance(value, int | float) else str(value))
        for value in settings.values()
    ]


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


def _row(runs: Sequence[Run], metrics: Sequence[str], target: float | None) -> dict[str, Any]:
    """Return the values of a group, means with standard errors; NAME_runs is how many runs have a value of a metric."""
    seeds = {repr(run.config.get("seed")): run.config.get("seed") for run in runs}
    said = {name: [run.privacy.get(name, run.summary.get(name)) for run in runs] for name in CLAIMS}
    row = {
        "seeds": list(seeds.values()),
        "runs": len(runs),
        "private": not any(map(is_not_private, runs)),
        **{
            name: " | ".join(sorted({bound(one) if name == "delta" else number(one) for one in values}))
            for name, values in said.items()
        },
    }
    for name in metrics:
        recorded = [run.summary for run in runs if name in ALWAYS or name in run.further_metrics]
        values = [summary[name] for summary in recorded if summary.get(name) is not None]
        row |= {**_mean(name, estimate(values)), f"{name}_runs": len(values)}
    for name in ("epsilon", "compression_ratio", "uplink_bytes_per_client", "wall_seconds"):
        row |= _mean(name, estimate([run.summary.get(name) for run in runs]))
    return row | _mean("bytes_to_target", estimate([bytes_to_reach(run, target) for run in runs]))


def _mean(name: str, value: Estimate | None) -> dict[str, float | None]:
    mean, error = (value.mean, value.error) if value else (None, None)
    return {name: mean, f"{name}_standard_error": error}


def bytes_to_reach(run: Run, target: float | None) -> float | None:
    """Return the bytes that all clients had sent when a scored round first reached `target`, or None."""
    sent = accumulate(float(line["uplink_bytes"]) for line in run.rounds)
    reached = (target is not None and (line.get("accuracy") or 0.0) >= target for line in run.rounds)
    return next((so_far for so_far, enough in zip(sent, reached, strict=True) if enough), None)


def is_not_private(run: Run) -> bool:
    """Return whether a run protects nobody: no finite epsilon, or secrets that derive from its seed."""
    return run.summary.get("epsilon") is None or bool((run.config.get("run") or {}).get("reproducible"))


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


def comparison_page(compared: Comparison) -> Page:
    """Return the page of a comparison."""
    groups = compared.groups
    words = (
        "Values sent: by each client of a cohort in a round, without the envelope. Bytes to an accuracy: of all clients, until "
        "a scored round first reached it; a dash where not every run did."
    )
    left_out = [f"left out, {name}: {why}" for name, why in compared.left_out.items()]
    results = Section("Results", [words], left_out, results_table(compared))
    varied = ", ".join(groups[0].settings) or "nothing but the seed"
    lead = f"{len(groups)} groups; they differ in {varied}. {claim(groups)}"
    title = f"fedmf comparison {compared.directory.resolve().name}"
    sections = [results, *measured_sections(groups), by_round_section(groups)]
    return Page(title, lead, sections, tuple(warnings(groups)))


def warnings(groups: Sequence[Group]) -> Iterator[str]:
    """Yield what must be read before anything else."""
    runs = [run for group in groups for run in group.runs]
    if exposed := sum(map(is_not_private, runs)):
        yield f"{exposed} of {len(runs)} runs are NOT private (no noise, or reproducible secrets)."
    if len(runs) > 1:
        yield (
            "Each run's epsilon covers that run alone; runs on the same clients compose, and choosing "
            "settings by their figures is not covered."
        )
    for group in groups:
        if len(group.row["seeds"]) < len(group.runs):
            yield (
                f"{label(group.settings)}: {len(group.runs)} runs of {len(group.row['seeds'])} seeds. Runs of one seed differ in "
                "their noise alone: the standard error is not one over seeds."
            )


def claim(groups: Sequence[Group]) -> str:
    """Return for whom the epsilons of the runs hold, and where the rest is."""
    delta, unit, adjacency = (" or ".join(sorted({group.row[name] for group in groups})) for name in CLAIMS)
    return (
        f"Epsilon holds at delta = {delta}, for {unit}, under {text_of('adjacency', adjacency)} adjacency; what it covers and "
        f"what not is in each run's {PRIVACY}."
    )


def results_table(compared: Comparison) -> Table:
    """Return one row for each group; of its epsilons the largest."""
    metrics = [name for name in compared.metrics if name != "loss"]
    names = short_names(compared.groups[0].settings).values()
    rows, words = [], set()
    for group in compared.groups:
        row = group.row
        epsilons: list[Any] = [run.summary.get("epsilon") for run in group.runs]
        words |= {place for place, value in enumerate(group.settings.values()) if isinstance(value, str)}
        cells = [text_of(key, value) for key, value in group.settings.items()]
        cells += [number(len(row["seeds"])), number(row["runs"]), *(_metric(name, row) for name in metrics)]
        cells.append("not private" if None in epsilons else bound(max(epsilons)))
        cells += [text_of(name, row[name]) for name in ("compression_ratio", "uplink_bytes_per_client")]
        rows.append([*cells, text_of("bytes", row["bytes_to_target"])])
    to_reach = f"bytes to {text_of('accuracy', compared.target)}"
    header = [*names, "seeds", "runs", *metrics, "epsilon spent", "compression", "values sent", to_reach]
    return Table(header, rows, sorted({*range(len(header))} - words))


def _metric(name: str, row: dict[str, Any]) -> str:
    """Return a metric with its standard error and, where not all runs have a value of it, how many do."""
    mean, error, count = (row[f"{name}{end}"] for end in ("", "_standard_error", "_runs"))
    text = number(None) if mean is None else str(Estimate(mean, error))
    if mean is not None and unit_of(name) == "%":
        text = f"{100 * mean:.1f}{'' if error is None else f' ± {100 * error:.1f}'} %"
    return text if count in (0, row["runs"]) else f"{text} ({count} of {row['runs']} runs)"


def measured_sections(groups: Sequence[Group]) -> Iterator[Section]:
    """Yield accuracy against epsilon, bytes and keep probability, each where the groups differ in it."""
    for words, name, causes in MEASURES:
        means = [estimate([run.summary.get(name) for run in group.runs]) for group in groups]
        points = [(group, mean.mean) for group, mean in zip(groups, means, strict=True) if mean]
        values = [x for _, x in points if x > 0]
        if not values or max(values) <= (1 + SAME) * min(values):
            continue
        caused = next((keys for keys in causes if any(key in groups[0].settings for key in keys)), ())
        lines: Lines = {}
        for group, x in points:
            others = {key: value for key, value in group.settings.items() if key not in caused}
            if (accuracy := group.row["accuracy"]) is not None:
                error = group.row["accuracy_standard_error"] or 0.0
                lines.setdefault(label(others), []).append((x, accuracy, error))
        end = f"{len(points)} of {len(groups)} groups have a value. From {SUMMARY}: accuracy, {name}."
        log = max(values) >= 3 * min(values)
        bytes_on = "x" if "bytes" in name else ""
        yield _accuracy_section(f"against {words}", lines, end, x_label=words, log=log, bytes_on=bytes_on)


def by_round_section(groups: Sequence[Group]) -> Section:
    """Return accuracy by round, in the rounds at which all runs of a group were scored."""
    lines: Lines = {}
    for group in groups:
        columns = [dict(zip(*run.column("accuracy"), strict=True)) for run in group.runs]
        for place in columns[0]:
            if (mean := estimate([column.get(place) for column in columns])) is not None:
                lines.setdefault(label(group.settings), []).append((place, mean.mean, mean.error or 0.0))
    return _accuracy_section("by round", lines, f"From {METRICS}: accuracy.")


def _accuracy_section(against: str, lines: Lines, end: str, **options: Any) -> Section:
    """Return accuracy by round or against something, a line for each name, of many lines the best."""
    title, series = f"Accuracy {against}", []
    for name, points in lines.items():
        xs, means, errors = zip(*sorted(points), strict=True)
        series.append(Series(name, xs, [100 * mean for mean in means], [100 * error for error in errors]))
    if not series:
        return Section(title, [f"No {METRICS} contains a round with a value of accuracy."])
    best = sorted(series, key=lambda line: -max(line.y))[:MOST_LINES]
    drawn = [line for line in series if line in best]
    shown = (
        f"{len(drawn)} of {len(series)} lines, those that get highest. " if len(drawn) < len(series) else ""
    )
    caption = f"{title}, mean and standard error over seeds. {shown}{end}"
    plot = LinePlot(title.lower().replace(" ", "_"), caption, drawn, "test accuracy (%)", **options)
    return Section(title, plot=plot)

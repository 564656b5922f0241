"""Compare the runs below a directory: `python -m experiments.compare directory=DIR`.

Runs that differ in nothing but their seed are one group, shown as a mean with its standard error. Prints a
table (or JSON) and writes DIR/compare.csv and DIR/compare.html, a page with plots. `plots=FOLDER` also writes every plot
as PNG and SVG, as wide as a column of a paper. Unfinished and unreadable runs are named, not counted.

Metrics do not split groups, because they change nothing of the training: a metric's mean is over the runs that recorded a
value of it, whose number is given where it is not that of all.
"""

import csv
import io
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, starmap
from pathlib import Path
from typing import Any

from client.metrics import ALWAYS
from experiments.cli import command, output
from experiments.pages.figures import COLOURS, LinePlot, Series
from experiments.pages.page import PLOTS, Page, Section, Table, write_page
from experiments.pages.wording import Estimate, bound, estimate, holds_for, number, text_of, unit_of
from experiments.run_files.directory import CONFIG, METRICS, PRIVACY, SUMMARY
from experiments.run_files.reader import REPETITION, Run, is_finished, read_run, without
from experiments.settings.values import PRINTED, Output
from fedmf.checks import check_open_unit, counted
from fedmf.errors import RunDirectoryError
from fedmf.setting import REQUIRED, setting
from server.files import write_output

CSV, PAGE = "compare.csv", "compare.html"
CLAIMS = ("delta", "unit_of_privacy", "adjacency")
MOST_LINES = len(COLOURS)
MOST_COLUMNS = 6  # of settings: those of unlike runs are one column, in words
EITHER = ("privacy.epsilon", "privacy.noise_multiplier")
KEEP = "compression.keep_probability"
# What accuracy is drawn against: (words, key of the summary, the settings that it follows from: the first of these in which
# the groups differ). Groups that differ in anything else are other lines.
MEASURES = (
    ("epsilon spent", "epsilon", (EITHER, ("population.epochs",))),
    (
        "values sent by a client",
        "uplink_bytes_per_client",
        ((KEEP, "compression.value_type", "compression.rotation"),),
    ),
    ("keep probability", "keep_probability", ((KEEP,),)),
)
Lines = Mapping[str, Mapping[float, Estimate]]  # the accuracy at each x of each line


@dataclass(frozen=True)
class CompareSettings:
    """Keys of the command."""

    directory: str = setting(REQUIRED, "folder: every run below it is compared")
    target_accuracy: float | None = setting(
        None,
        "what the bytes to reach it are counted for, in (0, 1); null: the largest multiple of 5 % "
        "that every group reaches",
    )
    plots: str | None = setting(None, PLOTS)
    output: Output = setting("text", PRINTED)


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seed only; `settings` are those in which groups differ, `row` is its JSON document."""

    settings: dict[str, Any]
    runs: Sequence[Run]
    row: dict[str, Any]


@dataclass(frozen=True)
class Comparison:
    """The groups below a directory, why runs or metrics are `left_out`, and the `target` accuracy."""

    directory: Path
    groups: Sequence[Group]
    left_out: Mapping[str, str]
    target: float | None


def compare(settings: CompareSettings) -> None:
    """Print the comparison of the runs below `settings.directory`, and write it there as a page and a table."""
    if settings.target_accuracy is not None:
        check_open_unit("target_accuracy", settings.target_accuracy)
    compared = read_comparison(Path(settings.directory), settings.target_accuracy)
    rows = [group.row for group in compared.groups]
    document = {
        "runs": sum(row["runs"] for row in rows),
        "left_out": compared.left_out,
        "target_accuracy": compared.target,
        "groups": rows,
    }
    page, table = compared.directory / PAGE, compared.directory / CSV
    plots = write_page(comparison_page(compared), page, settings.plots)
    lines = io.StringIO(newline="")
    writer = csv.DictWriter(lines, list(rows[0]))
    writer.writeheader()
    writer.writerows(row | {"seeds": " ".join(map(str, row["seeds"]))} for row in rows)
    write_output(table, lines.getvalue().encode())
    output.show(settings.output, document, lambda: _print(compared, [page, table, *plots]))


def _print(compared: Comparison, files: Sequence[Path]) -> None:
    """Print the results and where the files are."""
    table = results_table(compared)
    columns = {
        name: output.NUMBER if place in table.numbers else {} for place, name in enumerate(table.header)
    }
    title = f"Runs below {compared.directory}: mean ± standard error over seeds"
    output.print_table(title, columns, table.rows)
    lines = [*claims(compared.groups), *warnings(compared.groups), *notes(compared), *map(str, files)]
    output.console().print("\n".join(lines), markup=False)


def read_comparison(directory: Path, target: float | None = None) -> Comparison:
    """Return the finished runs below `directory`, grouped; without a target it is the highest that all reach.

    That is the largest multiple of 5 % that every run reaches in some round, None where it is 0.
    """
    runs, left_out = find_runs(directory)
    entries: dict[str, set[str]] = defaultdict(set)
    for name, entry in chain.from_iterable(run.further_metrics.items() for run in runs):
        entries[name].add(entry)
    left_out |= {name: "not the same metric in all runs" for name in entries if len(entries[name]) > 1}
    if target is None:
        reached = min(max(run.column("accuracy")[1], default=0.0) for run in runs)
        target = math.floor(20 * reached + 1e-9) / 20 or None
    settings = [without(run.config, REPETITION) for run in runs]
    keys = sorted({key for own in settings for key in own})
    differing = [key for key in keys if len({repr(own.get(key)) for own in settings}) > 1]
    members: dict[str, list[Run]] = defaultdict(list)
    for run, own in zip(runs, settings, strict=True):
        members[repr([own.get(key) for key in differing])].append(run)
    metrics = [*ALWAYS, *(name for name in entries if len(entries[name]) == 1)]
    groups = [_group(differing, alike, metrics, target) for alike in members.values()]
    return Comparison(directory, sorted(groups, key=_order), left_out, target)


def notes(compared: Comparison) -> list[str]:
    """Return what is left out and why, in words."""
    return [f"left out, {name}: {why}" for name, why in compared.left_out.items()]


def _order(group: Group) -> list[tuple[bool, bool, Any]]:
    """Return a sort key for settings of any type: nothing, numbers, then words."""
    return [
        (value is not None, isinstance(value, str), value if isinstance(value, int | float) else str(value))
        for value in group.settings.values()
    ]


def find_runs(directory: Path) -> tuple[list[Run], dict[str, str]]:
    """Return the finished runs below `directory`, by path, and why others are left out, by name."""
    finished, left_out = [], {}
    for file in sorted(directory.rglob(CONFIG)):
        try:
            finished.append(read_run(file.parent))
        except RunDirectoryError as error:
            name = str(file.parent.relative_to(directory))
            left_out[name] = f"unreadable: {error}" if is_finished(file.parent) else "unfinished"
    if not finished:
        raise RunDirectoryError(
            f"{directory} contains no finished run; it must be a directory with at least one {SUMMARY}."
            + "".join(f" {name} is {why}" for name, why in left_out.items())
        )
    return finished, left_out


def _group(keys: Sequence[str], runs: Sequence[Run], metrics: Sequence[str], target: float | None) -> Group:
    """Return a group with its values, means with standard errors; NAME_runs is how many runs have a value of a metric."""
    own = without(runs[0].config, REPETITION)
    settings = {key: own.get(key) for key in keys}
    seeds = {repr(run.config.get("seed")): run.config.get("seed") for run in runs}
    row = {
        **settings,
        "seeds": list(seeds.values()),
        "runs": len(runs),
        "private": not any(map(is_not_private, runs)),
    }
    for name in CLAIMS:
        values = [run.privacy.get(name, run.summary.get(name)) for run in runs]
        row[name] = " | ".join(sorted({bound(one) if name == "delta" else number(one) for one in values}))
    for name in metrics:
        recorded = [run.summary.get(name) for run in runs if name in {*ALWAYS, *run.further_metrics}]
        known = [value for value in recorded if value is not None]
        row |= _mean(name, known) | {f"{name}_runs": len(known)}
    for name in ("epsilon", "compression_ratio", "uplink_bytes_per_client", "wall_seconds"):
        row |= _mean(name, [run.summary.get(name) for run in runs])
    row |= _mean("bytes_to_target", [bytes_to_reach(run, target) for run in runs])
    return Group(settings, runs, row)


def _mean(name: str, values: Sequence[float | None]) -> dict[str, float | None]:
    mean, error = estimate(values) or (None, None)
    return {name: mean, f"{name}_standard_error": error}


def bytes_to_reach(run: Run, target: float | None) -> float | None:
    """Return the bytes that all clients had sent when a scored round first reached `target`, or None."""
    sent = accumulate(float(line["uplink_bytes"]) for line in run.rounds)
    reached = (target is not None and (line.get("accuracy") or 0.0) >= target for line in run.rounds)
    return next((so_far for so_far, enough in zip(sent, reached, strict=True) if enough), None)


def is_not_private(run: Run) -> bool:
    """Return whether a run protects no client: no finite epsilon, or secrets that derive from its seed."""
    return run.summary.get("epsilon") is None or bool((run.config.get("run") or {}).get("reproducible"))


def label(settings: dict[str, Any]) -> str:
    """Return the settings that have a value in one line, under short names; all of them where none has.

    >>> label({"privacy.epsilon": 8.0, "privacy.noise_multiplier": None, "mechanism.name": "optimal"})
    'epsilon = 8, mechanism = optimal'
    >>> label({"privacy.max_epsilon": None}), label({})
    ('max epsilon = –', 'all runs')
    """
    names = short_names(settings)
    shown = [key for key, value in settings.items() if value is not None] or settings
    return ", ".join(f"{names[key]} = {text_of(key, settings[key])}" for key in shown) or "all runs"


def short_names(keys: Iterable[str]) -> dict[str, str]:
    """Return the names of settings without their groups, except where two would then be the same.

    >>> short_names(["compression.keep_probability", "client.epochs", "population.epochs"]).values()
    dict_values(['keep probability', 'client epochs', 'population epochs'])
    """
    words = {key: key.removesuffix(".name").replace("_", " ").split(".") for key in keys}
    times = Counter(parts[-1] for parts in words.values())
    return {key: parts[-1] if times[parts[-1]] == 1 else " ".join(parts) for key, parts in words.items()}


def comparison_page(compared: Comparison) -> Page:
    """Return the page of a comparison."""
    groups = compared.groups
    words = (
        "Values sent: by each client of a cohort in a round, without the envelope. Bytes to an accuracy: of all clients, until "
        "a scored round first reached it; a dash where not every run did."
    )
    varied = ", ".join(groups[0].settings) or "nothing but the seed"
    return Page(
        f"fedmf comparison {compared.directory.resolve().name}",
        " ".join([f"{len(groups)} groups; they differ in {varied}.", *claims(groups)]),
        [
            Section("Results", [words], notes(compared), results_table(compared)),
            *measured_sections(groups),
            by_round_section(groups),
        ],
        tuple(warnings(groups)),
    )


def claims(groups: Sequence[Group]) -> Iterator[str]:
    """Yield for whom the epsilons of the runs hold, and where the rest is; nothing where no run has an epsilon."""
    if any(run.summary.get("epsilon") is not None for group in groups for run in group.runs):
        values = (" or ".join(sorted({group.row[name] for group in groups})) for name in CLAIMS)
        yield f"Epsilon holds {holds_for(*values)}; what it covers and what not is in each run's {PRIVACY}."


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
    yield from (
        f"{label(group.settings)}: {len(group.runs)} runs of {counted(len(group.row['seeds']), 'seed')}. Runs of one seed differ in "
        "their noise alone: the standard error is not one over seeds."
        for group in groups
        if len(group.row["seeds"]) < len(group.runs)
    )


def results_table(compared: Comparison) -> Table:
    """Return one row for each group."""
    metrics = [
        name for name in compared.groups[0].row if f"{name}_runs" in compared.groups[0].row if name != "loss"
    ]
    names = short_names(compared.groups[0].settings)
    is_folded = len(names) > MOST_COLUMNS
    settings = ["settings"] if is_folded else names.values()
    to_reach = f"bytes to {text_of('accuracy', compared.target)}"
    header = [*settings, "seeds", "runs", *metrics, "epsilon spent", "compression", "values sent", to_reach]
    rows = [
        [
            *([label(group.settings)] if is_folded else starmap(text_of, group.settings.items())),
            number(len(group.row["seeds"])),
            number(group.row["runs"]),
            *(_metric(name, group.row) for name in metrics),
            largest_epsilon(group.runs),
            *(text_of(name, group.row[name]) for name in ("compression_ratio", "uplink_bytes_per_client")),
            text_of("bytes", group.row["bytes_to_target"]),
        ]
        for group in compared.groups
    ]
    words = {
        place
        for group in compared.groups
        for place, value in enumerate(group.settings.values())
        if isinstance(value, str)
    }
    if is_folded:
        words = {0}
    return Table(header, rows, sorted({*range(len(header))} - words))


def largest_epsilon(runs: Sequence[Run]) -> str:
    """Return the largest epsilon that one of `runs` spent, in words where one of them has none."""
    spent = [run.summary.get("epsilon") for run in runs]
    return "not private" if None in spent else bound(max(filter(None, spent), default=0.0))


def _metric(name: str, row: dict[str, Any]) -> str:
    """Return a metric with its standard error and, where not all runs have a value of it, how many do."""
    mean, error, count = (row[f"{name}{end}"] for end in ("", "_standard_error", "_runs"))
    if mean is None:
        return number(None)
    text = Estimate(mean, error).in_percent() if unit_of(name) == "%" else str(Estimate(mean, error))
    return text if count == row["runs"] else f"{text} ({count} of {row['runs']} runs)"


def measured_sections(groups: Sequence[Group]) -> Iterator[Section]:
    """Yield accuracy against epsilon, bytes and keep probability, each where the groups differ in it."""
    for words, name, causes in MEASURES:
        means = [(group, estimate([run.summary.get(name) for run in group.runs])) for group in groups]
        points = [(group, mean.mean) for group, mean in means if mean and mean.mean > 0]
        values = [x for _, x in points]
        # Values within one percent are one: a calibration ends close to its target, not on it.
        if max(values, default=0) <= 1.01 * min(values, default=0):
            continue
        caused = next((keys for keys in causes if any(key in groups[0].settings for key in keys)), ())
        lines: dict[str, dict[float, Estimate]] = defaultdict(dict)
        for group, x in points:
            others = {key: value for key, value in group.settings.items() if key not in caused}
            if (accuracy := group.row["accuracy"]) is not None:
                lines[label(others)][x] = Estimate(accuracy, group.row["accuracy_standard_error"])
        yield _accuracy_section(
            f"against {words}",
            lines,
            f"{len(points)} of {len(groups)} groups have a value. From {SUMMARY}: accuracy, {name}.",
            x_label=words,
            log=max(values) >= 3 * min(values),
            bytes_on="x" if "bytes" in name else "",
        )


def by_round_section(groups: Sequence[Group]) -> Section:
    """Return accuracy by round, in the rounds at which all runs of a group were scored."""
    lines: dict[str, Mapping[float, Estimate]] = {}
    for group in groups:
        columns = [dict(zip(*run.column("accuracy"), strict=True)) for run in group.runs]
        means = {place: estimate([column.get(place) for column in columns]) for place in columns[0]}
        lines[label(group.settings)] = {place: mean for place, mean in means.items() if mean}
    return _accuracy_section("by round", lines, f"From {METRICS}: accuracy.")


def _accuracy_section(against: str, lines: Lines, end: str, **options: Any) -> Section:
    """Return accuracy by round or against something, a line for each name, of many lines the best."""
    title = f"Accuracy {against}"
    series = [
        Series(
            name,
            sorted(points),
            [100 * points[x].mean for x in sorted(points)],
            [100 * (points[x].error or 0.0) for x in sorted(points)],
        )
        for name, points in lines.items()
        if points
    ]
    if not series:
        return Section(title, [f"No {METRICS} contains a round with a value of accuracy."])
    best = sorted(series, key=lambda line: -max(line.y))[:MOST_LINES]
    drawn = [line for line in series if line in best]
    shown = "" if drawn == series else f"{len(drawn)} of {len(series)} lines, those that get highest. "
    caption = f"{title}, mean and standard error over seeds. {shown}{end}"
    plot = LinePlot(title.lower().replace(" ", "_"), caption, drawn, "test accuracy (%)", **options)
    return Section(title, plot=plot)


if __name__ == "__main__":
    command.run(compare, "compare", CompareSettings, __doc__)

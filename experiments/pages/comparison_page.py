"""The page of a comparison: results by group, and its plots."""

from collections.abc import Iterator, Sequence
from typing import Any

from experiments.pages.comparison import (
    EITHER,
    Comparison,
    Group,
    claims,
    is_not_private,
    label,
    short_names,
)
from experiments.pages.figures import COLOURS, LinePlot, Series
from experiments.pages.page import Page, Section, Table
from experiments.pages.wording import Estimate, bound, estimate, number, text_of, unit_of
from experiments.run_files.directory import METRICS, PRIVACY, SUMMARY
from experiments.run_files.reader import Run

MOST_LINES = len(COLOURS)
SAME = 0.01  # values closer than this share are one: a calibration ends close to its target, not on it
EPOCHS = ("population.epochs",)
KEEP = "compression.keep_probability"
# What accuracy is drawn against: (words, key of the summary, the settings that it follows from: the first of these in which
# the groups differ). Groups that differ in anything else are other lines.
MEASURES = (
    ("epsilon spent", "epsilon", (EITHER, EPOCHS)),
    (
        "values that a client sends in a round",
        "uplink_bytes_per_client",
        ((KEEP, "compression.value_type", "compression.rotation"),),
    ),
    ("keep probability", "keep_probability", ((KEEP,),)),
)
Lines = dict[str, list[tuple[float, Estimate]]]  # accuracy by what it is drawn against, of each line


def comparison_page(compared: Comparison) -> Page:
    """Return the page of a comparison."""
    groups = compared.groups
    words = (
        "Values sent: by each client of a cohort in a round, without the envelope. Bytes to an accuracy: of all clients, until "
        "a scored round first reached it; a dash where not every run did."
    )
    left_out = [f"left out, {name}: {why}" for name, why in compared.left_out.items()]
    sections = [
        Section("Results", [words], left_out, results_table(compared)),
        *measured_sections(groups),
        by_round_section(groups),
    ]
    varied = ", ".join(groups[0].settings) or "nothing but the seed"
    lead = (
        f"{len(compared.runs)} runs in {len(groups)} groups; they differ in {varied}. {claim(compared.runs)}"
    )
    title = f"fedmf comparison {compared.directory.resolve().name}"
    return Page(title, lead, sections, tuple(warnings(compared)))


def warnings(compared: Comparison) -> Iterator[str]:
    """Yield what must be read before anything else."""
    runs = compared.runs
    if exposed := sum(map(is_not_private, runs)):
        yield f"{exposed} of {len(runs)} runs are NOT private (no noise, or reproducible secrets)."
    if len(runs) > 1:
        yield (
            "Each run's epsilon covers that run alone; runs on the same clients compose, and choosing "
            "settings by their figures is not covered."
        )
    for group in compared.groups:
        if len(group.seeds) < len(group.runs):
            yield (
                f"{label(group.settings)}: {len(group.runs)} runs of {len(group.seeds)} seeds. Runs of one seed differ in their "
                "noise alone: the standard error is not one over seeds."
            )


def claim(runs: Sequence[Run]) -> str:
    """Return for whom the epsilons of `runs` hold, and where the rest is."""
    delta, unit, adjacency = (" or ".join(values) for values in claims(runs).values())
    return (
        f"Epsilon holds at delta = {delta}, for {unit}, under {text_of('adjacency', adjacency)} adjacency; what it covers and "
        f"what not is in each run's {PRIVACY}."
    )


def results_table(compared: Comparison) -> Table:
    """Return one row for each group."""
    metrics = [name for name in compared.metrics if name != "loss"]
    to_reach = f"bytes to {text_of('accuracy', compared.target)}"
    names = short_names(compared.groups[0].settings).values()
    rows, words = [], set()
    for group in compared.groups:
        words |= {place for place, value in enumerate(group.settings.values()) if isinstance(value, str)}
        settings = [text_of(key, value) for key, value in group.settings.items()]
        means = {name: group.mean(name) for name in ("compression_ratio", "uplink_bytes_per_client")}
        means["bytes"] = group.bytes_to_reach(compared.target)
        sizes = [text_of(name, mean and mean.mean) for name, mean in means.items()]
        counts = map(str, (len(group.seeds), len(group.runs)))
        scores = (_metric(name, group) for name in metrics)
        rows.append([*settings, *counts, *scores, _epsilon(group.runs), *sizes])
    header = [*names, "seeds", "runs", *metrics, "epsilon spent", "compression", "values sent", to_reach]
    return Table(header, rows, sorted({*range(len(header))} - words))


def _epsilon(runs: Sequence[Run]) -> str:
    """Return the largest epsilon that one of the runs spent."""
    spent: list[Any] = [run.summary.get("epsilon") for run in runs]
    return "not private" if None in spent else bound(max(spent))


def _metric(name: str, group: Group) -> str:
    """Return a metric with its standard error and, where not all runs have a value of it, how many do."""
    value, count = group.metric(name)
    text = number(None) if value is None else str(value)
    if value is not None and unit_of(name) == "%":
        error = "" if value.error is None else f" ± {100 * value.error:.1f}"
        text = f"{100 * value.mean:.1f}{error} %"
    return text if count in (0, len(group.runs)) else f"{text} ({count} of {len(group.runs)} runs)"


def measured_sections(groups: Sequence[Group]) -> Iterator[Section]:
    """Yield accuracy against epsilon, bytes and keep probability, each where the groups differ in it."""
    varied = groups[0].settings
    for words, name, causes in MEASURES:
        points = [(group, mean.mean) for group in groups if (mean := group.mean(name)) is not None]
        values = [x for _, x in points if x > 0]
        if not values or max(values) <= (1 + SAME) * min(values):
            continue
        caused = next((keys for keys in causes if any(key in varied for key in keys)), ())
        lines: Lines = {}
        for group, x in points:
            others = {key: value for key, value in group.settings.items() if key not in caused}
            if (accuracy := group.mean("accuracy")) is not None:
                lines.setdefault(label(others), []).append((x, accuracy))
        missing = len(groups) - len(points)
        left_out = f"{missing} of the groups have none and are not drawn. " if missing else ""
        log = ("x",) if max(values) >= 3 * min(values) else ()
        bytes_on = "x" if "bytes" in name else ""
        end = f"{left_out}From {SUMMARY}: accuracy, {name}."
        yield _accuracy_section(f"against {words}", lines, end, x_label=words, log=log, bytes_on=bytes_on)


def by_round_section(groups: Sequence[Group]) -> Section:
    """Return accuracy by round, in the rounds at which all runs of a group were scored."""
    lines: Lines = {}
    for group in groups:
        columns = [dict(zip(*run.column("accuracy"), strict=True)) for run in group.runs]
        for place in columns[0]:
            if (accuracy := estimate([column.get(place) for column in columns])) is not None:
                lines.setdefault(label(group.settings), []).append((place, accuracy))
    return _accuracy_section("by round", lines, f"From {METRICS}: accuracy.")


def _accuracy_section(against: str, lines: Lines, end: str, **options: Any) -> Section:
    """Return accuracy by round or against something, a line for each name, of many lines the best."""
    title, series = f"Accuracy {against}", []
    for name, points in lines.items():
        points.sort(key=lambda point: point[0])
        means = [100 * accuracy.mean for _, accuracy in points]
        errors = [100 * (accuracy.error or 0.0) for _, accuracy in points]
        series.append(Series(name, [x for x, _ in points], means, errors))
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

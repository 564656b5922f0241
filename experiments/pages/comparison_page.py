"""The page of a comparison: results by group, its plots, and every run."""

import statistics
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from experiments.pages.comparison import (
    EITHER,
    Comparison,
    Group,
    bytes_by_round,
    bytes_to_reach,
    claims,
    is_not_private,
    label,
    recorded,
    short_names,
)
from experiments.pages.fields import text_of, unit_of
from experiments.pages.figures import COLOURS, LinePlot, Series
from experiments.pages.page import SOURCE, Page, Section, Table
from experiments.pages.wording import Estimate, bound, estimate, number, percent, size, times
from experiments.run_files.directory import METRICS, PRIVACY, SUMMARY
from experiments.run_files.reader import Run

KEEP = "compression.keep_probability"
EPOCHS = ("population.epochs",)
MOST_LINES = len(COLOURS)
LONGEST_LIST = 300  # letters of the names of lines that are not drawn
SAME = 0.01  # values closer than this share are one: a calibration ends close to its target, not on it
ACCURACY = "test accuracy (%)"
Lines = dict[str, list[tuple[float, Estimate | None]]]  # accuracy by what it is drawn against, of each line


def comparison_page(compared: Comparison) -> Page:
    """Return the page of a comparison."""
    groups, runs = compared.groups, compared.runs
    words = (
        "Sent in a round: by each client of its cohort, values and envelope. Compression: of the values alone. Bytes to an "
        "accuracy: of all clients, until a scored round first reached it; a dash where not every run did."
    )
    left_out = [f"left out, {name}: {why}" for name, why in compared.left_out.items()]
    sections = [
        Section("Results", [words], left_out, results_table(compared)),
        *measured_sections(groups),
        *by_round_sections(groups),
        runs_section(compared),
    ]
    varied = ", ".join(groups[0].settings) or "nothing but the seed"
    lead = f"{len(runs)} runs in {len(groups)} groups; they differ in {varied}. {claim(runs)}"
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
            seeds = f"the seed{'s' * (len(group.seeds) > 1)} {', '.join(map(str, group.seeds))}"
            yield (
                f"{group.label}: {len(group.runs)} runs, but {seeds} only. Runs of one seed differ in their noise alone, those "
                "with run.reproducible=true in nothing, so that the standard error is not one over seeds."
            )
    for name, entries in compared.metrics.items():
        if len(entries) > 1:
            yield f"{name} is left out: it is not the same metric in all runs ({', '.join(entries)})."


def claim(runs: Sequence[Run]) -> str:
    """Return for whom the epsilons of `runs` hold, and where the rest is."""
    delta, unit, adjacency = (" or ".join(values) for values in claims(runs).values())
    return (
        f"Epsilon holds at delta = {delta}, for {unit}, under {text_of('adjacency', adjacency)} adjacency; what it covers and "
        f"what not is in each run's {PRIVACY}."
    )


def results_table(compared: Comparison) -> Table:
    """Return one row for each group."""
    metrics = ("accuracy", *compared.further_metrics)
    targets = [] if compared.target is None else [compared.target]
    rows = [
        (
            *_settings(group),
            str(len(group.seeds)),
            str(len(group.runs)),
            *(_metric(name, group) for name in metrics),
            _epsilon(group.runs),
            f"{times(_mean(group, recorded('compression_ratio')))} x",
            size(_mean(group, _sent)),
            *(size(_mean(group, partial(bytes_to_reach, target=target))) for target in targets),
        )
        for group in compared.groups
    ]
    settings = short_names(compared.groups[0].settings).values()
    header = (*settings, "seeds", "runs", *metrics, "epsilon spent", "compression", "sent in a round")
    header += tuple(f"bytes to {percent(target)}" for target in targets)
    return Table(header, rows, _numbers(compared.groups, header))


def runs_section(compared: Comparison) -> Section:
    """Return every run with the settings in which it differs, and where its numbers come from."""
    rows = [
        (
            *_settings(group),
            number(run.config.get("seed")),
            percent(run.summary.get("accuracy")),
            _epsilon([run]),
            f"{run.directory.relative_to(compared.directory)}/{SUMMARY}",
        )
        for group in compared.groups
        for run in group.runs
    ]
    settings = short_names(compared.groups[0].settings).values()
    header = (*settings, "seed", "accuracy", "epsilon spent", SOURCE)
    return Section("Runs", table=Table(header, rows, _numbers(compared.groups, header[:-1])))


def _mean(group: Group, value: Callable[[Run], float | None]) -> float | None:
    mean = group.mean(value)
    return None if mean is None else mean.mean


def _settings(group: Group) -> list[str]:
    return [text_of(key, value) for key, value in group.settings.items()]


def _numbers(groups: Sequence[Group], header: Sequence[str]) -> list[int]:
    """Return the columns that contain numbers: all but the settings that are words."""
    rows = [list(group.settings.values()) for group in groups]
    words = {place for row in rows for place, value in enumerate(row) if isinstance(value, str)}
    return [column for column in range(len(header)) if column not in words]


def _epsilon(runs: Sequence[Run]) -> str:
    """Return the largest epsilon that one of the runs spent."""
    spent = [float(value) for run in runs if (value := run.summary.get("epsilon")) is not None]
    return bound(max(spent)) if len(spent) == len(runs) else "not private"


def _metric(name: str, group: Group) -> str:
    """Return a metric with its standard error and, where not all runs have a value of it, how many do."""
    value, count = group.metric(name)
    if value is None:
        text = number(None)
    elif unit_of(name) == "%":
        error = "" if value.error is None else f" ± {100 * value.error:.1f}"
        text = f"{100 * value.mean:.1f}{error} %"
    else:
        text = str(value)
    return text if count in (0, len(group.runs)) else f"{text} ({count} of {len(group.runs)} runs)"


def _sent(run: Run) -> float | None:
    """Return the bytes that a client of a cohort sends in a round: values and envelope."""
    values, envelope = (run.summary.get(f"{name}_bytes_per_client") for name in ("uplink", "envelope"))
    return None if values is None or envelope is None else values + envelope


def _sent_in_all_epochs(run: Run) -> float | None:
    """Return the bytes that a client sends which takes part in every epoch."""
    sent, epochs = _sent(run), run.summary.get("epochs")
    return None if sent is None or epochs is None else epochs * sent


@dataclass(frozen=True)
class Measure:
    """What accuracy is drawn against: `value` is a run's, and follows from the first of `causes` in which the groups differ.

    Groups that differ in anything else are other lines: where compression is varied, runs of other epochs are another
    line; where it is not, epochs are what varies the bytes.
    """

    words: str
    causes: tuple[tuple[str, ...], ...]
    value: Callable[[Run], float | None]
    source: str
    note: str = ""


MEASURES = (
    Measure("epsilon spent", (EITHER, EPOCHS), recorded("epsilon"), "epsilon"),
    Measure(
        "bytes sent by a client",
        ((KEEP, "compression.value_type", "compression.rotation"), EPOCHS),
        _sent_in_all_epochs,
        "epochs, uplink_bytes_per_client, envelope_bytes_per_client",
        "Bytes are those of a client that takes part in every epoch, envelopes included; one that is asked less often sends "
        "less. ",
    ),
    Measure("keep probability", ((KEEP,),), recorded("keep_probability"), "keep_probability"),
)  # fmt: skip


def measured_sections(groups: Sequence[Group]) -> Iterator[Section]:
    """Yield accuracy against epsilon, bytes and keep probability, each where the groups differ in it."""
    for measure in MEASURES:
        points = [(group, mean.mean) for group in groups if (mean := group.mean(measure.value)) is not None]
        values = [x for _, x in points if x > 0]
        if not values or max(values) <= (1 + SAME) * min(values):
            continue
        varied = groups[0].settings
        causes = next((keys for keys in measure.causes if any(key in varied for key in keys)), ())
        lines: Lines = {}
        for group, x in points:
            others = {key: value for key, value in group.settings.items() if key not in causes}
            alone = list(others) == ["mechanism.name"]  # a mechanism needs no words
            name = str(others["mechanism.name"]) if alone else label(others)
            lines.setdefault(name, []).append((x, group.mean(recorded("accuracy"))))
        missing = len(groups) - len(points)
        left_out = f"{missing} of the groups have none and are not drawn. " if missing else ""
        yield _accuracy_section(
            measure.words,
            lines,
            f"{measure.note}{left_out}From {SUMMARY}: accuracy, {measure.source}.",
            marked=True,
            log=max(values) >= 3 * min(values),
            bytes_on="x" if measure.note else "",
        )


def by_round_sections(groups: Sequence[Group]) -> list[Section]:
    """Return accuracy by round and against all bytes sent so far, in the rounds at which all runs of a group were scored."""
    rounds: Lines = {}
    sent: Lines = {}
    for group in groups:
        columns = [dict(zip(*run.column("accuracy"), strict=True)) for run in group.runs]
        bytes_sent = [bytes_by_round(run) for run in group.runs]
        for place in columns[0]:
            accuracy = estimate([column.get(place) for column in columns])
            so_far = statistics.fmean(column.get(place, 0.0) for column in bytes_sent)
            rounds.setdefault(group.label, []).append((place, accuracy))
            sent.setdefault(group.label, []).append((so_far, accuracy))
    end = f"Envelopes included. From {METRICS}: uplink_bytes, accuracy."
    return [
        _accuracy_section("round", rounds, f"From {METRICS}: accuracy."),
        _accuracy_section("bytes sent by all clients", sent, end, bytes_on="x", log=True),
    ]


def _accuracy_section(against: str, lines: Lines, end: str, **options: Any) -> Section:
    """Return accuracy against something, a line for each name, of many lines the best."""
    title = f"Accuracy {'by' if against == 'round' else 'against'} {against}"
    series = []
    for name, points in lines.items():
        known = sorted(
            (x, accuracy.mean, accuracy.error or 0.0) for x, accuracy in points if accuracy is not None
        )
        if known:
            xs, means, errors = zip(*known, strict=True)
            series.append(Series(name, xs, [100 * mean for mean in means], [100 * error for error in errors]))
    if not series:
        return Section(title, [f"No {METRICS} contains a round with a value of accuracy."])
    best = sorted(series, key=lambda line: -max(line.y))
    drawn, others = [line for line in series if line in best[:MOST_LINES]], best[MOST_LINES:]
    lines_shown = f"{len(series)} lines" if len(series) > 1 else "one line"
    if others:
        names = textwrap.shorten("; ".join(line.label for line in others), LONGEST_LIST, placeholder=" …")
        lines_shown = f"{MOST_LINES} of {len(series)} lines, those that get highest; not drawn: {names}"
    caption = f"{title}, mean over seeds, bands one standard error; {lines_shown}. {end}"
    plot = LinePlot(title.lower().replace(" ", "_"), caption, drawn, ACCURACY, against, **options)
    return Section(title, plot=plot)

"""The page of a comparison: results by group, accuracy by keep probability and by round, bytes to an accuracy."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from experiments.compare.groups import (
    KEEP,
    Group,
    bytes_to_reach,
    claims,
    further_metrics,
    is_not_private,
    label,
    short_names,
    unclear_metrics,
)
from experiments.pages.estimate import Estimate, estimate
from experiments.pages.figures import COLOURS, Series, bar_plot, line_plot
from experiments.pages.metrics_section import SHARES
from experiments.pages.page import SOURCE, Page, Plot, Section, Table
from experiments.pages.wording import number, percent, size
from experiments.run_files.directory import CONFIG, METRICS, PRIVACY, SUMMARY
from experiments.run_files.reader import Run

MOST_LINES = len(COLOURS)


def page(directory: Path, groups: Sequence[Group], left_out: Mapping[str, str], target: float | None) -> Page:
    """Return the page of a comparison."""
    runs = [run for group in groups for run in group.runs]
    varied = ", ".join(groups[0].settings) or "nothing but the seed"
    sections = [
        Section(
            "Results",
            points=[f"left out, {name}: {why}" for name, why in left_out.items()],
            table=results_table(groups),
        ),
        *keep_probability_section(groups),
        accuracy_section(groups),
        *bytes_section(groups, target),
        runs_section(directory, runs),
    ]
    return Page(
        f"fedmf comparison {directory.resolve().name}",
        f"{len(runs)} runs in {len(groups)} groups; they differ in {varied}. {claim(runs)}",
        sections,
        tuple(warnings(groups)),
    )


def warnings(groups: Sequence[Group]) -> Iterator[str]:
    """Yield what must be read before anything else."""
    runs = [run for group in groups for run in group.runs]
    exposed = sum(is_not_private(run) for run in runs)
    if exposed:
        yield f"{exposed} of {len(runs)} runs are NOT private (no noise, or reproducible secrets)."
    if len(runs) > 1:
        yield (
            "Each run's epsilon covers that run alone; runs on the same clients compose, and choosing "
            "settings by their figures is not covered."
        )
    for group in groups:
        if len(group.seeds) < len(group.runs):
            yield (
                f"{group.label}: {len(group.runs)} runs, but {_seeds(group.seeds)} only. Runs of one seed differ in their "
                "noise alone, those with run.reproducible=true in nothing, so that the standard error is not one over "
                "seeds."
            )
    for name, entries in unclear_metrics(groups).items():
        yield f"{name} is left out: it is not the same metric in all runs ({', '.join(entries)})."


def claim(runs: Sequence[Run]) -> str:
    """Return for whom the epsilons of `runs` hold, and where the rest stands."""
    said = {name: " or ".join(values) for name, values in claims(runs).items()}
    return (
        f"Epsilon holds at delta = {said['delta']}, for {said['unit_of_privacy']}, under "
        f"{said['adjacency']} adjacency; what it covers and what not stands in each run's {PRIVACY}."
    )


def results_table(groups: Sequence[Group]) -> Table:
    """Return one row for each group."""
    header = [
        *short_names(groups[0].settings).values(),
        "seeds",
        "accuracy",
        *further_metrics(groups),
        "epsilon spent",
        "compression",
        "a client sends",
    ]
    rows = [
        (
            *(number(value) for value in group.settings.values()),
            _count(group),
            *(_metric(name, group) for name in ("accuracy", *further_metrics(groups))),
            str(group.estimate("epsilon") or "not private"),
            f"{group.estimate('compression_ratio') or '–'} x",
            _bytes(group.estimate("uplink_bytes_per_client")),
        )
        for group in groups
    ]
    return Table(header, rows, numbers=tuple(range(len(header))))


def keep_probability_section(groups: Sequence[Group]) -> Iterator[Section]:
    """Yield accuracy against keep probability, if varied, one line for each of the other settings."""
    lines: dict[str, list[tuple[float, Estimate]]] = {}
    for group in groups:
        accuracy = group.estimate("accuracy")
        if KEEP in group.settings and accuracy is not None:
            others = {key: value for key, value in group.settings.items() if key != KEEP}
            lines.setdefault(label(others), []).append((group.settings[KEEP], accuracy))
    if not lines:
        return
    series = [_accuracy_series(name, points) for name, points in list(lines.items())[:MOST_LINES]]
    svg = line_plot(
        "keep", series, x_label="keep probability", y_label="test accuracy (%)", markers=True, log_x=True
    )
    caption = (
        f"Accuracy at the end against keep probability, mean over seeds, bars one standard error; "
        f"{_shown(len(lines))}. From {SUMMARY}: accuracy; {CONFIG}: {KEEP}."
    )
    yield Section("Accuracy against keep probability", figure=Plot("keep", svg, caption))


def accuracy_section(groups: Sequence[Group]) -> Section:
    """Return accuracy by round, one line for each group, the best ones where there are many."""
    scored = [group for group in groups if group.estimate("accuracy") is not None]
    best = sorted(scored, key=lambda group: -(group.estimate("accuracy") or Estimate(0, None)).mean)[
        :MOST_LINES
    ]
    series = [line for group in best if (line := accuracy_by_round(group)).x]
    if not series:
        return Section("Accuracy by round", [f"No {METRICS} holds a round at which the model was scored."])
    svg = line_plot("rounds", series, x_label="round", y_label="test accuracy (%)")
    caption = (
        f"Accuracy by round, mean over seeds; {_shown(len(scored))}, the best first. From {METRICS}: "
        "accuracy."
    )
    return Section("Accuracy by round", figure=Plot("rounds", svg, caption))


def accuracy_by_round(group: Group) -> Series:
    """Return the mean accuracy over the runs of a group, in the rounds at which all of them were scored."""
    columns = [dict(zip(*run.column("accuracy"), strict=True)) for run in group.runs]
    rounds = sorted(set.intersection(*(set(column) for column in columns)))
    means = [100 * statistics.fmean(column[number] for column in columns) for number in rounds]
    return Series(group.label, rounds, means)


def bytes_section(groups: Sequence[Group], target: float | None) -> Iterator[Section]:
    """Yield the bytes that all clients send until the accuracy is reached."""
    if target is None:
        return
    reached = [(group, estimate([bytes_to_reach(run, target) for run in group.runs])) for group in groups]
    bars = [
        (group.label, value.mean / 1e6, value.error and value.error / 1e6)
        for group, value in reached
        if value
    ]
    missing = [f"{group.label}: not reached by every seed" for group, value in reached if not value]
    title = f"Bytes to reach {percent(target)}"
    if not bars:
        yield Section(title, ["No group reaches it with every seed."])
        return
    caption = (
        f"Sent by all clients, envelopes included, until a scored round first reached {percent(target)}; "
        f"mean over seeds, bars one standard error. From {METRICS}: uplink_bytes, accuracy."
    )
    svg = bar_plot("target", bars, x_label="sent by clients (MB)")
    yield Section(title, points=missing, figure=Plot("target", svg, caption))


def runs_section(directory: Path, runs: Sequence[Run]) -> Section:
    """Return where every number comes from."""
    rows = [
        (
            str(run.directory.relative_to(directory)),
            number(run.config.get("seed")),
            percent(run.summary.get("accuracy")),
            f"{run.directory.relative_to(directory)}/{SUMMARY}",
        )
        for run in runs
    ]
    return Section("Runs", table=Table(("run", "seed", "accuracy", SOURCE), rows, numbers=(1, 2)))


def _accuracy_series(name: str, points: Sequence[tuple[float, Estimate]]) -> Series:
    """Return accuracies (%) with errors, in order of the keep probability."""
    ordered = sorted(points, key=lambda point: point[0])
    errors = [100 * (accuracy.error or 0.0) for _, accuracy in ordered]
    return Series(
        name, [keep for keep, _ in ordered], [100 * accuracy.mean for _, accuracy in ordered], errors
    )


def _shown(count: int) -> str:
    """Return how many lines a plot shows of how many there are."""
    if count > MOST_LINES:
        return f"{MOST_LINES} of {count} lines"
    return f"{count} lines" if count > 1 else "one line"


def _percent(value: Estimate | None) -> str:
    """Return an accuracy as a percentage with its standard error."""
    if value is None:
        return "–"
    return (
        percent(value.mean) if value.error is None else f"{100 * value.mean:.1f} ± {100 * value.error:.1f} %"
    )


def _metric(name: str, group: Group) -> str:
    """Return a metric with its standard error and, where not all runs have a value of it, how many do."""
    value, count = group.metric(name)
    text = _percent(value) if value is None or name in SHARES else str(value)
    return text if count in (0, len(group.runs)) else f"{text} ({count} of {len(group.runs)} runs)"


def _count(group: Group) -> str:
    """Return how many seeds a group has, and how many runs where these are more."""
    seeds, runs = len(group.seeds), len(group.runs)
    return str(seeds) if seeds == runs else f"{seeds} ({runs} runs)"


def _seeds(seeds: Sequence[object]) -> str:
    """Return seeds in words."""
    return f"the seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"


def _bytes(value: Estimate | None) -> str:
    """Return a mean number of bytes in a unit that people read, a dash where there is none."""
    return "–" if value is None else size(value.mean)

"""The page of a comparison: results by group, its plots, and every run."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from experiments.compare.groups import (
    Group,
    claims,
    further_metrics,
    is_not_private,
    short_names,
    unclear_metrics,
)
from experiments.compare.plots import accuracy_section, bytes_section, measured_sections
from experiments.pages.by_round import SHARES
from experiments.pages.estimate import Estimate
from experiments.pages.page import SOURCE, Page, Section, Table
from experiments.pages.wording import bound, figure, number, percent, size, times
from experiments.run_files.directory import PRIVACY, SUMMARY
from experiments.run_files.reader import Run


def page(directory: Path, groups: Sequence[Group], left_out: Mapping[str, str], target: float | None) -> Page:
    """Return the page of a comparison."""
    runs = [run for group in groups for run in group.runs]
    varied = ", ".join(groups[0].settings) or "nothing but the seed"
    sections = [
        Section(
            "Results",
            [
                "Sent in a round: by each client of its cohort, values and envelope. Compression: of the values alone."
            ],
            points=[f"left out, {name}: {why}" for name, why in left_out.items()],
            table=results_table(groups),
        ),
        *measured_sections(groups),
        accuracy_section(groups),
        *bytes_section(groups, target),
        runs_section(directory, groups),
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
        f"{said['adjacency'].replace('_', '-')} adjacency; what it covers and what not stands in each run's {PRIVACY}."
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
        "sent in a round",
    ]
    rows = [
        (
            *(figure(key, value) for key, value in group.settings.items()),
            _count(group),
            *(_metric(name, group) for name in ("accuracy", *further_metrics(groups))),
            group.epsilon(),
            f"{_ratio(group)} x",
            size(sent_in_a_round(group)),
        )
        for group in groups
    ]
    words = _words(groups)
    return Table(header, rows, numbers=tuple(column for column in range(len(header)) if column not in words))


def runs_section(directory: Path, groups: Sequence[Group]) -> Section:
    """Return every run with the settings in which it differs, and where its numbers come from."""
    names = list(short_names(groups[0].settings).values())
    rows = [
        (
            str(run.directory.relative_to(directory)),
            *(figure(key, value) for key, value in group.settings.items()),
            number(run.config.get("seed")),
            percent(run.summary.get("accuracy")),
            bound(run.summary["epsilon"]) if run.summary.get("epsilon") is not None else "not private",
            f"{run.directory.relative_to(directory)}/{SUMMARY}",
        )
        for group in groups
        for run in group.runs
    ]
    header = ("run", *names, "seed", "accuracy", "epsilon spent", SOURCE)
    words = _words(groups)
    numbers = tuple(column for column in range(1, len(header) - 1) if column - 1 not in words)
    return Section("Runs", table=Table(header, rows, numbers=numbers))


def _words(groups: Sequence[Group]) -> set[int]:
    """Return the places of the settings that hold words and not numbers."""
    columns = zip(*(group.settings.values() for group in groups), strict=True)
    return {place for place, column in enumerate(columns) if any(isinstance(value, str) for value in column)}


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


def _ratio(group: Group) -> str:
    value = group.estimate("compression_ratio")
    return times(None if value is None else value.mean)


def sent_in_a_round(group: Group) -> float | None:
    """Return the bytes that a client of a cohort sends: values and envelope, a mean over the runs."""
    values, envelope = (group.estimate(f"{name}_bytes_per_client") for name in ("uplink", "envelope"))
    return None if values is None or envelope is None else values.mean + envelope.mean

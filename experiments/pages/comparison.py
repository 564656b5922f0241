"""Runs that differ in nothing but their seed are one group, a mean with its standard error; what is said of all groups, in a table."""

import math
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from pathlib import Path
from typing import Any
from urllib.parse import quote

from markupsafe import Markup

from experiments.pages.page import Table
from experiments.pages.run_page import without_folders
from experiments.pages.wording import SHORT, Estimate, bound, estimate, holds_for, number, text_of, unit_of
from experiments.run_files.directory import CONFIG, PRIVACY, REPORT, SUMMARY
from experiments.run_files.listing import as_paths, find, in_order
from experiments.run_files.reader import REPETITION, Run, read_run, without
from experiments.settings.reference import RUN, reference
from experiments.settings.values import text_of as as_given
from fedmf.checks import counted
from fedmf.errors import RunDirectoryError

CLAIMS = ("delta", "unit_of_privacy", "adjacency")
MOST_COLUMNS = 4  # of settings: further ones, and those that most runs lack, are one column, in words
FIRST = (
    "dataset.name",
    "dataset.path",
    "model.name",
    "mechanism.name",
    "privacy.epsilon",
)  # of these columns, in this order
MOST_NAMES = 3  # of the runs of a group


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seed only; `settings` are those in which groups differ, `row` is its JSON document."""

    settings: dict[str, Any]
    runs: Sequence[Run]
    row: dict[str, Any]


@dataclass(frozen=True)
class Comparison:
    """The groups of the runs below folders, why runs or metrics are `left_out`, and the `target` of their score.

    `headlines` are what runs are judged by, first that of most; a target is one of runs that are all judged by the same.
    `directory` is where the page is written; `shared` is what all runs have.
    """

    directory: Path
    groups: Sequence[Group]
    left_out: Mapping[str, str]
    target: float | None
    shared: Mapping[str, Any]
    headlines: Sequence[str]


def read_comparison(
    folders: str | Path | Sequence[str],
    target: float | None = None,
    where: Sequence[str] = (),
    sort: str | None = None,
) -> Comparison:
    """Return the finished runs below `folders`, grouped; without a target it is the highest that all reach.

    That is the largest multiple of 0.05 that every run's score reaches in some round, None where it is not above 0 or runs are
    judged by several. `where` and `sort` are those of `find` and `in_order`, None the score. Raises `RunDirectoryError` where no run is left.
    """
    places = as_paths(folders)
    runs: dict[str, Run] = {}
    left_out: dict[str, str] = {}
    for directory, values in find(folders, where).items():
        try:
            runs[values["name"]] = read_run(directory)
        except (OSError, RunDirectoryError) as error:
            is_unfinished = values["state"].startswith(("running", "interrupted"))
            left_out[values["name"]] = "unfinished" if is_unfinished else f"unreadable: {error}"
    if not runs:
        meant = f" with {', '.join(where)}" if where else ""
        raise RunDirectoryError(
            f"directory is {', '.join(map(str, places))}, which has no finished run{meant}; it must be a directory with at least one {SUMMARY}."
            + "".join(f" {name} is {why}" for name, why in left_out.items())
        )
    recorded = dict.fromkeys(chain.from_iterable(run.further_metrics.items() for run in runs.values()))
    entries = Counter(name for name, _ in recorded)
    left_out |= {name: "not the same metric in all runs" for name in entries if entries[name] > 1}
    headlines = [name for name, _ in Counter(run.headline for run in runs.values()).most_common()]
    if target is None and len(headlines) == 1:
        reached = min(max((0.0, *run.column(run.headline)[1])) for run in runs.values())
        target = math.floor(20 * reached + 1e-9) / 20 or None
    settings = {name: without(run.config, REPETITION) for name, run in runs.items()}
    keys = dict.fromkeys(chain.from_iterable(settings.values()))
    differing = [key for key in keys if len({repr(own.get(key)) for own in settings.values()}) > 1]
    members: dict[str, dict[str, Run]] = defaultdict(dict)
    for name, own in settings.items():
        members[repr([own.get(key) for key in differing])][name] = runs[name]
    metrics = [*headlines, "loss", *(name for name in entries if entries[name] == 1)]
    groups = [_group(differing, alike, metrics, target) for alike in members.values()]
    rows = [
        {
            "group": group,
            **group.row,
            **{key.removesuffix(".name"): own for key, own in group.settings.items()},
        }
        for group in groups
    ]
    groups = [row["group"] for row in in_order(rows, sort or headlines[0])]
    shared = _shared(list(runs.values()), differing)
    # Never into a run's own folder.
    directory = Path("comparison") if places[1:] or (places[0] / CONFIG).exists() else places[0]
    return Comparison(directory, groups, left_out, target, shared, headlines)


def _shared(runs: Sequence[Run], differing: Sequence[str]) -> dict[str, Any]:
    """Return what all runs have: choices, settings that are not the defaults, and how many clients and rounds there were."""
    settings = without(without_folders(runs[0].config), (*REPETITION, *differing))
    sizes = {name: [run.summary.get(name) for run in runs] for name in ("clients", "rounds")}
    same = {name: values[0] for name, values in sizes.items() if values.count(values[0]) == len(runs)}
    return _chosen({key: settings[key] for key in FIRST if key in settings} | settings, runs[0]) | same


def _chosen(settings: Mapping[str, Any], run: Run) -> dict[str, Any]:
    """Return those of `settings` that are choices of a group, or not the defaults of the choices that `run` has: null of what it has not."""
    usual = {
        item.key: item.default
        for item in reference(RUN).settings
        if item.is_of((run.config.get(item.group) or {}).get("name"))
    }
    return {key: value for key, value in settings.items() if usual.get(key, "null") != as_given(value)}


def notes(compared: Comparison) -> list[str]:
    return [f"left out, {name}: {why}" for name, why in compared.left_out.items()]


def _group(
    keys: Sequence[str], members: Mapping[str, Run], metrics: Sequence[str], target: float | None
) -> Group:
    """Return a group with its values, means with standard errors; NAME_runs is how many runs have a value of a metric."""
    runs = list(members.values())
    own = without(runs[0].config, REPETITION)
    settings = {key: own.get(key) for key in keys}
    row = {
        **settings,
        "names": list(members),
        "seeds": list({repr(run.config.get("seed")): run.config.get("seed") for run in runs}.values()),
        "runs": len(runs),
        "private": not any(map(is_not_private, runs)),
    }
    for name in CLAIMS:
        values = [run.privacy.get(name, run.summary.get(name)) for run in runs]
        row[name] = " | ".join(sorted({bound(one) if name == "delta" else number(one) for one in values}))
    for name in metrics:
        recorded = [
            run.summary.get(name) for run in runs if name in {run.headline, "loss", *run.further_metrics}
        ]
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
    least = math.inf if target is None else target
    sent = zip(accumulate(float(line["uplink_bytes"]) for line in run.rounds), run.rounds, strict=True)
    return next((so_far for so_far, line in sent if (line.get(run.headline) or 0.0) >= least), None)


def is_not_private(run: Run) -> bool:
    """Return whether a run protects no client: no finite epsilon, or secrets that derive from its seed."""
    return run.summary.get("epsilon") is None or bool((run.config.get("run") or {}).get("reproducible"))


def label(settings: Mapping[str, Any]) -> str:
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
        f"{title_of(group)}: {len(group.runs)} runs of {counted(len(group.row['seeds']), 'seed')}. Runs of one seed differ in "
        "their noise alone: the standard error is not one over seeds."
        for group in groups
        if len(group.row["seeds"]) < len(group.runs)
    )


def in_common(compared: Comparison) -> str:
    """Return what all runs have, and figures that are the same for all groups, in one sentence."""
    same = [f"{name} {cell}" for name, cell in _figures(compared)[0].items()]
    return f"All runs: {', '.join([label(compared.shared), *same])}."


def results_table(compared: Comparison, with_links: bool = False) -> Table:
    """Return one row for each group: its runs and results, the settings in which groups differ, and figures that do.

    `with_links`: the names of the runs are HTML, links to their pages as seen from the folder of the comparison.
    """
    groups, own = compared.groups, own_columns(compared.groups)
    metrics = [name for name in groups[0].row if f"{name}_runs" in groups[0].row if name != "loss"]
    names, others = short_names(own), [without(group.settings, tuple(own)) for group in groups]
    columns = {
        "run": [_names(group, compared.directory if with_links else None) for group in groups],
        **{
            SHORT[name] if name in compared.headlines else name: [
                _metric(name, group.row) for group in groups
            ]
            for name in metrics
        },
        "epsilon spent": [largest_epsilon(group.runs) for group in groups],
        **{names[key]: [text_of(key, group.settings[key]) for group in groups] for key in own},
    }
    if any(others):
        chosen = [_chosen(one, group.runs[0]) for one, group in zip(others, groups, strict=True)]
        columns["other settings"] = [label(one) if one else number(None) for one in chosen]
    columns |= _figures(compared)[1]
    words = [names[key] for key in own if any(isinstance(group.settings[key], str) for group in groups)]
    numbers = [place for place, name in enumerate(columns) if name not in ("run", "other settings", *words)]
    return Table(list(columns), list(zip(*columns.values(), strict=True)), numbers)


def own_columns(groups: Sequence[Group]) -> list[str]:
    """Return the settings that have a column of their own: the first of those that most groups have, data and model before all."""
    counts = {key: sum(group.settings[key] is not None for group in groups) for key in groups[0].settings}
    common = [key for key, count in counts.items() if 2 * count >= len(groups)]
    return sorted(common, key=lambda key: FIRST.index(key) if key in FIRST else len(FIRST))[:MOST_COLUMNS]


def title_of(group: Group, settings: Mapping[str, Any] | None = None) -> str:
    """Return what a group differs by in words, of many `settings` those that are no defaults; without any, the names of its runs."""
    if len(group.settings if settings is None else settings) <= MOST_COLUMNS:
        return label(group.settings if settings is None else settings)
    return str(_names(group)) if settings is None else label(_chosen(settings, group.runs[0]))


def _names(group: Group, seen_from: Path | None = None) -> str:
    """Return the names of a group's first runs, those below one folder without it after the first, and how many there are more.

    As links in HTML to their pages, where a folder is given that these are `seen_from`.
    """
    first, *others = map(Path, group.row["names"][:MOST_NAMES])
    names = [str(first), *(one.name if one.parent == first.parent else str(one) for one in others)]
    if seen_from is not None:
        pages = [quote(os.path.relpath(run.directory / REPORT, seen_from)) for run in group.runs]
        link = Markup('<a href="{}">{}</a>')
        names = [link.format(page, name) for page, name in zip(pages, names, strict=False)]
    more = [f"{len(group.row['names']) - MOST_NAMES} more"] if len(group.row["names"]) > MOST_NAMES else []
    return Markup(", ").join([*names, *more]) if seen_from else ", ".join([*names, *more])


def _figures(compared: Comparison) -> tuple[dict[str, str], dict[str, list[str]]]:
    """Return how many seeds and runs groups have and what was sent: what is the same for several groups, and columns of the rest."""
    rows = [group.row for group in compared.groups]
    sent = {"compression": "compression_ratio", "values sent": "uplink_bytes_per_client"}
    columns = {
        "seeds": [number(len(row["seeds"])) for row in rows],
        "runs": [number(row["runs"]) for row in rows],
        **{words: [text_of(name, row[name]) for row in rows] for words, name in sent.items()},
    }
    if compared.target is not None:
        goal = " or ".join(f"{SHORT[name]} {text_of(name, compared.target)}" for name in compared.headlines)
        columns[f"bytes to {goal}"] = [text_of("bytes", row["bytes_to_target"]) for row in rows]
    same = {name: cells[0] for name, cells in columns.items() if len(set(cells)) < len(cells[:2])}
    return same, {name: cells for name, cells in columns.items() if name not in same}


_LATEX = str.maketrans(
    {sign: f"\\{sign}" for sign in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"<": r"\textless{}", ">": r"\textgreater{}", "±": r"$\pm$", "²": "$^2$", "–": "--", "…": r"\ldots{}"}
)


def latex(table: Table) -> str:
    """Return a table as LaTeX, for the package booktabs."""
    places = "".join("r" if place in table.numbers else "l" for place in range(len(table.header)))
    header, *rows = (
        " & ".join(cell.translate(_LATEX) for cell in cells) + r" \\" for cells in (table.header, *table.rows)
    )
    begin, end = rf"\begin{{tabular}}{{{places}}}", r"\end{tabular}"
    return "\n".join([begin, r"\toprule", header, r"\midrule", *rows, r"\bottomrule", end, ""])


def largest_epsilon(runs: Sequence[Run]) -> str:
    """Return the largest epsilon that one of `runs` spent, in words where one of them has none."""
    spent = [run.summary.get("epsilon") for run in runs]
    return "not private" if None in spent else bound(max(filter(None, spent), default=0.0))


def _metric(name: str, row: dict[str, Any]) -> str:
    mean, error, count = (row[f"{name}{end}"] for end in ("", "_standard_error", "_runs"))
    if mean is None:
        return number(None)
    text = Estimate(mean, error).in_percent() if unit_of(name) == "%" else str(Estimate(mean, error))
    return text if count == row["runs"] else f"{text} ({count} of {row['runs']} runs)"

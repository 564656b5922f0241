"""Compare the runs below folders: `python -m experiments.compare directory=DIR where="model=cnn,epsilon<4" sort=accuracy`.

Runs that differ only in their seed form a group, shown as a mean with its standard error. Prints a table (or JSON) and writes
DIR/compare.csv, DIR/compare.tex and DIR/compare.html, a page with plots. `plots=FOLDER` also writes every plot as PNG, SVG and PDF,
one paper column wide. `directory=[A,B]` compares the runs of several folders. Its files, and those of a DIR that is itself a run,
go into the folder comparison. Unfinished and unreadable runs are named and not counted.

The choice of metrics does not split groups, because it does not change the training. The mean of a metric is over the runs that
recorded it; if these are not all, their number is shown.
"""

import csv
import io
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from client.metrics import HEADLINES
from experiments.cli import command, output
from experiments.pages.comparison import (
    Comparison,
    Group,
    claims,
    in_common,
    latex,
    notes,
    own_columns,
    read_comparison,
    results_table,
    title_of,
    warnings,
)
from experiments.pages.figures import COLOURS, LinePlot, Series
from experiments.pages.page import PLOTS, Page, Section, write_page
from experiments.pages.wording import SHORT, Estimate, estimate, unit_of
from experiments.run_files.directory import METRICS, SUMMARY
from experiments.run_files.listing import SORT, WHERE, as_lists
from experiments.run_files.reader import without
from experiments.settings.values import PRINTED, Output
from fedmf.checks import check_open_unit, counted
from fedmf.setting import REQUIRED, setting
from server.files import write_output

KEEP = "compression.keep_probability"
# What scores are drawn against: (words, key of the summary, the settings that it follows from: the first of these in which
# the groups differ). Groups that differ in anything else are other lines.
MEASURES = (
    ("epsilon spent", "epsilon", (("privacy.epsilon", "privacy.noise_multiplier"), ("population.epochs",))),
    (
        "values sent by a client",
        "uplink_bytes_per_client",
        ((KEEP, "compression.value_type", "compression.rotation"),),
    ),
    ("keep probability", "keep_probability", ((KEEP,),)),
)
WIDTHS = {"run": 12, "other settings": 24}  # least widths of columns of words, in letters


@dataclass(frozen=True)
class CompareSettings:
    directory: str | tuple[str, ...] = setting(
        REQUIRED, "folder, or a list of folders, whose runs are compared"
    )
    where: tuple[str, ...] = setting((), WHERE)
    sort: str | None = setting(None, f"{SORT}; null: the main metric of the task, such as accuracy")
    target_accuracy: float | None = setting(
        None,
        "accuracy in (0, 1), for regression r2, for which the bytes to reach it are counted; null: the largest multiple of 5 % "
        "that every group reaches",
    )
    plots: str | None = setting(None, PLOTS)
    output: Output = setting("text", PRINTED)


def compare(settings: CompareSettings) -> None:
    """Print the comparison of the runs below `settings.directory`, and write it as a page and tables."""
    if settings.target_accuracy is not None:
        check_open_unit("target_accuracy", settings.target_accuracy)
    compared = read_comparison(settings.directory, settings.target_accuracy, settings.where, settings.sort)
    rows = [group.row for group in compared.groups]
    document = {
        "runs": sum(row["runs"] for row in rows),
        "left_out": compared.left_out,
        "target_accuracy": compared.target,
        "shared": compared.shared,
        "groups": rows,
    }
    page, table, tex = (compared.directory / f"compare.{form}" for form in ("html", "csv", "tex"))
    plots = write_page(comparison_page(compared), page, settings.plots)
    lines = io.StringIO(newline="")
    writer = csv.DictWriter(lines, list(rows[0]))
    writer.writeheader()
    writer.writerows(row | {key: " ".join(map(str, row[key])) for key in ("names", "seeds")} for row in rows)
    write_output(table, lines.getvalue().encode())
    write_output(tex, latex(results_table(compared)).encode())
    output.show(settings.output, document, lambda: _print(compared, [page, table, tex, *plots]))


def _print(compared: Comparison, files: Sequence[Path]) -> None:
    table = results_table(compared)
    columns = {
        name: {"min_width": WIDTHS.get(name, 11), "overflow": "fold"}
        if place not in table.numbers
        else {
            **output.NUMBER,
            "overflow": "fold",
            "min_width": max(map(len, name.split())),
            "no_wrap": name in map(SHORT.get, HEADLINES),
        }
        for place, name in enumerate(table.header)
    }
    output.console().print(in_common(compared), markup=False)
    output.print_table("Results: mean ± standard error over seeds", columns, table.rows)
    lines = [*claims(compared.groups), *warnings(compared.groups), *notes(compared), *map(str, files)]
    output.console().print("\n".join(lines), markup=False)


def comparison_page(compared: Comparison) -> Page:
    groups = compared.groups
    words = (
        "Values sent: by each client of a cohort in a round, without the envelope. Bytes to a score: of all clients, until "
        "a scored round first reached it; a dash where not every run did."
    )
    varied, own = groups[0].settings, own_columns(groups)
    rest = f" and {counted(len(varied) - len(own), 'other setting')}" if len(varied) > len(own) else ""
    differ = f"they differ in {', '.join(own)}{rest}" if varied else "they differ in nothing but the seed"
    return Page(
        f"fedmf comparison of {counted(sum(len(group.runs) for group in groups), 'run')}",
        " ".join([f"{counted(len(groups), 'group')}; {differ}.", *claims(groups)]),
        [
            Section(
                "Results",
                [in_common(compared), words],
                notes(compared),
                results_table(compared, with_links=True),
            ),
            *(
                section
                for name in compared.headlines
                for section in (*measured_sections(groups, name), by_round_section(groups, name))
            ),
        ],
        tuple(warnings(groups)),
    )


def measured_sections(groups: Sequence[Group], score: str) -> Iterator[Section]:
    """Yield a score against epsilon, bytes and keep probability, each where the groups differ in it."""
    for words, name, causes in MEASURES:
        means = [(group, estimate([run.summary.get(name) for run in group.runs])) for group in groups]
        points = [
            (group, mean.mean)
            for group, mean in means
            if mean and mean.mean > 0 and group.row[score] is not None
        ]
        values = [x for _, x in points]
        # Values within one percent are one: a calibration ends close to its target, not on it.
        if max(values, default=0) <= 1.01 * min(values, default=0):
            continue
        caused = next((keys for keys in causes if any(key in groups[0].settings for key in keys)), ())
        members: dict[str, list[tuple[Group, float]]] = defaultdict(list)
        for group, x in points:
            members[title_of(group, without(group.settings, caused))].append((group, x))
        lines = {
            # a line of one group is the group's, by the name that it has in every plot
            title if len(alike) > 1 else title_of(alike[0][0]): {
                x: Estimate(group.row[score], group.row[f"{score}_standard_error"]) for group, x in alike
            }
            for title, alike in members.items()
        }
        yield _score_section(
            score,
            f"against {words}",
            lines,
            f"{len(points)} of {len(groups)} groups have both values. From {SUMMARY}: {score}, {name}.",
            x_label=words,
            log=max(values) >= 3 * min(values),
            bytes_on="x" if "bytes" in name else "",
        )


def by_round_section(groups: Sequence[Group], score: str) -> Section:
    """Return a score by round, in the rounds at which all runs of a group were scored."""
    lines: dict[str, Mapping[float, Estimate]] = {}
    for group in groups:
        columns = [dict(zip(*run.column(score), strict=True)) for run in group.runs]
        means = {place: estimate([column.get(place) for column in columns]) for place in columns[0]}
        lines[title_of(group)] = {place: mean for place, mean in means.items() if mean}
    return _score_section(score, "by round", lines, f"From {METRICS}: {score}.")


def _score_section(
    score: str, against: str, lines: Mapping[str, Mapping[float, Estimate]], end: str, **options: Any
) -> Section:
    """Return a score by round or against something, a line of points for each name, of many lines the best."""
    name, scale = SHORT[score], 100 if unit_of(score) == "%" else 1
    title = f"{name[0].upper()}{name[1:]} {against}"
    series = [
        Series(
            name,
            sorted(points),
            [scale * points[x].mean for x in sorted(points)],
            [scale * (points[x].error or 0.0) for x in sorted(points)],
        )
        for name, points in lines.items()
        if points
    ]
    if not series:
        return Section(title, [f"No {METRICS} contains a round with a value of {score}."])
    best = sorted(series, key=lambda line: -max(line.y))[: len(COLOURS)]
    drawn = [line for line in series if line in best]
    shown = "" if drawn == series else f"{len(drawn)} of {len(series)} lines, those that get highest. "
    caption = f"{title}, mean and standard error over seeds. {shown}{end}"
    axis = f"test {name}{' (%)' if scale == 100 else ''}"
    plot = LinePlot(f"{score} {against}".replace(" ", "_"), caption, drawn, axis, **options)
    return Section(title, plot=plot)


if __name__ == "__main__":
    command.run(compare, "compare", CompareSettings, __doc__, as_lists(sys.argv[1:]))

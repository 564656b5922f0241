"""What an audit prints and leaves: tables for people, audit.json for programs, audit.png to look at."""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from experiments.audit import table
from experiments.audit.matrix import COLUMNS, Code, Line
from experiments.audit.row import Row, Verdict
from experiments.audit.trials import Scores, Trial
from experiments.run_files.directory import RunDirectory

KINDS = (
    "coupled",
    "residual",
    "mask",
)  # tests that are many: people are shown the one that says most of each kind
HEADS = {
    "coupled sensitivity": "sens",
    "coupled own round": "round",
    "coupled whole vector": "whole",
    "coupled journal": "jrnl",
    "residual variance": "var",
    "residual mean": "mean",
    "residual correlation": "corr",
    "residual directions": "dirs",
    "residual repeated rows": "rep",
    "residual magnitudes": "magn",
    "residual tails": "tail",
    "residual grid": "grid",
    "residual recovery": "fin",
    "mask share": "mshr",
    "mask sizes": "msiz",
    "mask correlation": "mcor",
    "mask decoding": "mdec",
    "many runs, learned": "learn",
    "many runs, mu-GDP": "mu",
    "many runs, fitted noise": "fit",
    "many runs, exact epsilon": "exact",
    "many runs": "many",
    "one run, f-DP": "f-DP",
    "one run": "one",
}
PLAYED_BY = (
    (("coupled",), "coupled runs", "pairs"),
    (("residual", "mask"), "residuals", "residual_runs"),
    (("many runs",), "attacks on many runs", "runs"),
    (("one run",), "attacks on one run", "canaries"),
)  # how the columns of a test begin, what the tests are, and the key that says how many are played
SENTENCES = {
    Code.nothing_found: "Nothing was found.",
    Code.refuted: "REFUTED: the product gives away more than it states, or the audit missed what it must catch.",
    Code.inconclusive: "Inconclusive: a test that should decide had too few runs or pairs, or was not played.",
}


@dataclass(frozen=True)
class Report:
    """All rows of an audit, the trials it draws, a line for each sabotage, and the exit code."""

    rows: list[Row]
    drawn: list[tuple[Trial, Scores | None]]
    lines: list[Line]
    code: Code
    seconds: float
    directory: Path

    def write(self) -> dict[str, Any]:
        """Write audit.png and audit.json, and return the latter."""
        figure = self.directory / "audit.png"
        table.draw(self.drawn, self.lines, figure)
        document = self.as_document(figure)
        RunDirectory(self.directory).write_json("audit.json", document)
        return document

    def as_document(self, figure: Path) -> dict[str, Any]:
        """Return the outcome as JSON-ready values."""
        return {
            "passed": self.code is Code.nothing_found,
            "exit_code": int(self.code),
            "conclusion": self.conclusion,
            "claim": table.CLAIM,
            "seconds": round(self.seconds, 1),
            "figure": str(figure),
            "trials": [table.trial_as_document(trial) for trial, _ in self.drawn],
            "rows": [row.as_document() for row in self.rows],
            "matrix": [line.as_document() for line in self.lines],
        }

    @property
    def conclusion(self) -> str:
        """What it comes to, in words; where nothing was decided, with the reasons, and the keys that left tests out."""
        undecided = [row for row in self.rows if row.verdict is Verdict.inconclusive and not row.is_control]
        attacked = sorted({f"{row.pipeline} ({row.test})" for row in undecided if row.is_attack})
        reasons = sorted({row.note for row in undecided if not row.is_attack})
        if attacked:
            reasons.insert(0, f"too few runs or guesses for the attacks on {', '.join(attacked)}")
        reasons += left_out(self.lines)
        reasons += [
            f"too few runs or pairs for {', '.join(line.unsure)} to find {line.sabotage.name}"
            for line in self.lines
            if line.unsure
        ]
        if self.code is not Code.inconclusive or not reasons or "" in reasons:
            return SENTENCES[self.code]
        return f"Inconclusive, nothing else was found: {'; '.join(reasons)}."

    def print_text(self) -> None:
        """Print the headline, all other rows, the matrix, and what it comes to."""
        console = Console(width=None if sys.stdout.isatty() else 200, highlight=False)
        honest = [row for row in self.rows if not row.is_control]
        if self.drawn:
            console.print(table.table([trial for trial, _ in self.drawn]))
        headline = {trial.method for trial, _ in self.drawn}
        console.print(_rows([row for row in honest if row.test not in headline]))
        if self.lines:
            console.print(_matrix(self.lines))
            _print_misses(console, self.lines)
        console.print(self.conclusion)
        console.print(f"{len(honest)} rows on the product as shipped, {self.seconds:.0f} s. {levels(honest)}")
        console.print("What an audit does not show: docs/audit.md.")
        console.print(f"Plot and numbers: {self.directory}/audit.png, {self.directory}/audit.json")


def left_out(lines: Sequence[Line]) -> list[str]:
    """Return in words which tests were not played that must catch a sabotage, with the key that plays them.

    Of each sabotage one kind of tests: the others are not asked where it is played.
    """
    names: dict[str, list[str]] = {}
    for line in lines:
        for kinds, tests, key in PLAYED_BY:
            if any(column.startswith(kinds) for column in line.untried):
                names.setdefault(f"{tests} were left out ({key})", []).append(line.sabotage.name)
                break
    return [f"{what}, which must catch {', '.join(found)}" for what, found in names.items()]


def _rows(rows: Sequence[Row]) -> Table:
    """Return the rows on the product; of tests that are many the one of each kind and pipeline that came nearest."""
    shown = Table(title="The product as shipped, row by row (all of them: audit.json)")
    for name in ("pipeline", "test", "observed", "limit"):
        shown.add_column(name)
    shown.add_column("level", justify="right")
    shown.add_column("verdict")
    shown.add_column("note", overflow="fold")
    for row, count, level in condensed(rows):
        name = row.test if count == 1 else f"{row.test} (nearest of {count})"
        style = {Verdict.refuted: "bold red", Verdict.inconclusive: "yellow"}.get(row.verdict)
        said = "" if level is None else f"{level:.2g}"
        shown.add_row(
            row.pipeline, name, row.observed, row.limit, said, row.verdict.value, row.note, style=style
        )
    return shown


def condensed(rows: Sequence[Row]) -> list[tuple[Row, int, float | None]]:
    """Return (row, how many it stands for, their level together): of each pipeline and kind the nearest to refuting."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for place, row in enumerate(rows):
        kind = next((kind for kind in KINDS if row.test.startswith(kind)), f"{row.test} {place}")
        groups.setdefault((row.pipeline, kind), []).append(row)
    order = (Verdict.refuted, Verdict.inconclusive, Verdict.nothing_found)
    found = []
    for group in groups.values():
        levels = [row.false_alarm for row in group if row.false_alarm is not None]
        first = min(group, key=lambda row: (order.index(row.verdict), -(row.nearness or 0.0)))
        found.append((first, len(group), math.fsum(levels) if levels else None))
    return found


def levels(rows: Sequence[Row]) -> str:
    """Return in words how probably the rows refute an honest pipeline by chance."""
    attacks, others = (
        [row.false_alarm for row in rows if row.false_alarm is not None and row.is_attack is kind]
        for kind in (True, False)
    )
    rest = f"all other rows together with {math.fsum(others):.1g}"
    if not attacks:
        return f"By chance an honest pipeline is refuted by all rows together with probability {math.fsum(others):.1g}."
    return (
        f"By chance an honest pipeline is refuted by any of {len(attacks)} attacks with probability at most "
        f"{math.fsum(attacks):.2g}, by {rest}."
    )


def _matrix(lines: Sequence[Line]) -> Table:
    """Return the sabotages against the tests that were played of any of them."""
    played = [column for column in COLUMNS if any(column in line.cells for line in lines)]
    shown = Table(
        title="What is broken, and which test catches it (x caught, . not, ? too few runs or pairs, blank not played, "
        "MISS not caught by a test that must)"
    )
    shown.add_column("sabotage")
    for column in played:
        shown.add_column(HEADS[column], justify="center")
    for line in lines:
        is_wrong = bool(line.missed or line.unsure or line.untried)
        cells = [_cell(line, column) for column in played]
        shown.add_row(line.sabotage.name, *cells, style="bold red" if is_wrong else None)
    return shown


def _cell(line: Line, column: str) -> str:
    if column in line.missed:
        return "MISS"
    marks = {Verdict.refuted: "x", Verdict.nothing_found: ".", Verdict.inconclusive: "?"}
    return marks[line.cells[column]] if column in line.cells else ""


def _print_misses(console: Console, lines: Sequence[Line]) -> None:
    """Say which sabotages nothing caught, and why."""
    for line in lines:
        for words, columns in (
            ("not caught by", line.missed),
            ("too few runs or pairs for", line.unsure),
            ("not tried by", line.untried),
        ):
            if columns:
                console.print(f"{line.sabotage.name}: {words} {', '.join(columns)}")
        if line.cells and not line.caught and line.sabotage.why_not:
            console.print(f"{line.sabotage.name}: no test catches it. {line.sabotage.why_not}")

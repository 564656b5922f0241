"""Which sabotage each test caught, what that says of the audit, and the exit code that tells."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

from experiments.audit.row import Row, Verdict
from experiments.audit.sabotage import Sabotage

SURE = 0.999  # a row that finds a sabotage less probably than this, at the size played, is not asked for it
LIKELY = 0.5  # attacks on the product that would rather miss halved noise, or a shared mask, than find it decide nothing


class Code(IntEnum):
    """The command's exit codes."""

    nothing_found = 0
    refuted = 1  # an honest pipeline, or the audit itself: a sabotage that must be caught was not
    inconclusive = 3  # too few runs or pairs for a test that should decide


# The columns of the matrix, each for the tests whose names begin so; the first that fits.
COLUMNS = (
    "coupled sensitivity",
    "coupled own round",
    "coupled whole vector",
    "coupled journal",
    "residual variance",
    "residual mean",
    "residual correlation",
    "residual directions",
    "residual repeated rows",
    "residual magnitudes",
    "residual tails",
    "residual grid",
    "residual recovery",
    "mask share",
    "mask sizes",
    "mask correlation",
    "mask decoding",
    "many runs, learned",
    "many runs, mu-GDP",
    "many runs, fitted noise",
    "many runs, exact epsilon",
    "many runs",
    "one run, f-DP",
    "one run",
)


def column_of(test: str) -> str:
    """Return the column that a test belongs to.

    >>> column_of("residual variance by round")
    'residual variance'
    """
    return next((column for column in COLUMNS if test.startswith(column)), test)


@dataclass(frozen=True)
class Line:
    """What the tests say of one sabotage: {column: verdict}, of several rows the one that says most."""

    sabotage: Sabotage
    cells: dict[str, Verdict]

    @property
    def missed(self) -> list[str]:
        """The columns that must have caught it and were sure that there is nothing."""
        return [
            column for column in self.sabotage.caught_by if self.cells.get(column) is Verdict.nothing_found
        ]

    @property
    def unsure(self) -> list[str]:
        """The columns that must have caught it and had too few runs or pairs."""
        return [
            column for column in self.sabotage.caught_by if self.cells.get(column) is Verdict.inconclusive
        ]

    @property
    def untried(self) -> list[str]:
        """The columns that must have caught it and were not played."""
        return [column for column in self.sabotage.caught_by if column not in self.cells]

    @property
    def caught(self) -> list[str]:
        """The columns that caught it."""
        return [column for column, verdict in self.cells.items() if verdict is Verdict.refuted]

    def as_document(self) -> dict[str, Any]:
        """Return the line as JSON-ready values."""
        return {
            "sabotage": self.sabotage.name,
            "sentence": self.sabotage.sentence,
            "must_be_caught_by": list(self.sabotage.caught_by),
            "caught_by": self.caught,
            "missed_by": self.missed,
            "too_few_runs_for": self.unsure,
            "not_tried_by": self.untried,
            "why_not": self.sabotage.why_not,
            "cells": {column: verdict.value for column, verdict in self.cells.items()},
        }


def lines(rows: Sequence[Row], sabotages: Sequence[Sabotage]) -> list[Line]:
    """Return a line for each sabotage.

    A test that caught nothing and was smaller than in a default audit in one of its scenes has not decided anything.
    Where some of the tests that must catch it were left out, or were played at a size at which their power is below
    `SURE`, the others are asked alone; where all were, those that caught it all the same; were there none, the line is
    unsure, or untried.
    """
    found = []
    for sabotage in sabotages:
        of_it = [row for row in rows if row.sabotage == sabotage.name]
        cells = _cells(of_it)
        able = {column_of(row.test) for row in of_it if row.power is None or row.power >= SURE}
        asked = tuple(column for column in sabotage.caught_by if column in able) or tuple(
            column for column in sabotage.caught_by if cells.get(column) is Verdict.refuted
        )
        found.append(Line(replace(sabotage, caught_by=asked or sabotage.caught_by), cells))
    return found


def _cells(rows: Sequence[Row]) -> dict[str, Verdict]:
    order = (Verdict.refuted, Verdict.nothing_found, Verdict.inconclusive)
    found: dict[str, Verdict] = {}
    for row in rows:
        column = column_of(row.test)
        found[column] = min(row.verdict, found.get(column, row.verdict), key=order.index)
    for row in rows:
        if row.is_small and found[column_of(row.test)] is not Verdict.refuted:
            found[column_of(row.test)] = Verdict.inconclusive
    return {column: found[column] for column in sorted(found, key=_place)}


def _place(column: str) -> int:
    return COLUMNS.index(column) if column in COLUMNS else len(COLUMNS)


def exit_code(rows: Sequence[Row], found: Sequence[Line]) -> Code:
    """Return what the command exits with; see `Code`."""
    honest = [row.verdict for row in rows if not row.is_control]
    if Verdict.refuted in honest or any(line.missed for line in found):
        return Code.refuted
    if Verdict.inconclusive in honest or any(line.unsure or line.untried for line in found):
        return Code.inconclusive
    return Code.nothing_found

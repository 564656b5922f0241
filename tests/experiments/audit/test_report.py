"""What people are shown of hundreds of rows."""

from dataclasses import replace

import pytest

from experiments.audit.jobs import with_power
from experiments.audit.matrix import Code, lines
from experiments.audit.report import Report, _cell, condensed, levels
from experiments.audit.row import AS_SHIPPED, Row, Verdict
from experiments.audit.sabotage import Sabotage

QUIET, SEEN, FEW = Verdict.nothing_found, Verdict.refuted, Verdict.inconclusive


def row(test, verdict=QUIET, nearness=None, level=1e-7, pipeline="a scene"):
    return Row(pipeline, AS_SHIPPED, test, "", "", level, verdict, "", nearness)


def test_of_many_rows_the_nearest_to_refuting_is_shown():
    rows = [
        row("residual variance", nearness=0.1),
        row("residual mean", nearness=0.7),
        row("residual tails", nearness=0.3),
        row("residual tails", nearness=0.9, pipeline="another"),
        row("many runs", level=0.05),
        row("many runs", level=0.05),
    ]
    shown = condensed(rows)
    assert [(one.test, count) for one, count, _ in shown] == [
        ("residual mean", 3),
        ("residual tails", 1),
        ("many runs", 1),
        ("many runs", 1),
    ]
    assert shown[0][2] == pytest.approx(3e-7)


@pytest.mark.parametrize("verdict", [SEEN, FEW])
def test_what_was_found_is_shown_before_what_was_near(verdict):
    rows = [row("residual mean", nearness=0.99), row("residual tails", verdict, nearness=0.0)]
    assert condensed(rows)[0][0].verdict is verdict


def test_levels_are_said_apart_for_attacks_and_for_the_rest():
    rows = [
        row("many runs, learned", level=0.025),
        row("one run", level=0.025),
        row("residual mean", level=1e-6),
        row("x", level=None),
    ]
    assert levels(rows) == (
        "By chance an honest pipeline is refuted by any of 2 attacks with probability at most 0.05, by all other rows "
        "together with 1e-06."
    )
    assert (
        levels(rows[2:])
        == "By chance an honest pipeline is refuted by all rows together with probability 1e-06."
    )


def test_the_matrix_marks_what_is_missed():
    sabotage = Sabotage("broken", "", caught_by=("residual mean", "residual tails"))
    rows = [
        Row("p", "broken", test, "", "", 0.0, verdict)
        for test, verdict in (("residual mean", QUIET), ("residual tails", FEW), ("residual variance", SEEN))
    ]
    (line,) = lines(rows, [sabotage])
    columns = ("residual mean", "residual tails", "residual variance", "many runs")
    assert [_cell(line, column) for column in columns] == ["MISS", "?", "x", ""]


def test_people_are_told_apart_what_was_missed_what_was_too_small_and_what_was_not_tried(capsys, tmp_path):
    sabotages = [Sabotage(name, "", caught_by=("mask correlation", "many runs")) for name in ("one", "two")]
    rows = [
        Row("p", "one", "many runs", "", "", 0.0, QUIET),
        with_power(Row("p", "two", "many runs", "", "", 0.0, QUIET), 0.9),
    ]
    report = Report(rows, [], lines(rows, sabotages), Code.refuted, 1.0, tmp_path)
    report.print_text()
    said = capsys.readouterr().out
    assert "one: not caught by many runs\n" in said
    assert "two: too few runs or pairs for many runs\ntwo: not tried by mask correlation\n" in said
    assert "no test catches it" not in said


def test_what_is_inconclusive_is_said_for_the_reason_that_its_rows_give(tmp_path):
    why = "its secrets are erased"
    undecided = replace(row("recorded noise"), verdict=Verdict.inconclusive, note=why)
    assert why in Report([undecided], [], [], Code.inconclusive, 1.0, tmp_path).conclusion
    assert "too few runs" not in Report([undecided], [], [], Code.inconclusive, 1.0, tmp_path).conclusion
    no_reason = replace(undecided, note="")
    assert "too few runs" in Report([no_reason], [], [], Code.inconclusive, 1.0, tmp_path).conclusion

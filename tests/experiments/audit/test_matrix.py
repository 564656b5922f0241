"""The matrix of sabotages and what the exit code says of it."""

import math

import pytest

from experiments.audit import residual
from experiments.audit.jobs import residual_jobs, run_jobs, with_power
from experiments.audit.matrix import Code, column_of, exit_code, lines
from experiments.audit.row import AS_SHIPPED, Row, Verdict
from experiments.audit.sabotage import NONE, Sabotage
from fedmf.audit.residual import FALSE_ALARM

QUIET, SEEN, FEW = Verdict.nothing_found, Verdict.refuted, Verdict.inconclusive
BROKEN = Sabotage("broken", "it is", caught_by=("coupled sensitivity",))
UNSEEN = Sabotage("unseen", "nobody can tell", why_not="it has the stated law")


def row(verdict, sabotage=AS_SHIPPED, test="coupled sensitivity, L2"):
    return Row("a pipeline", sabotage, test, "", "", 0.0, verdict)


def code(rows, *sabotages):
    return exit_code(rows, lines(rows, sabotages))


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [((QUIET, QUIET), 0), ((QUIET, SEEN), 1), ((QUIET, FEW), 3), ((FEW, SEEN), 1)],
)
def test_the_exit_code_says_what_was_found_of_the_product(verdicts, expected):
    assert code([row(verdict) for verdict in verdicts]) == expected


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [((QUIET, SEEN), 0), ((QUIET, QUIET), 1), ((QUIET, FEW), 1), ((FEW,), 3), ((), 3)],
)
def test_the_exit_code_says_whether_a_sabotage_was_caught_by_the_test_that_must(verdicts, expected):
    rows = [row(QUIET)] + [row(verdict, "broken") for verdict in verdicts]
    assert code(rows, BROKEN) == expected


def test_a_sabotage_caught_by_another_test_only_is_missed():
    rows = [row(QUIET), row(QUIET, "broken"), row(SEEN, "broken", "many runs")]
    (line,) = lines(rows, [BROKEN])
    assert (line.caught, line.missed) == (["many runs"], ["coupled sensitivity"])
    assert code(rows, BROKEN) == Code.refuted


def test_a_row_whose_power_is_too_small_at_its_size_is_not_asked_unless_it_is_alone():
    asked = Sabotage("broken", "it is", caught_by=("residual variance", "one run"))
    weak = with_power(row(QUIET, "broken", "one run"), 0.6)
    able = with_power(row(QUIET, "broken", "one run"), 1.0)
    seen = row(SEEN, "broken", "residual variance")
    assert (weak.verdict, able.verdict) == (FEW, QUIET)
    assert "probability 0.6" in weak.note
    assert code([row(QUIET), seen, weak], asked) == Code.nothing_found
    assert code([row(QUIET), seen, able], asked) == Code.refuted
    assert code([row(QUIET), weak], asked) == Code.inconclusive


def test_what_was_left_out_is_not_tried_and_no_miss_whatever_a_smaller_row_says():
    """As with pairs=0 residual_runs=0: only the attack is played, at a size at which it is not asked for the sabotage."""
    asked = Sabotage("broken", "it is", caught_by=("mask correlation", "many runs"))
    for verdict, left, expected in ((QUIET, (["many runs"], ["mask correlation"]), 3), (SEEN, ([], []), 0)):
        rows = [row(QUIET), with_power(row(verdict, "broken", "many runs"), 0.9)]
        (line,) = lines(rows, [asked])
        assert line.missed == []
        assert (line.unsure, line.untried) == left
        assert (line.as_document()["too_few_runs_for"], line.as_document()["not_tried_by"]) == left
        assert code(rows, asked) == expected


def test_a_sabotage_that_no_test_can_see_fails_nothing():
    rows = [row(QUIET), row(QUIET, "unseen")]
    assert code(rows, UNSEEN) == 0
    assert lines(rows, [UNSEEN])[0].as_document()["why_not"] == "it has the stated law"


def test_a_line_holds_the_verdict_that_says_most_and_columns_in_order():
    rows = [
        row(SEEN, "broken", "residual variance by round"),
        row(FEW, "broken", "residual variance"),
        row(FEW, "broken", "coupled sensitivity, L2"),
        row(QUIET, "broken", "coupled sensitivity, L-infinity"),
    ]
    (line,) = lines(rows, [BROKEN])
    assert list(line.cells.items()) == [("coupled sensitivity", QUIET), ("residual variance", SEEN)]
    assert column_of("a test of one's own") == "a test of one's own"


def test_all_residual_and_mask_rows_of_an_audit_share_one_false_alarm():
    scenes = [*residual.SCENES[:2], residual.SCENES[4]]
    jobs = residual_jobs(NONE, scenes, runs=2, seed=0)
    rows = [row for found in run_jobs(jobs, 1) for row in found.rows]
    assert {row.pipeline for row in rows} == {scene.name for scene in scenes}
    assert math.fsum(row.false_alarm for row in rows) <= FALSE_ALARM * (1 + 1e-9)
    assert math.fsum(row.false_alarm for row in rows) >= 0.9 * FALSE_ALARM

"""Ways to the optimum: all certify the same loss, by their own count, and none is stopped in the dark."""

from itertools import pairwise

import numpy as np
import pytest

from experiments.reproduce import denisov_solvers, solvers
from experiments.reproduce.denisov_solvers import OURS, SOLVERS
from fedmf.mechanisms import of_run, prefix_sum
from fedmf.mechanisms.optimum.fixed_point import certified_run

pytestmark = pytest.mark.long

TINY = ((16, 32), (), (16,), (64,), 20.0)
OPTIMUM_OF_SIXTEEN = 6.75761472804246  # computed apart
RUN = of_run(16, denisov_solvers.EPOCHS, denisov_solvers.BETA)


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(denisov_solvers.SIZES, "tiny", TINY)
        return denisov_solvers.reproduce(tmp_path_factory.mktemp("tiny"), "tiny")


def rows_of(result, problem, rounds):
    return {row[2]: row for row in result.tables[0].rows if row[:2] == (problem, rounds)}


def test_every_solver_certifies_the_optimum_computed_apart(result):
    rows = rows_of(result, "prefix sums", 16)
    assert list(rows) == [*SOLVERS, OURS]
    for *_, gap, root_loss, ratio in rows.values():
        assert 0 <= gap <= 1e-6
        assert OPTIMUM_OF_SIXTEEN * (1 - 1e-9) <= root_loss <= OPTIMUM_OF_SIXTEEN * (1 + 1e-6)
        assert ratio > 0
    assert result.worst_relative_error < 1e-6


def test_the_epoch_of_a_run_has_the_optimum_of_the_run(result):
    rows = rows_of(result, "whole run", 16)
    for solver in ("fixed point, dense", OURS):
        assert rows[solver][6] == pytest.approx(certified_run(RUN)[0].upper, rel=2e-6)


def test_ours_takes_the_fewest_evaluations_and_the_diagonal_changes_no_count(result):
    rows = rows_of(result, "prefix sums", 32)
    counts = {solver: row[3] for solver, row in rows.items()}
    assert counts["fixed point, dense"] == counts["fixed point, O(T)"] > counts[OURS] > 1
    assert counts["L-BFGS, dense"] > counts[OURS]


def test_both_diagonals_are_those_of_the_matrix():
    v = np.linspace(2.0, 0.5, 16)
    for workload in (prefix_sum(16), RUN[0]):
        assert solvers.dense(workload)(v) == pytest.approx(solvers.linear(workload)(v), rel=1e-8)


def test_lbfgs_is_given_the_dual_and_its_gradient():
    diagonal, u = solvers.dense(prefix_sum(8)), np.linspace(0.5, -0.5, 8)
    value, gradient = solvers.negative_dual(diagonal, u)
    steps = 1e-5 * np.eye(8)
    numeric = [
        (solvers.negative_dual(diagonal, u + step)[0] - solvers.negative_dual(diagonal, u - step)[0]) / 2e-5
        for step in steps
    ]
    assert gradient == pytest.approx(numeric, rel=1e-6, abs=1e-8)
    v = np.exp(u)
    best = (
        v * diagonal(v)
    ).sum() ** 2 / v.sum()  # the bound of the certificate: the dual at the best length of v
    assert -value <= best * (1 + 1e-12)


def test_a_solver_that_is_out_of_time_says_how_far_it_came():
    workload = prefix_sum(128)
    start = solvers.column_norms(workload)
    points = solvers.recorded(solvers.plain, solvers.dense(workload), start, gap=1e-6, seconds=0.02)
    assert points[-1].seconds > 0.02 >= points[-2].seconds
    assert [point.evaluations for point in points] == list(range(1, len(points) + 1))
    assert all(a.gap >= b.gap for a, b in pairwise(points))
    *_, ratio = denisov_solvers.row("prefix sums", 16, "fixed point, dense", points, points)
    assert ratio is None


def test_of_what_takes_less_than_a_second_the_quickest_of_three_runs_counts():
    def timed(*seconds):
        left = iter(seconds)
        # the run that ends first is not the one whose first point came first
        return lambda: [
            solvers.Point(1, 2 - (end := next(left)), 1e-2, 1.0),
            solvers.Point(7, end, 1e-7, 1.0),
        ], left

    timing, left = timed(0.99, 0.2, 0.3, 0.1)
    assert solvers.quickest(timing)[-1].seconds == 0.2
    assert list(left) == [0.1]
    timing, left = timed(1.0, 0.2)
    assert solvers.quickest(timing)[-1].seconds == 1.0
    assert list(left) == [0.2]


def test_longer_problems_are_solved_too_and_the_files_are_of_the_size(result):
    table = result.tables[1].rows
    assert [(row[0], row[1]) for row in table] == [("prefix sums", 64), ("momentum 0.9", 64)]
    assert table[0][5] == pytest.approx(16.798851778, rel=1e-6)
    assert result.figures[0].name == "denisov_solvers_tiny.png"
    assert result.figures[0].read_bytes().startswith(b"\x89PNG")

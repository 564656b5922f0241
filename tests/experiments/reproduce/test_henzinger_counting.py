"""Continual counting: mechanisms as fitted against formulas, formulas against each other, counters against both."""

from pathlib import Path

import pytest

from experiments.reproduce import henzinger_counting
from experiments.reproduce.henzinger_counting import LIMIT, square_root_error, tree_over_square_root

TINY = (6, (4,), 4, (4,))
FAMILIES = henzinger_counting.FAMILIES
PAGE = Path(__file__).resolve().parents[3] / "docs" / "results" / "henzinger.md"
OF_SIXTEEN = (
    12.84523257866513,
    10.650717723159936,
    7.187257759140956,
    6.75761472804246,
)  # root losses computed apart


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(henzinger_counting.SIZES, "tiny", TINY)
        return henzinger_counting.reproduce(tmp_path_factory.mktemp("tiny"), "tiny")


def test_the_errors_as_fitted_are_those_of_the_formulas_and_those_computed_apart(result):
    assert result.worst_relative_error < 1e-6  # float32 tables
    sixteen = result.tables[0].rows[3]
    assert sixteen[0] == 16
    assert sixteen[1:5] == pytest.approx([loss**2 / 16 for loss in OF_SIXTEEN], rel=1e-4)
    assert sixteen[7:] == pytest.approx(
        [sixteen[1] / sixteen[3], sixteen[1] / sixteen[4], sixteen[3] / sixteen[4]]
    )


def test_the_expansion_meets_the_sum_and_goes_to_the_limit(monkeypatch):
    summed = [square_root_error(doublings) for doublings in (10, 16)]
    monkeypatch.setattr(henzinger_counting, "FORMULA_UP_TO", 3)
    assert [square_root_error(10), square_root_error(16)] == pytest.approx(summed, rel=1e-5)
    assert square_root_error(16) == pytest.approx(summed[1], rel=1e-7)  # what is left out falls as 1/n
    assert tree_over_square_root(1e7) == pytest.approx(LIMIT, rel=1e-5)


def test_the_tree_is_ten_times_worse_from_the_length_that_the_page_names():
    assert tree_over_square_root(267) < 10 <= tree_over_square_root(268)
    assert "from 2^268 rounds on" in PAGE.read_text()


def test_counters_err_by_what_is_expected_of_each_mechanism(result):
    (table,) = (part for part in result.tables if part.name == "real counters")
    assert [row[1] for row in table.rows] == list(FAMILIES)
    tree = table.rows[0][2]
    for (rounds, _, measured, error, expected, ratio), loss in zip(table.rows, OF_SIXTEEN, strict=True):
        assert rounds == 16
        assert expected == pytest.approx(loss**2 / 16, rel=1e-4)
        # Seeded: 4 seeds of 64 coordinates; errors within one tree are correlated.
        assert measured == pytest.approx(expected, rel=0.15)
        assert 0 < error < 0.15 * expected
        assert ratio == pytest.approx(tree / measured)


def test_the_whole_run_counts_best_where_noise_restarts(result):
    _, tree, root, epoch, whole, ratio = result.tables[-1].rows[0]
    assert whole < epoch < root < tree
    assert ratio == pytest.approx(tree / whole)

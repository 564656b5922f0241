"""Continual counting: mechanisms as fitted against formulas, formulas against each other, counters against both."""

import pytest

from experiments.reproduce import Means, henzinger_counting
from experiments.reproduce.henzinger_counting import LIMIT, Size, square_root_error, tree_over_square_root
from fedmf.errors import SettingError

TINY = Size(doublings=6, counted=(4,), seeds=4, runs=(4,))
FAMILIES = henzinger_counting.FAMILIES
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
        return henzinger_counting.reproduce(tmp_path_factory.mktemp("tiny"), Means(size="tiny"))


def test_the_errors_as_fitted_are_those_of_the_formulas_and_those_computed_apart(result):
    assert result.worst_relative_error < 1e-6  # float32 tables
    sixteen = result.rows[3]
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


def test_the_tree_is_ten_times_worse_from_the_length_that_the_page_names(result):
    named = henzinger_counting.ten_times()
    assert tree_over_square_root(named - 1) < 10 <= tree_over_square_root(named)
    assert f"from 2^{named} rounds on" in result.about
    assert 250 < named < 280


def test_counters_err_by_what_is_expected_of_each_mechanism(result):
    (table,) = (part for part in result.sections if part.heading == "Real counters")
    assert [row[1] for row in table.rows] == list(FAMILIES)
    tree = table.rows[0][2]
    for (rounds, _, measured, error, expected, ratio), loss in zip(table.rows, OF_SIXTEEN, strict=True):
        assert rounds == 16
        assert expected == pytest.approx(loss**2 / 16, rel=1e-4)
        # Seeded: 4 seeds of 64 coordinates; errors within one tree are correlated.
        assert measured == pytest.approx(expected, rel=0.15)
        assert 0 < error < 0.15 * expected
        assert ratio == pytest.approx(tree / measured)


def test_seeds_give_other_noise_and_each_the_same_again():
    first, again, other = (henzinger_counting.measure(8, "optimal", seed) for seed in (1, 1, 2))
    assert first == again != other


def test_the_whole_run_counts_best_where_noise_restarts(result):
    _, tree, root, epoch, whole, ratio = result.sections[-1].rows[0]
    assert whole < epoch < root < tree
    assert ratio == pytest.approx(tree / whole)


def test_a_larger_size_has_files_of_its_own_and_another_word_is_refused(result, tmp_path):
    assert result.stem == "henzinger_counting_tiny"
    assert result.figures[0].name == "henzinger_counting_tiny.png"
    assert result.figures[0].read_bytes().startswith(b"\x89PNG")
    with pytest.raises(SettingError, match="size is 'huge'; it must be one of small, laptop"):
        henzinger_counting.reproduce(tmp_path, Means(size="huge"))
    assert list(tmp_path.iterdir()) == []

"""Table 2 of Denisov et al., computed again at two of its lengths, and over a run."""

import pytest

from experiments.reproduce import denisov_table2


@pytest.fixture
def short(monkeypatch):
    """The two shortest lengths, and one with a number that no optimum can have."""
    published = {256: (74.4, 40.4, 40.4), 512: (116.5, 63.0, 62.2)}
    monkeypatch.setattr(denisov_table2, "PUBLISHED", published)
    monkeypatch.setattr(denisov_table2, "SHAPES", ((4, 4), (5, 4)))
    monkeypatch.setattr(denisov_table2, "EPOCHS", 3)


@pytest.fixture
def result(short, tmp_path):
    return denisov_table2.reproduce(tmp_path, "small")


def test_the_entries_agree_to_the_printed_digit(result):
    table = result.tables[0]
    first = dict(zip(table.columns, table.rows[0], strict=True))
    assert round(first["Honaker online"], 1) == 74.4
    assert round(first["certified to"], 1) == 40.4
    assert first["certified from"] <= first["certified to"] <= first["streamed"] * (1 + 1e-9)
    assert first["published optimum"] == "converged"
    assert result.worst_relative_error < 1e-3


def test_an_entry_outside_the_certified_interval_is_called_unconverged_and_left_out_of_the_error(result):
    assert result.tables[0].rows[1][-1] == "not converged"
    assert result.worst_relative_error < 1e-3  # 63.0 is further away


def test_the_shapes_of_the_efficient_fit_stand_beside_each_other(result):
    rounds, published, square, wider = result.tables[1].rows[0]
    assert (rounds, published) == (256, 40.4)
    assert square == pytest.approx(40.406, abs=0.01)
    first = result.tables[0].rows[0]
    assert first[-2] == square > wider > first[4]


def test_over_a_run_the_whole_run_optimum_is_best_and_above_its_bound(result):
    _, honaker, epoch, whole, bound, ratio = result.tables[2].rows[0]
    assert bound <= whole < epoch < honaker
    assert ratio == epoch / whole > 1.01
    assert whole == pytest.approx(bound, rel=1e-4)


def test_the_plot_is_drawn(result):
    assert result.figures[0].read_bytes().startswith(b"\x89PNG")

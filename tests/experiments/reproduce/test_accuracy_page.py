"""The page of accuracies: every number of it follows from the file of results."""

from dataclasses import replace

import pytest

import tiny_cells
from experiments.reproduce import accuracy_page
from experiments.reproduce.accuracy_page import Comparison, Subject, write_page
from experiments.reproduce.results import Results
from experiments.reproduce.trials import Outcome, Trial

CELLS = tuple(
    replace(cell, mechanism=name)
    for name, cells in zip(("whole run", "independent"), tiny_cells.CHAINS, strict=True)
    for cell in cells
)
SUBJECT = Subject("digits", "Two mechanisms", CELLS, runs=4)
COMPARISON = Comparison("whole run", "independent")
ACCURACIES = {
    ("whole run", 8.0): [0.91, 0.93, 0.91, 0.93],
    ("independent", 8.0): [0.90, 0.92, 0.90, 0.92],
    ("whole run", 2.0): [0.50],
    ("independent", 2.0): [0.60, 0.62, 0.60, 0.62],
}


@pytest.fixture
def results(tmp_path):
    results = Results(tmp_path / "name.jsonl")
    for (mechanism, epsilon), accuracies in ACCURACIES.items():
        for seed, accuracy in enumerate(accuracies):
            trial = Trial(SUBJECT.cell(mechanism, 0.5, epsilon), 0.1 * epsilon, seed)
            results.add(trial, Outcome(accuracy, None, 4.0 + 4.0 * (mechanism == "whole run")))
    return results


def rows(page):
    """Return the cells of the page's rows, by (table, epsilon)."""
    lines = [line for line in page.splitlines() if line.startswith("| 0.5 |")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert [row[1] for row in cells] == ["2", "8"] * 2
    return {(table, row[1]): row[2:] for table, row in zip("aarr", cells, strict=True)}


def test_the_page_shows_means_errors_the_best_and_differences_of_pairs(tmp_path, results):
    write_page(tmp_path, "name", "# Title", [SUBJECT], COMPARISON, results)
    page = (tmp_path / "name.md").read_text()
    assert page.startswith("# Title\n")
    found = rows(page)
    # standard deviation of the sample 1.1547 percent, over the root of 4 runs
    assert found["a", "8"] == ["**92.0 ± 0.6**", "91.0 ± 0.6", "+1.0 ± 0.0"]
    assert found["a", "2"] == ["50.0 (1)", "**61.0 ± 0.6**", "-10.0"]
    assert found["r", "8"] == ["0.8", "0.8"]
    assert found["r", "2"] == ["0.2", "0.2"]
    assert "mean ± standard error of 4 runs, or of as many as stand in brackets:" in page
    assert "**Unfinished: 13 of 16 runs are there.**" in page
    mean = (4 * 8.0 + 4 * 4.0 + 8.0 + 4 * 4.0) / 13
    assert f"A run took {mean:.1f} CPU seconds on average." in page


def test_the_plot_shows_every_mean_with_a_band_of_one_standard_error(tmp_path, results, monkeypatch):
    lines, bands, panels = {}, [], []
    panel = accuracy_page._panel

    def seen(axes, *arguments):
        panel(axes, *arguments)
        lines.update({line.get_label(): line.get_xydata().tolist() for line in axes.get_lines()})
        bands.extend(band.get_paths()[0].get_extents() for band in axes.collections)
        panels.append(axes)

    monkeypatch.setattr(accuracy_page, "_panel", seen)
    (figure,) = write_page(tmp_path, "name", "# Title", [SUBJECT], COMPARISON, results)
    assert figure.read_bytes().startswith(b"\x89PNG")
    (axes,) = panels
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("epsilon (no unit)", "test accuracy (%)")
    assert lines == {
        "whole run": [[2.0, pytest.approx(50.0)], [8.0, pytest.approx(92.0)]],
        "independent": [[2.0, pytest.approx(61.0)], [8.0, pytest.approx(91.0)]],
    }
    error = 100 * 0.02 / 3**0.5 / 2
    assert bands[1].ymin == pytest.approx(61.0 - error, abs=1e-3)
    assert bands[1].ymax == pytest.approx(91.0 + error, abs=1e-3)


def test_a_finished_task_is_not_called_unfinished(tmp_path, results):
    for cell in CELLS:
        for seed in range(4):
            results.add(Trial(cell, 0.1 * cell.epsilon, seed), Outcome(0.5, None, 1.0))
    write_page(tmp_path, "name", "# Title", [SUBJECT], COMPARISON, results)
    page = (tmp_path / "name.md").read_text()
    assert "Unfinished" not in page
    assert " of 4)" not in page


def test_more_runs_than_there_must_be_of_one_cell_do_not_stand_for_those_another_lacks(tmp_path, results):
    for seed in range(4, 10):
        results.add(Trial(SUBJECT.cell("whole run", 0.5, 8.0), 0.8, seed), Outcome(0.92, None, 1.0))
    write_page(tmp_path, "name", "# Title", [SUBJECT], COMPARISON, results)
    page = (tmp_path / "name.md").read_text()
    assert "mean ± standard error of 4 runs, or of as many as stand in brackets:" in page
    assert "**Unfinished: 13 of 16 runs are there.**" in page
    assert "(10 of 4)" not in page

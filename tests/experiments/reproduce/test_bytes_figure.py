"""The plot of accuracy against bytes: every point of it follows from the runs and from what a client sends."""

import pytest

import tiny_cells
from experiments.reproduce import bytes_figure
from experiments.reproduce.accuracy_page import Subject
from experiments.reproduce.results import Results
from experiments.reproduce.trials import Outcome, Trial
from fedmf.updates.wire import ENVELOPE_BYTES

KEEPS = (1.0, 0.1)
CELLS = tuple(
    cell for keep in KEEPS for name in ("optimal", "independent") for cell in tiny_cells.chain(name, keep)
)
SUBJECT = Subject("digits", "Two mechanisms", CELLS, runs=2)
ACCURACY = {
    ("optimal", 1.0): 0.9,
    ("optimal", 0.1): 0.8,
    ("independent", 1.0): 0.7,
    ("independent", 0.1): 0.6,
}


def test_each_epsilon_has_a_panel_of_means_over_bytes_with_bands(tmp_path, monkeypatch):
    results = Results(tmp_path / "a.jsonl")
    for cell in CELLS:
        for seed, off in enumerate((-0.01, 0.01)):
            accuracy = ACCURACY[cell.mechanism, cell.keep_probability] - 0.01 * (cell.epsilon == 2.0) + off
            results.add(Trial(cell, 0.3, seed), Outcome(accuracy, None, 1.0))
    panels = {}
    panel = bytes_figure._panel

    def seen(axes, subject, epsilon, *rest):
        panel(axes, subject, epsilon, *rest)
        panels[epsilon] = axes

    monkeypatch.setattr(bytes_figure, "_panel", seen)
    path = bytes_figure.draw(tmp_path / "a.png", SUBJECT, 650, results)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert set(panels) == {2.0, 8.0}
    few, all_ = 4 * 0.1 * 1024 + ENVELOPE_BYTES, 4 * 1024 + ENVELOPE_BYTES  # 650 are padded to 1024
    for epsilon, axes in panels.items():
        lines = {line.get_label(): line.get_xydata().tolist() for line in axes.get_lines()}
        lower = 1.0 * (epsilon == 2.0)
        assert lines == {
            "optimal": [
                [pytest.approx(few), pytest.approx(80 - lower)],
                [pytest.approx(all_), pytest.approx(90 - lower)],
            ],
            "independent": [
                [pytest.approx(few), pytest.approx(60 - lower)],
                [pytest.approx(all_), pytest.approx(70 - lower)],
            ],
        }
        band = axes.collections[0].get_paths()[0].get_extents()
        assert (band.ymin, band.ymax) == (pytest.approx(79 - lower), pytest.approx(91 - lower))
        assert "bytes" in axes.get_xlabel()
        assert axes.get_title() == f"epsilon {epsilon:g}"

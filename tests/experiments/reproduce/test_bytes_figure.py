"""The plot of accuracy against bytes: every point of it follows from the runs and from what a client sends."""

from dataclasses import replace

import pytest

import tiny_cells
from experiments.pages.wording import Estimate
from experiments.reproduce import bytes_figure
from experiments.reproduce.accuracy_page import Subject
from experiments.reproduce.results import Results
from experiments.reproduce.trials import Outcome, Trial
from fedmf.updates.wire import ENVELOPE_BYTES

KEEPS = (1.0, 0.1)
CELLS = tuple(
    replace(cell, mechanism=name)
    for keep in KEEPS
    for name, family in (("whole run", "optimal"), ("independent", "independent"))
    for cell in tiny_cells.chain(family, keep)
)
SUBJECT = Subject("digits", "Two mechanisms", CELLS, runs=2)
ACCURACY = {
    ("whole run", 1.0): 0.9,
    ("whole run", 0.1): 0.8,
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
            "whole run": [
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


def test_a_level_is_a_line_across_every_panel_with_its_name(tmp_path, monkeypatch):
    results = Results(tmp_path / "a.jsonl")
    for cell in CELLS:
        results.add(Trial(cell, 0.3, 0), Outcome(0.8, None, 1.0))
    seen = []
    monkeypatch.setattr(bytes_figure.Figure, "savefig", lambda figure, path, **_: seen.append(figure))
    bytes_figure.draw(tmp_path / "a.png", SUBJECT, 650, results, {"no noise": 91.0, "chance": 10.0})
    (figure,) = seen
    for axes in figure.axes:
        lines = {line.get_label(): list(line.get_ydata()) for line in axes.get_lines()}
        assert lines["no noise"] == [91.0, 91.0]
        assert lines["chance"] == [10.0, 10.0]
    assert {"no noise", "chance"} <= {text.get_text() for text in figure.legends[0].get_texts()}


def test_another_measure_is_drawn_in_place_of_the_accuracy(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(bytes_figure.Figure, "savefig", lambda figure, path, **_: seen.append(figure))
    losses = {"whole run": Estimate(4.0, 0.1), "independent": Estimate(5.0, 0.1)}
    results = Results(tmp_path / "a.jsonl")
    bytes_figure.draw(
        tmp_path / "a.png",
        SUBJECT,
        650,
        results,
        measure=lambda _, cell: losses[cell.mechanism],
        label="loss",
    )
    assert seen[0].axes[0].get_ylabel() == "loss"
    for axes in seen[0].axes:
        lines = {line.get_label(): list(line.get_ydata()) for line in axes.get_lines()}
        assert lines == {"whole run": [4.0, 4.0], "independent": [5.0, 5.0]}

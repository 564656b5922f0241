"""The plots of a comparison: drawn where a sweep varies what they show, readable, with errors over seeds."""

import matplotlib
import pytest

import written_run
from experiments.pages.comparison import MOST_LINES, by_round_section, measured_sections, read_comparison
from experiments.pages.figures import LINES, LinePlot, Series, rendered

EPSILON, SENT, KEEP = (
    f"accuracy_against_{words}"
    for words in ("epsilon_spent", "values_that_a_client_sends_in_a_round", "keep_probability")
)
TWO = ("blt", "optimal")
LONG = (
    "mechanism = my_own_package.factorizations.experimental:banded_and_tuned_for_this_federation, epsilon = "
)


def groups(directory):
    return read_comparison(directory).groups


def plots(directory, *sweep):
    """Return the plots of accuracy against what the groups of a sweep differ in, by name."""
    if sweep:
        written_run.sweep(directory, *sweep)
    return {section.plot.name: section.plot for section in measured_sections(groups(directory))}


def test_accuracy_against_epsilon_has_a_line_for_each_mechanism_with_its_error(tmp_path):
    drawn = plots(tmp_path, TWO, (2.0, 8.0, 32.0))
    assert list(drawn) == [EPSILON]  # neither bytes nor keep probability are varied
    plot = drawn[EPSILON]
    assert [line.label for line in plot.series] == ["mechanism = blt", "mechanism = optimal"]
    for place, line in enumerate(plot.series):
        assert list(line.x) == pytest.approx([2.0, 8.0, 32.0], rel=1e-3)
        assert list(line.y) == pytest.approx([100 * (0.53 + 0.1 * place + 0.01 * x) for x in (2, 8, 32)])
        assert line.error == pytest.approx([1.0] * 3)  # of 0.02 apart: half the distance
    assert (plot.x_label, plot.y_label, plot.log) == ("epsilon spent", "test accuracy (%)", True)


def test_what_else_differs_makes_its_own_lines(tmp_path):
    drawn = plots(tmp_path / "one", TWO, (8.0,), (0.1, 0.5))
    assert list(drawn) == [SENT, KEEP]
    for name, x in ((SENT, [500, 2500]), (KEEP, [0.1, 0.5])):
        assert [line.label for line in drawn[name].series] == ["mechanism = blt", "mechanism = optimal"]
        assert all(list(line.x) == pytest.approx(x) for line in drawn[name].series)
    drawn = plots(tmp_path / "two", TWO, (2.0, 8.0), (0.1, 0.5))
    assert list(drawn) == [EPSILON, SENT, KEEP]
    assert [line.label for line in drawn[EPSILON].series] == [
        f"keep probability = {keep}, mechanism = {name}" for keep in (0.1, 0.5) for name in TWO
    ]


def test_epsilons_that_differ_by_calibration_alone_are_not_varied_and_a_group_without_one_is_counted(
    tmp_path,
):
    assert plots(tmp_path / "a", ("blt", "independent")) == {}
    written_run.sweep(tmp_path / "b", ("optimal",), (2.0, 8.0))
    config = {"privacy": {"noise_multiplier": 0, "delta": 1e-4}, "mechanism": {"name": "optimal"}}
    written_run.write(tmp_path / "b" / "open", config=config, summary={"epsilon": None})
    assert "2 of 3 groups have a value." in plots(tmp_path / "b")[EPSILON].caption


def test_curves_by_round_have_the_mean_and_the_error_over_seeds(tmp_path):
    (line,) = by_round_section(groups(written_run.sweep(tmp_path))).plot.series
    assert list(line.x) == [1, 2, 3, 4, 5, 6]
    assert line.y[-1] == pytest.approx(61)
    assert line.error == pytest.approx([0, 0, 0, 0, 0, 1.0])


def test_more_lines_than_looks_are_counted_and_lines_differ_without_colour(tmp_path):
    (plot,) = plots(tmp_path, tuple(f"m{number}" for number in range(MOST_LINES + 1)), (2.0, 8.0)).values()
    # m0 is the worst, the last the best
    assert [line.label[-2:] for line in plot.series] == [f"m{number}" for number in range(1, MOST_LINES + 1)]
    assert f"{MOST_LINES} of {MOST_LINES + 1} lines, those that get highest." in plot.caption
    lines = [bars.lines[0] for bars in plot.figure().axes[0].containers]
    assert len({(line.get_marker(), line.get_linestyle()) for line in lines}) == MOST_LINES


def test_no_label_is_cut_and_equal_plots_are_equal_files_without_fonts():
    plot = LinePlot("name", "", [Series(f"{LONG}{n}", [1, 2], [3.0, 4.0]) for n in range(5)], "accuracy")
    with matplotlib.rc_context(LINES):
        figure = plot.figure()
        figure.draw_without_rendering()
    (legend,), (axes,) = figure.legends, figure.axes
    for text in legend.get_texts():
        box = text.get_window_extent()
        assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1
        assert figure.bbox.y0 <= box.y0 < box.y1 <= figure.bbox.y1
    assert axes.get_window_extent().width > 0.7 * figure.bbox.width
    for form in ("svg", "png"):
        assert rendered(plot, form) == rendered(plot, form)
    assert "<text" not in rendered(plot, "svg").decode()

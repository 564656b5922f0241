"""Plots stay readable when lines differ in many settings, in every size."""

import re

import matplotlib
import pytest
from matplotlib.collections import PolyCollection

from experiments.pages.figures import MOST_MARKERS, PAGE, LinePlot, Series, rendered, style
from experiments.pages.page import SIZES

LONG = "mechanism = independent, learning rate = 0.3, momentum = 0.9, keep probability = 0.1, epsilon = "
UNBROKEN = "my_own_package.factorizations.experimental:banded_and_tuned_for_this_federation"


def line_plot(*series, **options):
    return LinePlot("name", "caption", series, "accuracy", **options)


@pytest.mark.parametrize("size", [PAGE, *SIZES.values()])
def test_no_label_is_cut_and_the_plot_keeps_its_width(size):
    labels = [*(f"{LONG}{number}" for number in range(5)), UNBROKEN]
    with matplotlib.rc_context(style(size)):
        figure = line_plot(*(Series(label, [1, 2], [3.0, 4.0]) for label in labels)).figure(size)
        figure.draw_without_rendering()
    (legend,), (axes,) = figure.legends, figure.axes
    texts = legend.get_texts()
    assert [text.get_text().replace("\n", "") for text in texts][-1] == UNBROKEN
    for text in texts:
        box = text.get_window_extent()
        assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1
        assert figure.bbox.y0 <= box.y0 < box.y1 <= figure.bbox.y1
        assert not re.search(r"=\s*\n|\n\s*=", text.get_text())  # no setting is split from its value
    assert axes.get_window_extent().width > 0.7 * figure.bbox.width


def test_an_error_is_a_band_as_wide_as_the_standard_error_and_a_bar_for_a_lone_point():
    (axes,) = line_plot(Series("a", [1, 2], [10.0, 20.0], [1.0, 2.0])).figure().axes
    (band,) = (item for item in axes.collections if isinstance(item, PolyCollection))
    corners = {(x, y) for x, y in band.get_paths()[0].vertices.tolist()}
    assert corners == {(1.0, 9.0), (1.0, 11.0), (2.0, 18.0), (2.0, 22.0)}
    (lone,) = line_plot(Series("a", [1], [10.0], [1.0])).figure().axes
    assert not [item for item in lone.collections if isinstance(item, PolyCollection)]
    (bar,) = lone.containers[0].lines[2][0].get_segments()
    assert bar.tolist() == [[1.0, 9.0], [1.0, 11.0]]


def test_every_scored_point_is_marked_until_there_are_too_many():
    for count in (20, MOST_MARKERS, MOST_MARKERS + 1):
        (axes,) = line_plot(Series("a", range(count), [1.0] * count), marked=True).figure().axes
        line = axes.lines[0]
        assert (line.get_marker(), line.get_markevery()) == ("o", None) or count > MOST_MARKERS
        assert line.get_marker() == "None" or count <= MOST_MARKERS


@pytest.mark.parametrize("marked", [True, False])
def test_lines_differ_without_colour(marked):
    series = [Series(str(number), range(50), [number] * 50) for number in range(7)]
    lines = line_plot(*series, marked=marked).figure().axes[0].lines
    assert len({(line.get_marker(), line.get_linestyle()) for line in lines}) == 7
    assert all(line.get_marker() != "None" for line in lines)


@pytest.mark.parametrize(("bytes_on", "names"), [("", ["2", "8", "32"]), ("x", ["2.0 B", "8.0 B", "32.0 B"])])
def test_a_logarithmic_axis_names_each_of_a_few_values_once(bytes_on, names):
    series = [Series("a", [2.0, 7.9996, 32.0], [1, 2, 3]), Series("b", [2.0, 8.0, 32.0], [1, 2, 3])]
    (axes,) = line_plot(*series, log=True, x_label="epsilon", bytes_on=bytes_on).figure().axes
    assert [label.get_text() for label in axes.get_xticklabels()] == names


def test_an_svg_has_outlines_for_letters_and_equal_plots_are_equal_files():
    plot = line_plot(Series("a line", [1, 2], [3.0, 4.0]), Series("b", [1, 2], [3.0, 5.0]))
    for form in ("svg", "png"):
        assert rendered(plot, form) == rendered(plot, form)
    svg = rendered(plot, "svg").decode()
    assert "<text" not in svg
    assert "#DejaVuSans-" in svg

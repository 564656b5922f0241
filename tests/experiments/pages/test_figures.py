"""Plots stay readable when lines differ in many settings: seen by where their text stands."""

import re

import pytest
from matplotlib.collections import PolyCollection

from experiments.pages.figures import INCH, MOST_MARKERS, PAGE, BarPlot, LinePlot, Scale, Series, in_lines
from experiments.pages.page import as_svg
from experiments.pages.template import TEMPLATE

LONG = "mechanism = independent, learning rate = 0.3, momentum = 0.9, keep probability = 0.1, epsilon = "
WIDTH = INCH * PAGE.width  # of the plot in the units of the SVG
LETTER = 0.6 * PAGE.small  # of a label


def text_of(svg: str) -> list[tuple[float, str]]:
    """Return where each piece of level text starts (or has its middle), and the text."""
    found = re.findall(r'<text[^>]*?(?: x="|translate\()([-\d.]+)[^>]*>([^<]*)<', svg)
    return [(float(x), text) for x, text in found]


def test_long_labels_stand_below_the_plot_and_leave_it_its_width() -> None:
    series = [Series(f"{LONG}{number}", [1, 2], [3.0, 4.0]) for number in range(5)]
    text = text_of(as_svg(LinePlot(series, "round", "accuracy"), "long"))
    ticks = {label: x for x, label in text if label in ("1", "2")}
    assert ticks["2"] - ticks["1"] > 0.7 * WIDTH
    labels = [(x, label) for x, label in text if "=" in label]
    assert len(labels) >= 10
    assert all(x > 0 and x + LETTER * len(label) < WIDTH for x, label in labels)


def test_a_bar_stands_below_its_label_and_no_label_is_cut() -> None:
    bars = [(f"{LONG}{number}", 1.0 + number, None) for number in range(3)]
    labels = [(x, label) for x, label in text_of(as_svg(BarPlot(bars, "MB"), "bars")) if "=" in label]
    assert len(labels) >= 6
    assert all(x > 0 and x + LETTER * len(label) < WIDTH for x, label in labels)


@pytest.mark.parametrize("label", [LONG, "seed = 1"])
def test_lines_of_a_label_are_short_and_part_no_setting_from_its_value(label: str) -> None:
    lines = in_lines(label + "8", PAGE.letters).split("\n")
    assert all(len(line) <= PAGE.letters for line in lines)
    assert not any(line.rstrip().endswith("=") or line.startswith("=") for line in lines)


def test_colours_of_a_plot_on_a_page_are_those_of_the_page() -> None:
    series = [Series(str(number), [1, 2], [number, 2.0], [0.5, 0.5]) for number in range(7)]
    svg = as_svg(LinePlot(series, "round", "accuracy", markers=True), "plot")
    assert re.findall("#[0-9a-fA-F]{6}", re.sub(r'(href="|url\()#[^"\)]*', "", svg)) == []
    used = set(re.findall(r"var\((--[\w-]+)\)", svg))
    assert used == {"--grid", *(f"--line-{place}" for place in range(1, 7))}
    assert all(
        TEMPLATE.count(f"{name}:") == 2 for name in used
    )  # the page says what they are, light and dark
    assert "<style" not in svg  # it would hold for the whole page


def test_an_error_is_a_band_as_wide_as_the_standard_error_and_a_bar_for_a_lone_point() -> None:
    plot = LinePlot([Series("a", [1, 2], [10.0, 20.0], [1.0, 2.0])], "x", "y").figure()
    (band,) = (item for item in plot.axes[0].collections if isinstance(item, PolyCollection))
    corners = {(x, y) for x, y in band.get_paths()[0].vertices.tolist()}
    assert corners == {(1.0, 9.0), (1.0, 11.0), (2.0, 18.0), (2.0, 22.0)}
    lone = LinePlot([Series("a", [1], [10.0], [1.0])], "x", "y").figure().axes[0]
    assert not [item for item in lone.collections if isinstance(item, PolyCollection)]
    (bar,) = lone.containers[0].lines[2][0].get_segments()
    assert bar.tolist() == [[1.0, 9.0], [1.0, 11.0]]


def test_every_scored_point_is_marked_until_there_are_too_many() -> None:
    def marker(count: int) -> object:
        line = Series("a", list(range(count)), [1.0] * count)
        return LinePlot([line], "round", "y", markers=True).figure().axes[0].lines[0].get_marker()

    assert (marker(20), marker(MOST_MARKERS), marker(MOST_MARKERS + 1)) == ("o", "o", "None")


def test_lines_are_told_apart_without_colour() -> None:
    for markers in (True, False):
        series = [Series(str(number), list(range(50)), [number] * 50) for number in range(7)]
        lines = LinePlot(series, "round", "y", markers=markers).figure().axes[0].lines
        looks = {(line.get_marker(), line.get_linestyle()) for line in lines}
        assert len(looks) == 7
        assert all(marker != "None" for marker, _ in looks)


def test_a_logarithmic_axis_names_each_of_a_few_values_once() -> None:
    series = [Series("a", [2.0, 7.9996, 32.0], [1, 2, 3]), Series("b", [2.0, 8.0, 32.0], [1, 2, 3])]
    axes = LinePlot(series, "epsilon", "y", x_scale=Scale.log).figure().axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["2", "8", "32"]

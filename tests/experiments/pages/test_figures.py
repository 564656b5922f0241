"""Plots stay readable when lines differ in many settings: seen by where their text stands."""

import re

import pytest

from experiments.pages.figures import LINE_LENGTH, Series, bar_plot, in_lines, line_plot

LONG = "mechanism = independent, learning rate = 0.3, momentum = 0.9, keep probability = 0.1, epsilon = "
WIDTH, LETTER = 360, 5.2  # of the plot, and of a letter of a label, in the units of the SVG


def text_of(svg: str) -> list[tuple[float, str]]:
    """Return where each piece of level text starts (or has its middle), and the text."""
    found = re.findall(r'<text[^>]*?(?: x="|translate\()([-\d.]+)[^>]*>([^<]*)<', svg)
    return [(float(x), text) for x, text in found]


def test_long_labels_stand_below_the_plot_and_leave_it_its_width() -> None:
    series = [Series(f"{LONG}{number}", [1, 2], [3.0, 4.0]) for number in range(5)]
    text = text_of(line_plot("long", series, x_label="round", y_label="accuracy"))
    ticks = {label: x for x, label in text if label in ("1", "2")}
    assert ticks["2"] - ticks["1"] > 0.7 * WIDTH
    labels = [(x, label) for x, label in text if "=" in label]
    assert len(labels) >= 10
    assert all(x > 0 and x + LETTER * len(label) < WIDTH for x, label in labels)


def test_a_bar_stands_below_its_label_and_no_label_is_cut() -> None:
    bars = [(f"{LONG}{number}", 1.0 + number, None) for number in range(3)]
    labels = [(x, label) for x, label in text_of(bar_plot("bars", bars, x_label="MB")) if "=" in label]
    assert len(labels) >= 6
    assert all(x > 0 and x + LETTER * len(label) < WIDTH for x, label in labels)


@pytest.mark.parametrize("label", [LONG, "seed = 1"])
def test_lines_of_a_label_are_short_and_part_no_setting_from_its_value(label: str) -> None:
    lines = in_lines(label + "8").split("\n")
    assert all(len(line) <= LINE_LENGTH for line in lines)
    assert not any(line.rstrip().endswith("=") or line.startswith("=") for line in lines)

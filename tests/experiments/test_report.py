"""`report`: the page of a run again, and its plots as files for a paper."""

import json
import re
from pathlib import Path

import matplotlib
import pytest
from PIL import Image

import written_run
from experiments.pages.figures import STYLE, LinePlot, Series, rendered
from experiments.report import ReportSettings, report
from experiments.settings.compose import compose
from fedmf.errors import RunDirectoryError

NAMES = ("accuracy_by_round", "bytes_by_round", "epsilon_by_round", "loss_by_round", "noise_by_round")
LONG = "mechanism = my_own_package.factorizations.experimental:banded_and_tuned_for_this_federation, epsilon = "  # fmt: skip


@pytest.fixture
def directory(tmp_path):
    """A finished run."""
    return written_run.write(tmp_path / "r", mechanism={"update_noise_std": 0.03})


def reported(directory, *overrides):
    report(compose("report", [f"directory={directory}", *overrides], ReportSettings))


def test_every_plot_of_the_page_is_a_png_and_an_svg_as_wide_as_a_column(directory, tmp_path, capsys):
    for _ in range(2):  # the second time over the first
        reported(directory, f"plots={tmp_path / 'p'}", "output=json")
        printed = json.loads(capsys.readouterr().out)
    files = {tmp_path / "p" / f"{name}.{form}" for name in NAMES for form in ("png", "svg")}
    assert set((tmp_path / "p").iterdir()) == set(map(Path, printed["plots"])) == files
    assert (directory / "report.html").read_text().count("<img") == len(NAMES)
    assert printed["page"] == str(directory / "report.html")
    with Image.open(tmp_path / "p" / "noise_by_round.png") as image:
        assert image.info["dpi"] == pytest.approx((300, 300), abs=0.1)
        assert image.size[0] == pytest.approx(300 * 3.25, abs=1)
    svg = (tmp_path / "p" / "noise_by_round.svg").read_text()
    assert float(re.search(r'<svg[^>]* width="([\d.]+)pt"', svg)[1]) == pytest.approx(72 * 3.25)


def test_without_plots_the_page_alone_is_written_and_an_error_changes_nothing(directory, tmp_path, capsys):
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(RunDirectoryError, match=r"plots is .* is a file; name a directory"):
        reported(directory, f"plots={tmp_path / 'mine'}")
    assert not (directory / "report.html").exists()
    reported(directory)
    assert capsys.readouterr().out == f"{directory / 'report.html'}\n"


def test_no_label_is_cut_and_no_font_is_needed():
    plot = LinePlot("name", "", [Series(f"{LONG}{n}", [1, 2], [3.0, 4.0]) for n in range(5)], "accuracy")
    with matplotlib.rc_context(STYLE):
        figure = plot.figure()
        figure.draw_without_rendering()
    (legend,), (axes,) = figure.legends, figure.axes
    for text in legend.get_texts():
        box = text.get_window_extent()
        assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1
        assert figure.bbox.y0 <= box.y0 < box.y1 <= figure.bbox.y1
    assert axes.get_window_extent().width > 0.7 * figure.bbox.width
    assert "<text" not in rendered(plot, "svg").decode()

"""`report`: the page of a run again, and its plots as files for a paper, over nothing that was there."""

import json
import re

import pytest
from PIL import Image

import written_run
from experiments.compare.__main__ import CompareSettings, compare
from experiments.pages.figures import LinePlot, Series
from experiments.pages.plot_files import LOOKS, PlotWidth, rendered
from experiments.report import ReportSettings, report
from experiments.settings.compose import compose
from fedmf.errors import RunDirectoryError

pytestmark = pytest.mark.long

NAMES = ("absolute_noise_by_round", "accuracy_by_round", "bytes_by_round", "epsilon_by_round", "loss_by_round",
         "noise_by_round")  # fmt: skip


@pytest.fixture
def directory(tmp_path):
    """A finished run."""
    return written_run.write(tmp_path / "r", mechanism={"update_noise_std": 0.03})


def reported(directory, *overrides):
    report(compose("report", [f"directory={directory}", *overrides], ReportSettings))


def test_every_plot_of_the_page_becomes_a_png_and_an_svg(directory, tmp_path, capsys):
    reported(directory, f"plots={tmp_path / 'p'}", "output=json")
    files = sorted(path.name for path in (tmp_path / "p").iterdir())
    assert files == sorted(f"{name}.{form}" for name in NAMES for form in ("png", "svg"))
    html = (directory / "report.html").read_text()
    assert html.count("<svg") == len(NAMES)
    printed = json.loads(capsys.readouterr().out)
    assert printed["page"] == str(directory / "report.html")
    assert sorted(printed["plots"]) == [str(tmp_path / "p" / name) for name in files]


@pytest.mark.parametrize(("width", "inches"), [("column", 3.25), ("page", 6.75)])
def test_a_plot_is_as_wide_as_a_column_or_a_page_of_a_paper(directory, tmp_path, width, inches):
    reported(directory, f"plots={tmp_path / 'p'}", f"width={width}")
    for name in ("loss_by_round", "noise_by_round"):
        with Image.open(tmp_path / "p" / f"{name}.png") as image:
            assert image.info["dpi"] == pytest.approx((300, 300), abs=0.1)
            assert image.size[0] == pytest.approx(300 * inches, abs=1)
        svg = (tmp_path / "p" / f"{name}.svg").read_text()
        assert float(re.search(r'<svg[^>]* width="([\d.]+)pt"', svg)[1]) == pytest.approx(72 * inches)
    assert 7 <= LOOKS[PlotWidth(width)].small <= LOOKS[PlotWidth(width)].text <= 9  # points, as captions are


def test_letters_of_an_svg_are_outlines_and_the_same_plot_is_the_same_file():
    plot = LinePlot([Series("a line", [1, 2], [3.0, 4.0]), Series("b", [1, 2], [3.0, 5.0])], "round", "loss")
    files = rendered(plot, LOOKS[PlotWidth.column])
    assert "<text" not in files["svg"].decode()
    assert "#DejaVuSans-" in files["svg"].decode()
    assert rendered(plot, LOOKS[PlotWidth.column]) == files


def test_no_file_is_written_over_unasked_and_a_refusal_changes_nothing(directory, tmp_path):
    (tmp_path / "p").mkdir()
    mine = tmp_path / "p" / "loss_by_round.svg"
    mine.write_text("mine")
    with pytest.raises(RunDirectoryError, match=r"already holds loss_by_round\.svg; nothing was written"):
        reported(directory, f"plots={tmp_path / 'p'}")
    assert [path.name for path in (tmp_path / "p").iterdir()] == ["loss_by_round.svg"]
    assert mine.read_text() == "mine"
    assert not (directory / "report.html").exists()
    reported(directory, f"plots={tmp_path / 'p'}", "overwrite=true")
    assert "<svg" in mine.read_text()
    assert len(list((tmp_path / "p").iterdir())) == 2 * len(NAMES)


def test_a_comparison_refuses_alike(directory, tmp_path):
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "accuracy_by_round.png").write_text("mine")
    settings = compose("compare", [f"directory={tmp_path / 'r'}", f"plots={tmp_path / 'p'}"], CompareSettings)
    with pytest.raises(RunDirectoryError, match=r"already holds accuracy_by_round\.png"):
        compare(settings)
    assert not (directory / "compare.html").exists()
    assert not (directory / "compare.csv").exists()


def test_plots_in_the_place_of_a_file_are_refused(directory, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunDirectoryError, match=r"plots is .* is a file; name a directory"):
        reported(directory, f"plots={tmp_path / 'file'}")


def test_without_plots_the_page_alone_is_written(directory, capsys):
    reported(directory)
    assert capsys.readouterr().out == f"page: {directory / 'report.html'}\n"
    assert sorted(path.name for path in directory.iterdir()) == [
        "config.yaml", "mechanism.json", "metrics.jsonl", "privacy.json", "report.html", "summary.json"
    ]  # fmt: skip

"""`report`: the page of a run again, and its plots as files for a paper, over nothing that was there."""

import json
import re

import pytest
from PIL import Image

import written_run
from experiments.compare import CompareSettings, compare
from experiments.report import ReportSettings, report
from experiments.settings.compose import compose
from fedmf.errors import RunDirectoryError

NAMES = ("accuracy_by_round", "bytes_by_round", "epsilon_by_round", "loss_by_round", "noise_by_round")


@pytest.fixture
def directory(tmp_path):
    """A finished run."""
    return written_run.write(tmp_path / "r", mechanism={"update_noise_std": 0.03})


def reported(directory, *overrides):
    report(compose("report", [f"directory={directory}", *overrides], ReportSettings))


def test_every_plot_of_the_page_is_a_png_and_an_svg_as_wide_as_a_column(directory, tmp_path, capsys):
    reported(directory, f"plots={tmp_path / 'p'}", "output=json")
    files = sorted((tmp_path / "p").iterdir())
    assert [path.name for path in files] == sorted(
        f"{name}.{form}" for name in NAMES for form in ("png", "svg")
    )
    assert (directory / "report.html").read_text().count("<img") == len(NAMES)
    printed = json.loads(capsys.readouterr().out)
    assert printed == {"page": str(directory / "report.html"), "plots": printed["plots"]}
    assert sorted(printed["plots"]) == list(map(str, files))
    with Image.open(tmp_path / "p" / "noise_by_round.png") as image:
        assert image.info["dpi"] == pytest.approx((300, 300), abs=0.1)
        assert image.size[0] == pytest.approx(300 * 3.25, abs=1)
    svg = (tmp_path / "p" / "noise_by_round.svg").read_text()
    assert float(re.search(r'<svg[^>]* width="([\d.]+)pt"', svg)[1]) == pytest.approx(72 * 3.25)


def test_no_file_is_written_over_unasked_and_an_error_changes_nothing(directory, tmp_path):
    (tmp_path / "p").mkdir()
    mine = tmp_path / "p" / "accuracy_by_round.svg"
    mine.write_text("mine")
    compared = [f"directory={directory}", f"plots={tmp_path / 'p'}"]
    for call in (
        lambda: reported(directory, f"plots={tmp_path / 'p'}"),
        lambda: compare(compose("compare", compared, CompareSettings)),
    ):
        with pytest.raises(
            RunDirectoryError, match=r"already contains accuracy_by_round\.svg; nothing was written"
        ):
            call()
    assert [path.name for path in (tmp_path / "p").iterdir()] == [mine.name]
    assert mine.read_text() == "mine"
    assert not {"report.html", "compare.html", "compare.csv"} & {path.name for path in directory.iterdir()}
    with pytest.raises(RunDirectoryError, match=r"plots is .* is a file; name a directory"):
        reported(directory, f"plots={mine}")
    reported(directory, f"plots={tmp_path / 'p'}", "overwrite=true")
    assert "<svg" in mine.read_text()
    assert len(list((tmp_path / "p").iterdir())) == 2 * len(NAMES)


def test_without_plots_the_page_alone_is_written(directory, capsys):
    reported(directory)
    assert capsys.readouterr().out == f"{directory / 'report.html'}\n"
    assert sorted(path.name for path in directory.iterdir()) == [
        "config.yaml", "mechanism.json", "metrics.jsonl", "privacy.json", "report.html", "summary.json"
    ]  # fmt: skip

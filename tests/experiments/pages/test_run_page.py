"""report.html: what it shows, that it asks nothing of a network, and that no secret gets in."""

import re
from base64 import b64decode
from html.parser import HTMLParser

import numpy as np
import pytest

import written_run
from experiments.pages.run_page import (
    by_round_section,
    noise_section,
    privacy_section,
    run_page,
    write_report,
)
from experiments.run_files.reader import read_run
from runs import model, run as simulated


class Reader(HTMLParser):
    """Collects the attributes and the text of a page."""

    def __init__(self, page):
        super().__init__()
        self.attributes, self.text = [], ""
        self.feed(page)
        self.text = " ".join(self.text.split())

    def handle_starttag(self, tag, attrs):
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_data(self, data):
        self.text += data

    def values(self, *names):
        return [value for name, value in self.attributes if name in names]


def page(directory, **changes):
    """Return the report of a written run."""
    write_report(written_run.write(directory, **changes))
    return (directory / "report.html").read_text()


def text(directory, **changes):
    """Return what a reader of the report reads."""
    return Reader(page(directory, **changes)).text


def requests(html):
    """Return everything that would make a browser ask a network for something."""
    loading = ("src", "href", "xlink:href", "data", "srcset", "poster", "action", "background")
    found = [value for value in Reader(html).values(*loading) if not value.startswith(("#", "data:"))]
    return found + [word for word in ("@import", "url(http", "url(//", "<script", "<iframe") if word in html]


def test_the_page_asks_nothing_of_a_network_and_no_secret_file_is_opened(tmp_path):
    (secret := tmp_path / "checkpoint").mkdir()
    (secret / "key").write_text("SECRET-KEY")
    (secret / "key").chmod(0)
    html = page(tmp_path)
    assert requests(html) == []
    for picture in Reader(html).values("src"):
        svg = b64decode(picture.removeprefix("data:image/svg+xml;base64,")).decode()
        assert all(address.startswith("#") for address in re.findall(r'href="([^"]*)"', svg))
    assert "SECRET-KEY" not in html
    assert "checkpoint" not in html
    assert html == page(tmp_path)


def test_every_field_of_summary_and_statement_is_on_the_page_with_unit_and_file(tmp_path):
    summary = {"adjacency": "zero_out", "test_examples": 360}
    said = text(tmp_path, summary=summary, privacy={"sigma_by_epoch": [0.25, 0.25, 0.5]})
    for key in {*written_run.SUMMARY, *summary} - {"shape"}:
        assert f"summary.json: {key}" in said
    for row in (
        "accuracy on the test set93.5 %summary.json: accuracy",
        "clients N with training examples1,437summary.json: clients",
        "compression of the values sent6.35 timessummary.json: compression_ratio",
        "values that a client sends in a round922 bytessummary.json: uplink_bytes_per_client",
        "wall time12.5 ssummary.json: wall_seconds",
        "shape of an example8, 8summary.json: shape.input_shape",
        "mechanism.familyoptimalprivacy.json: mechanism.family",
        "sigma by epoch0.25, 0.5privacy.json: sigma_by_epoch",
    ):
        assert row in said
    assert "{'" not in said
    assert "zero_out" not in said
    claim = "at delta = 0.0001, for one image = one client, under zero-out adjacency; what it covers is under"
    assert said.count(claim) == 2  # with the result and at the plot
    assert set(re.findall(r"\b6\.3\d*", said)) == {"6.35"}  # the ratio is the same everywhere


def test_the_statement_is_in_words_and_each_sentence_once(tmp_path):
    assert "It holds for <one> client & run." in text(tmp_path)
    statement = {
        "paragraph": "It is private. Beware. Not covered: tests; a search.",
        "not_covered": ["tests", "a search"],
        "warnings": ["Beware."],
    }
    assert list(privacy_section(statement).points) == ["not covered: tests", "not covered: a search"]
    said = text(tmp_path, privacy=statement)
    assert [said.count(words) for words in ("tests", "a search", "Beware.")] == [1, 1, 1]


def test_plots_have_axes_units_and_captions_with_numbers_and_files(tmp_path):
    run = read_run(written_run.write(tmp_path))
    plots = [section.plot for section in run_page(run).sections if section.plot]
    assert [plot.y_label for plot in plots] == [
        "accuracy (%)", "epsilon", "loss (nats)", "noise std (relative)", "sent by clients"
    ]  # fmt: skip
    assert {plot.x_label for plot in plots} == {"round"}
    accuracy, epsilon, _, noise, sent = (plot.caption for plot in plots)
    assert accuracy == "Accuracy on the test set after round 6: 93.5 %. From metrics.jsonl: accuracy."
    assert epsilon.startswith("Epsilon spent after round 6: 8. From metrics.jsonl: epsilon. It holds at")
    assert "per_round_error" in noise
    total, dense = 6 * 64 * 921.6, 6 * 64 * (4 * 650 + 512)
    assert f"{total / 1000:.1f} kB against {dense / 1e6:.1f} MB" in sent
    reader = Reader(page(tmp_path))
    assert sorted(reader.values("aria-describedby")) == sorted({*reader.values("id")})
    assert len(reader.values("id")) == 5
    assert all(reader.values("alt"))


def test_a_part_that_is_missing_is_not_drawn_and_compared_with_nothing(tmp_path):
    for rounds, lines in ((6, 3), (2, 2)):  # of a run that ended early the least possible noise is not known
        plot = noise_section(read_run(written_run.write(tmp_path, summary={"rounds": rounds}))).plot
        assert [len(line.y) for line in plot.series] == [rounds] * lines
    assert f"{((1.2**2 + 1.4**2) / 2) ** 0.5:.4g} for optimal" in plot.caption
    unscored = [{**line, "accuracy": None} for line in written_run.metrics()]
    (tmp_path / "mechanism.json").unlink()
    said = text(tmp_path, metrics=unscored, mechanism=None)
    assert "metrics.jsonl contains no round with a value of accuracy" in said
    assert "independent noise" not in said


def test_the_noise_shown_is_that_in_the_model_of_a_run_whose_clients_send_nothing(tmp_path):
    directory = simulated(
        tmp_path / "r", "faults.drop_out=1", "run.reproducible=true", "population.epochs=2", "population.rounds_per_epoch=8",
        "compression.value_type=int8", "compression.keep_probability=0.5", "optimizer.learning_rate=0.5",
    )  # fmt: skip
    noise = model(directory) - model(directory, "model_initial.npz")
    plot = noise_section(read_run(directory)).plot
    # 650 coordinates: the standard error of their standard deviation is 2.8 %.
    assert 0.5 * plot.series[0].y[-1] == pytest.approx(np.std(noise), rel=0.1)
    assert plot.y_label == "noise std (update units)"


def test_warnings_come_first_and_a_private_run_has_none(tmp_path):
    assert "NOT private" not in page(tmp_path)
    settings = {"reproducible": True, "unprotected_metrics": True, "optimized_metric": "recall"}
    lines = written_run.metrics(private=False)
    html = page(tmp_path, summary={"epsilon": None}, metrics=lines, config={"run": settings})
    assert [warning[:34] for warning in re.findall(r'<p class="warning">(.*?)</p>', html)] == [
        "NOT private: this run has no finit",
        "reproducible, NOT private: the sec",
        "Unprotected metrics were recorded:",
        "Choosing settings by the recall of",
    ]
    assert html.rindex('class="warning"') < html.index("<main>")
    assert html.count("<img") == 4


def test_further_metrics_have_words_a_plot_and_a_word_on_rounds_without_a_value(tmp_path):
    lines = written_run.metrics()
    for line, top5 in zip(lines, (0.5, 0.6, 0.7, None, 0.9, 0.95), strict=True):
        line |= {"top5": top5, "recall": None}
    config, summary = {"metrics": ["accuracy", "top5", "mine:recall"]}, {"top5": 0.95, "recall": None}
    said = text(tmp_path, config=config, summary=summary, metrics=lines)
    assert "top-5 accuracy on the test set95.0 %summary.json: top5" in said
    assert "recall on the test set (mine:recall)–summary.json: recall" in said
    assert "metrics.jsonl contains no round with a value of recall." in said
    plot = by_round_section(read_run(tmp_path), "top5").plot
    assert plot.y_label == "top5 (%)"
    assert plot.caption.startswith("Top-5 accuracy on the test set after round 6: 95.0 %")
    assert list(plot.series[0].x) == [1, 2, 3, 5, 6]


def test_a_foreign_directory_brings_no_code_to_the_page_and_settings_name_no_folder(tmp_path):
    names = ["mine:<script>", "a:b c", "<b>", "mine:recall", 3, {"f1": 2}]
    lines = [line | {"<script>": 0.5, "<b>": 0.5, "recall": 0.5} for line in written_run.metrics()]
    data = {"name": "digits", "path": "/home/somebody/private/data.npz"}
    config = {"metrics": names, "dataset": data, "run": {"directory": str(tmp_path)}}
    html = page(tmp_path / "r", config=config, metrics=lines)
    assert requests(html) == []
    assert "<b>" not in html
    assert html.count("by round</h2>") == 4  # accuracy, loss, epsilon and recall
    assert "…/data.npz" in html
    assert "/home/somebody" not in html
    assert f"{tmp_path.parent}" not in html
    assert data["path"] in (tmp_path / "r" / "config.yaml").read_text()

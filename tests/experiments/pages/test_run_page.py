"""report.html: what it shows, that it asks nothing of a network, and that no secret gets in."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

import written_run
from experiments.pages.by_round import accuracy_section, loss_section, ratio
from experiments.pages.figures import LinePlot
from experiments.pages.mechanism_section import relative_section
from experiments.pages.run_page import privacy_section, statement_section, write_report
from experiments.run_files.reader import read_run
from fedmf.errors import RunDirectoryError
from fedmf.updates.compression import Compression


class Reader(HTMLParser):
    """Collects the tags, the attributes and the text of a page, and checks that elements nest."""

    VOID = ("meta", "link", "br", "hr", "img", "input")

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def page(directory: Path, **changes: object) -> str:
    """Return the report of a written run."""
    return write_report(written_run.write(directory, **changes)).read_text()


def requests(html: str) -> list[str]:
    """Return everything that would make a browser ask a network for something."""
    reader = Reader(html)
    loading = ("src", "href", "xlink:href", "data", "srcset", "poster", "action", "background")
    found = [
        value
        for _, name, value in reader.attributes
        if name in loading and not value.startswith(("#", "data:"))
    ]
    return found + [word for word in ("@import", "url(http", "url(//", "<script", "<iframe") if word in html]


def test_the_page_asks_nothing_of_a_network(tmp_path: Path) -> None:
    html = page(tmp_path)
    assert requests(html) == []
    broken = html.replace("</main>", '<img src="https://example.org/x.png"></main>')
    assert requests(broken) == ["https://example.org/x.png"]


def test_every_figure_of_the_summary_stands_on_the_page_with_its_file(tmp_path: Path) -> None:
    text = Reader(page(tmp_path)).text
    for key in written_run.SUMMARY:
        assert f"summary.json: {key}" in text
    assert "93.5 %" in text
    assert "0.199" in text
    assert "1,437" in text


def test_the_privacy_statement_stands_in_words_and_field_by_field(tmp_path: Path) -> None:
    html = page(tmp_path)
    text = Reader(html).text
    assert "Whoever sees all models learns little of one image." in text
    assert "It holds for <one> client & run." in text
    assert "<one>" not in html
    assert "privacy.json: mechanism.family" in text
    assert "not covered: hyper-parameter search" in text


def test_five_plots_have_axes_units_and_captions_with_numbers_and_files(tmp_path: Path) -> None:
    reader = Reader(page(tmp_path))
    assert (reader.tags.count("svg"), reader.tags.count("figcaption")) == (5, 5)
    for label in (
        "test accuracy (%)",
        "test loss (nats)",
        "epsilon spent",
        "noise std (relative)",
        "sent by clients (MB)",
        "round",
    ):
        assert label in reader.text
    assert "the highest was 94.0 % in round 5" in reader.text
    assert "4 once the first epoch has begun, 8 at the end" in " ".join(reader.text.split())
    for file in (
        "metrics.jsonl: accuracy",
        "metrics.jsonl: epsilon",
        "mechanism.json: per_round_error",
        "uplink_bytes",
    ):
        assert file in reader.text


def test_ids_are_unique_and_every_reference_inside_a_plot_has_its_target(tmp_path: Path) -> None:
    reader = Reader(page(tmp_path))
    ids = [value for _, name, value in reader.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    for _, name, value in reader.attributes:
        if name == "aria-labelledby" or (name in ("href", "xlink:href") and value.startswith("#")):
            assert value.removeprefix("#") in ids
        if "url(#" in value:
            assert value.split("url(#")[1].split(")")[0] in ids


def test_bytes_are_compared_with_sending_every_parameter(tmp_path: Path) -> None:
    text = " ".join(Reader(page(tmp_path)).text.split())
    sent, dense = 6 * 64 * 921.6, 6 * 64 * (4 * 650 + 512)
    assert f"{sent / 1000:.0f} kB against {dense / 1e6:.3g} MB" in text


def test_the_note_says_why_the_ratio_is_not_the_ideal_one(tmp_path: Path) -> None:
    text = " ".join(Reader(page(tmp_path)).text.split())
    assert "650 parameters are padded to 1,024" in text
    assert "that is 6.35 times less, not 10 times" in text


def test_a_run_that_sends_more_than_its_parameters_is_not_called_compressed(tmp_path: Path) -> None:
    everything = {"keep_probability": 1.0, "rotation": "hadamard", "value_type": "float32"}
    html = page(tmp_path, summary={"compression_ratio": 0.6348}, config={"compression": everything})
    text = " ".join(Reader(html).text.split())
    assert "1.58 times more than 650 parameters of 32 bits" in text
    assert "that is 1.58 times more." in text


def test_the_noise_of_a_run_that_ended_early_is_not_called_the_least_possible(tmp_path: Path) -> None:
    whole = relative_section(written_run.MECHANISM, 6).figure.caption
    assert "with equal noise in every epoch no mechanism that restarts has less than 1.5" in whole
    assert "designed for" not in whole
    short = relative_section(written_run.MECHANISM, 2).figure.caption
    assert "designed for 6 rounds: for the 2 that were released" in short
    assert "has less than" not in short
    assert f"{((1.2**2 + 1.4**2) / 2) ** 0.5:.4g} for optimal" in short


def test_the_statement_shows_numbers_by_epoch_in_one_row(tmp_path: Path) -> None:
    privacy = {"sigma_by_epoch": [0.25, 0.25, 0.5], "not_covered": ["tests"], "paragraph": "epsilon = 4."}
    said, fields = privacy_section(privacy), statement_section(privacy)
    assert list(said.points) == ["not covered: tests"]
    assert list(fields.table.rows) == [("sigma by epoch", "0.25, 0.5", "privacy.json: sigma_by_epoch")]


def test_the_page_says_once_what_is_not_covered(tmp_path: Path) -> None:
    statement = {
        "paragraph": "It is private. Beware. Not covered: tests; a search.",
        "not_covered": ["tests", "a search"],
        "warnings": ["Beware."],
    }
    text = " ".join(Reader(page(tmp_path, privacy=statement)).text.split())
    assert "not covered: tests not covered: a search" in text
    assert [text.count(words) for words in ("tests", "a search", "Beware.")] == [1, 1, 1]


def test_the_result_says_for_whom_epsilon_holds(tmp_path: Path) -> None:
    claim = {"unit_of_privacy": "one person = one client", "adjacency": "replace"}
    text = " ".join(Reader(page(tmp_path, privacy=claim)).text.split())
    said = 'at delta = 0.0001 (one person = one client, replace adjacency; what it covers stands under "What is private")'
    assert text.count(said) == 2  # with the result and beside the plot


def test_the_ratio_counts_the_bytes_of_a_value() -> None:
    assert ratio(1024, Compression(0.1, "hadamard", "int8")) == pytest.approx(40)
    assert ratio(650, Compression(0.1, "identity", "float32")) == pytest.approx(10)


def test_runs_that_are_not_private_say_so_first(tmp_path: Path) -> None:
    html = page(
        tmp_path,
        summary={"epsilon": None, "noise_multiplier": 0.0},
        metrics=written_run.metrics(private=False),
        config={"run": {"reproducible": True, "unprotected_metrics": True}},
    )
    text = Reader(html).text
    assert text.index("NOT private: this run has no finite epsilon") < text.index("Summary")
    assert "reproducible, NOT private" in text
    assert "Unprotected metrics" in text
    assert html.count("<svg") == 4


def test_a_private_run_carries_no_warning(tmp_path: Path) -> None:
    assert "NOT private" not in page(tmp_path)


def test_unscored_rounds_and_a_missing_mechanism_are_said_not_drawn(tmp_path: Path) -> None:
    lines = [
        {key: value for key, value in line.items() if key != "accuracy"} for line in written_run.metrics()
    ]
    text = Reader(page(tmp_path, metrics=lines, mechanism=None)).text
    assert "no round at which the model was scored" in text
    assert "holds no mechanism.json" in text


def test_no_secret_file_is_opened(tmp_path: Path) -> None:
    secret = tmp_path / "checkpoint"
    secret.mkdir()
    (secret / "key").write_text("SECRET-KEY")
    (secret / "key").chmod(0)
    html = page(tmp_path)
    assert "SECRET-KEY" not in html
    assert "checkpoint" not in html


def test_the_same_run_gives_the_same_page(tmp_path: Path) -> None:
    assert page(tmp_path) == page(tmp_path)


def test_an_unfinished_or_foreign_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match=r"config\.yaml"):
        write_report(tmp_path)
    written_run.write(tmp_path, summary=None)
    with pytest.raises(RunDirectoryError, match="has not finished"):
        write_report(tmp_path)
    written_run.write(tmp_path)
    (tmp_path / "metrics.jsonl").write_text('{"round": 1')
    with pytest.raises(RunDirectoryError, match="is not JSON"):
        write_report(tmp_path)


def test_further_metrics_have_words_a_plot_by_round_and_a_word_on_rounds_without_a_value(
    tmp_path: Path,
) -> None:
    lines = written_run.metrics()
    for line, top5 in zip(lines, (0.5, 0.6, 0.7, None, 0.9, 0.95), strict=True):
        line |= {"top5": top5, "recall": None}
    html = page(
        tmp_path / "r",
        config={"metrics": ["accuracy", "top5", "mine:recall"]},
        summary={"top5": 0.95, "recall": None},
        metrics=lines,
    )
    text = " ".join(Reader(html).text.split())
    assert "top-5 accuracy on the test set95.0 %summary.json: top5" in text
    assert "recall on the test set (mine:recall)–summary.json: recall" in text
    assert "Top-5 accuracy on the test set after round 6: 95.0 %; without a value in 1 of 6 rounds." in text
    assert "top5 (%)" in html
    assert "metrics.jsonl holds no round with a value of recall." in text


def test_a_name_of_a_metric_from_somebody_elses_directory_does_not_reach_the_pages_code(
    tmp_path: Path,
) -> None:
    names = ["mine:<script>", "a:b c", "<b>", "mine:recall", 3, {"f1": 2}]
    lines = [line | {"<script>": 0.5, "<b>": 0.5, "recall": 0.5} for line in written_run.metrics()]
    html = page(tmp_path / "r", config={"metrics": names}, metrics=lines)
    assert requests(html) == []
    assert "<b>" not in html
    assert html.count("by round</h2>") == 4  # accuracy, loss, epsilon and recall


def test_the_page_says_that_choosing_by_this_run_is_not_covered(tmp_path: Path) -> None:
    html = page(tmp_path / "r", config={"run": {"optimized_metric": "recall"}})
    (warning,) = re.findall(r'<p class="warning">(.*?)</p>', html)
    assert warning.startswith("Choosing settings by the recall of runs like this one is not covered")


def test_scores_on_a_part_of_the_test_examples_are_not_called_scores_on_all_and_not_compared_with_them(
    tmp_path: Path,
) -> None:
    lines = [{**line, "test_examples": 60 if line["round"] < 6 else 360} for line in written_run.metrics()]
    summary = {"test_examples": 360, "evaluation_examples": 60}
    run = read_run(written_run.write(tmp_path, metrics=lines, summary=summary))
    for section, end, best in (
        (accuracy_section(run), "93.5 %", "highest on the 60 of the rounds before was 94.0 % in round 5"),
        (loss_section(run), "0.065 nats", "lowest on the 60 of the rounds before was 0.06 nats in round 5"),
    ):
        assert section.figure is not None
        assert f"after round 6: {end}, on all 360 test examples; the {best}" in section.figure.caption
        assert "within a standard error of at most 5.90 points" in section.figure.caption
        assert isinstance(section.figure.drawing, LinePlot)
        few, whole = section.figure.drawing.series
        assert (few.label, list(few.x)) == ("60 of 360 test examples", [1, 2, 3, 4, 5])
        assert (whole.label, list(whole.x)) == ("all 360 test examples", [6])


def test_a_run_that_its_budget_ended_has_its_last_score_on_all_from_the_summary(tmp_path: Path) -> None:
    lines = [{**line, "test_examples": 60} for line in written_run.metrics()]
    summary = {"test_examples": 360, "evaluation_examples": 60, "accuracy": 0.9}
    section = accuracy_section(read_run(written_run.write(tmp_path, metrics=lines, summary=summary)))
    assert section.figure is not None
    assert "after round 6: 90.0 %, on all 360 test examples" in section.figure.caption


def test_a_run_scored_on_all_examples_has_one_line_and_no_word_about_it(tmp_path: Path) -> None:
    summary = {"test_examples": 360, "evaluation_examples": 360}
    section = accuracy_section(read_run(written_run.write(tmp_path, summary=summary)))
    assert section.figure is not None
    assert isinstance(section.figure.drawing, LinePlot)
    assert len(section.figure.drawing.series) == 1
    assert "the highest was 94.0 % in round 5. Scored" in section.figure.caption


def test_the_summary_says_shape_examples_and_adjacency_in_words_and_the_ratio_everywhere_alike(
    tmp_path: Path,
) -> None:
    shape = {"input_shape": [8, 8], "classes": 10, "task": "image"}
    summary = {"shape": shape, "adjacency": "zero_out", "test_examples": 360, "evaluation_examples": 60}
    html = page(tmp_path, summary=summary)
    text = " ".join(Reader(html).text.split())
    assert "image, input 8 x 8, 10 classes" in text
    assert "test examples scored in every round before" in text
    assert "{'" not in text
    assert "zero_out" not in text
    assert set(re.findall(r"\b6\.3\d*", text)) == {"6.35"}


def test_settings_on_the_page_name_no_folder_of_a_machine_and_the_file_is_as_it_was(tmp_path: Path) -> None:
    data = {"name": "digits", "path": "/home/somebody/private/data.npz"}
    html = page(tmp_path, config={"dataset": data, "run": {"directory": str(tmp_path)}})
    assert "…/data.npz" in html
    assert "/home/somebody" not in html
    assert f"{tmp_path.parent}" not in html
    assert "Of absolute paths the last part is shown." in html
    assert "/home/somebody/private/data.npz" in (tmp_path / "config.yaml").read_text()

"""`compare`: the document, the table, and what is said of runs that are not alike."""

import csv
import json
import re
import statistics

import pytest

import written_run
from client.metric_names import ALWAYS, TAKEN
from experiments.compare import CompareSettings, compare
from experiments.pages.comparison import bytes_to_reach, find_runs, label, read_comparison
from experiments.pages.wording import Estimate, estimate
from experiments.run_files.same_settings import REPETITION, without
from experiments.settings.compose import compose
from fedmf.errors import RunDirectoryError


@pytest.fixture
def compared(tmp_path, capsys):
    """A function that compares the runs below tmp_path and returns its JSON document, its page and what it prints."""

    def outputs(*overrides):
        printed = []
        for form in ("json", "text"):
            given = [f"directory={tmp_path}", f"output={form}", *overrides]
            compare(compose("compare", given, CompareSettings))
            printed.append(capsys.readouterr().out)
        return json.loads(printed[0]), (tmp_path / "compare.html").read_text(), " ".join(printed[1].split())

    return outputs


def rows(directory):
    """Return the lines of the CSV."""
    return list(csv.DictReader((directory / "compare.csv").read_text().splitlines()))


def test_seeds_become_a_mean_and_a_standard_error_in_every_output(tmp_path, compared):
    written_run.sweep(tmp_path, keeps=(0.1, 0.5), seeds=(1, 2, 4))
    document, html, printed = compared()
    assert document["runs"] == 6
    for group, row, keep in zip(document["groups"], rows(tmp_path), (0.1, 0.5), strict=True):
        values = [0.60, 0.62, 0.66]
        assert group["accuracy"] == float(row["accuracy"]) == pytest.approx(statistics.mean(values))
        assert group["accuracy_standard_error"] == pytest.approx(statistics.stdev(values) / 3**0.5)
        assert (group["compression.keep_probability"], group["seeds"], row["seeds"]) == (
            keep,
            [1, 2, 4],
            "1 2 4",
        )
    assert "62.7 ± 1.8 %" in html
    assert "62.7 ± 1.8 %" in printed
    assert "Runs of one seed" not in html
    assert html.count("<img") == html.count("<figcaption") == 3
    assert "<script" not in html
    for words in (">keep probability</th>", ">bytes to 60.0 %</th>"):
        assert words in html


def test_settings_that_change_nothing_but_speed_do_not_split_a_group():
    config = {"seed": 3, "engine": {"workers": 4}, "run": {"directory": "x"}, "model": {"name": "mlp"}}
    assert without({**config, "output": "json"}, REPETITION) == {"model.name": "mlp"}


def test_a_single_seed_has_no_standard_error_and_a_missing_value_no_mean():
    assert estimate([0.5]) == Estimate(0.5, None)
    assert estimate([0.5, None]) is None


def test_bytes_are_counted_until_the_first_scored_round_that_reaches_the_target(tmp_path, compared):
    (run,), _ = find_runs(written_run.write(tmp_path / "0"))
    assert bytes_to_reach(run, 0.5) == pytest.approx(2 * 64 * 921.6)
    assert bytes_to_reach(run, 0.94) == pytest.approx(5 * 64 * 921.6)
    assert bytes_to_reach(run, 0.95) is None
    written_run.write(tmp_path / "1", metrics=written_run.metrics(accuracies=(0.96, 0.5)), config={"seed": 2})
    assert read_comparison(tmp_path).target == 0.9  # every run reaches it
    for target, words, end in ((0.94, "176.9 kB", 3 * 64 * 921.6), (0.95, "–", None)):
        document, html, _ = compared(f"target_accuracy={target}")
        assert document["groups"][0]["bytes_to_target"] == (
            end and pytest.approx(end)
        )  # None: not every seed
        assert re.findall(rf'data-label="bytes to {100 * target:.1f} %">([^<]*)<', html) == [words]


def test_unfinished_and_unreadable_runs_are_named_and_do_not_count(tmp_path, compared):
    written_run.write(tmp_path / "crashed", summary=None)
    for name in ("bare", "good", "odd", "torn"):
        written_run.write(tmp_path / name)
    (tmp_path / "torn" / "summary.json").write_text('{"accuracy": 0.')
    (tmp_path / "bare" / "privacy.json").unlink()
    (tmp_path / "odd" / "metrics.jsonl").write_text("[1]\n")
    document, html, printed = compared()
    assert document["runs"] == 1
    assert list(document["left_out"]) == ["bare", "crashed", "odd", "torn"]
    assert document["left_out"]["crashed"] == "unfinished"
    assert "summary.json is not JSON" in document["left_out"]["torn"]
    assert "left out, crashed: unfinished" in html
    assert "left out, crashed: unfinished" in printed


def test_a_directory_without_runs_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    for place, why in (("file", "must be a directory"), (".", "no finished run"), ("none", "must be a dir")):
        with pytest.raises(RunDirectoryError, match=why):
            find_runs(tmp_path / place)


def test_labels_are_short_tell_settings_of_one_name_apart_and_leave_out_what_was_not_given():
    assert label({}) == "all runs"
    settings = {"compression.keep_probability": 0.1, "mechanism.name": "blt", "privacy.epsilon": None}
    assert label(settings) == "keep probability = 0.1, mechanism = blt"
    epochs = {"client.epochs": 1, "population.epochs": 8, "privacy.noise_multiplier": 0}
    assert label(epochs) == "client epochs = 1, population epochs = 8, noise multiplier = 0"


def test_every_output_says_for_whom_epsilon_holds_and_what_is_not_private(tmp_path, compared):
    claim = {"delta": 1e-4, "unit_of_privacy": "one person = one client", "adjacency": "zero_out"}
    for number, epsilon in enumerate((4.0, 7.9996)):
        config = {"run": {"reproducible": bool(number)}, "seed": number}
        written_run.write(tmp_path / str(number), privacy=claim, config=config, summary={"epsilon": epsilon})
    document, html, printed = compared()
    (group,) = document["groups"]
    assert [group[name] for name in claim] == ["0.0001", "one person = one client", "zero_out"]
    assert group["private"] is False
    (row,) = rows(tmp_path)
    assert (row["adjacency"], row["private"]) == ("zero_out", "False")
    for said in (html, printed):
        assert "at delta = 0.0001, for one person = one client, under zero-out adjacency" in said
        assert "1 of 2 runs are NOT private" in said
    assert 'data-label="epsilon spent">8</td>' in html  # of a group the largest, rounded up


def test_metrics_are_compared_with_the_accuracy_and_do_not_split_the_runs(tmp_path, compared):
    for seed, f1, entries in ((1, 0.5, ["f1", "a:recall"]), (2, 0.7, ["f1", "a:recall"]), (3, None, ["f1"])):
        written_run.write(
            tmp_path / str(seed),
            config={"seed": seed, "metrics": entries},
            summary={"f1": f1, "top5": 0.25, "recall": 0.125 if len(entries) == 2 else 0.5},
        )
    document, html, printed = compared()
    (group,) = document["groups"]
    assert (group["f1"], group["f1_standard_error"]) == (pytest.approx(0.6), pytest.approx(0.1))
    assert (group["recall"], group["recall_runs"], group["f1_runs"], group["accuracy_runs"]) == (
        0.125,
        2,
        2,
        3,
    )
    figures = {key for key in group if not key.endswith(("_standard_error", "_runs"))}
    assert figures - {*ALWAYS, "f1", "recall"} <= TAKEN
    assert "top5" not in group  # the run did not record it as a metric
    (row,) = rows(tmp_path)
    assert (float(row["f1"]), row["recall"], row["recall_runs"]) == (pytest.approx(0.6), "0.125", "2")
    assert "0.6 ± 0.1" in printed
    for words in ("0.6 ± 0.1 (2 of 3 runs)", ">0.125 (2 of 3 runs)<", ">f1</th>"):
        assert words in html


def test_runs_of_one_seed_are_not_called_seeds(tmp_path, compared):
    for number, entry in enumerate(("f1", "top5", "perplexity")):
        written_run.write(
            tmp_path / str(number), config={"seed": 0, "metrics": [entry]}, summary={entry: 0.5}
        )
    document, html, printed = compared()
    (group,) = document["groups"]
    assert (group["seeds"], group["runs"]) == ([0], 3)
    assert (group["f1"], group["top5"], group["perplexity"]) == (0.5, 0.5, 0.5)
    (row,) = rows(tmp_path)
    assert (row["seeds"], row["runs"]) == ("0", "3")
    for said in (html, printed):
        assert "all runs: 3 runs of 1 seeds. Runs of one seed differ in their noise alone" in said


def test_metrics_of_one_name_that_are_not_the_same_are_not_mixed(tmp_path, compared):
    for seed, entry in ((1, "a:recall"), (2, "b:recall")):
        written_run.write(
            tmp_path / str(seed), config={"seed": seed, "metrics": [entry]}, summary={"recall": 0.5}
        )
    document, html, _ = compared()
    assert "recall" not in document["groups"][0]
    assert document["left_out"] == {"recall": "not the same metric in all runs"}
    assert "left out, recall: not the same metric in all runs" in html

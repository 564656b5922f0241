"""Runs grouped over seeds: the table, the page, and what is refused."""

import csv
import json
import statistics
from pathlib import Path
from typing import Any

import pytest

import written_run
from client.metric_names import ALWAYS, TAKEN
from experiments.compare.__main__ import CompareSettings, compare
from experiments.compare.groups import (
    bytes_to_reach,
    common_accuracy,
    find_runs,
    group_runs,
    label,
)
from experiments.pages.estimate import estimate
from experiments.run_files.same_settings import REPETITION, without
from experiments.settings.compose import compose
from fedmf.errors import RunDirectoryError

ACCURACY = {(0.1, 1): 0.90, (0.1, 2): 0.94, (0.1, 3): 0.92, (1.0, 1): 0.96, (1.0, 2): 0.98}


def sweep(directory: Path, **changes: Any) -> Path:
    """Write runs with two keep probabilities and several seeds, as a Hydra sweep lays them out."""
    for number, ((keep, seed), accuracy) in enumerate(ACCURACY.items()):
        config = {
            "seed": seed,
            "compression": {"keep_probability": keep, "rotation": "hadamard", "value_type": "float32"},
            "engine": {"name": "local", "workers": number},
            **changes,
        }
        scores = (0.2, 0.5, 0.7, 0.8, accuracy, accuracy)
        written_run.write(
            directory / str(number),
            config=config,
            summary={"accuracy": accuracy, "keep_probability": keep},
            metrics=written_run.metrics(accuracies=scores),
        )
    return directory


def printed(capsys: pytest.CaptureFixture[str], directory: Path, *overrides: str) -> dict[str, Any]:
    """Return what the command prints as JSON."""
    overrides = (f"directory={directory}", "output=json", *overrides)
    compare(compose("compare", overrides, CompareSettings))
    return json.loads(capsys.readouterr().out)  # type: ignore[no-any-return]


def test_seeds_become_a_mean_and_a_standard_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = printed(capsys, sweep(tmp_path))
    assert document["runs"] == 5
    low, high = document["groups"]
    values = [0.90, 0.94, 0.92]
    assert low["accuracy"] == pytest.approx(statistics.mean(values))
    assert low["accuracy_standard_error"] == pytest.approx(statistics.stdev(values) / 3**0.5)
    assert (low["compression.keep_probability"], low["seeds"]) == (0.1, [1, 2, 3])
    assert (high["compression.keep_probability"], high["seeds"]) == (1.0, [1, 2])


def test_settings_that_change_nothing_but_speed_do_not_split_a_group() -> None:
    config = {
        "seed": 3,
        "engine": {"workers": 4},
        "run": {"directory": "x"},
        "model": {"name": "mlp"},
        "output": "json",
    }
    assert without(config, REPETITION) == {"model.name": "mlp"}


def test_a_single_seed_has_no_standard_error_and_a_missing_value_no_mean() -> None:
    single = estimate([0.5])
    assert single is not None
    assert (single.mean, single.error) == (0.5, None)
    assert estimate([0.5, None]) is None


def test_bytes_are_counted_until_the_first_scored_round_that_reaches_the_target(tmp_path: Path) -> None:
    (run,), _ = find_runs(written_run.write(tmp_path / "run").parent)
    assert bytes_to_reach(run, 0.5) == pytest.approx(2 * 64 * 921.6)
    assert bytes_to_reach(run, 0.94) == pytest.approx(5 * 64 * 921.6)
    assert bytes_to_reach(run, 0.95) is None


def test_the_default_target_is_reached_by_every_run(tmp_path: Path) -> None:
    groups = group_runs(find_runs(sweep(tmp_path))[0])
    assert common_accuracy(groups) == 0.9
    assert all(bytes_to_reach(run, 0.9) is not None for group in groups for run in group.runs)
    assert any(bytes_to_reach(run, 0.95) is None for group in groups for run in group.runs)


def test_the_csv_holds_what_the_json_holds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = printed(capsys, sweep(tmp_path))
    with (tmp_path / "compare.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["accuracy"]) for row in rows] == [group["accuracy"] for group in document["groups"]]
    assert [row["seeds"] for row in rows] == ["1 2 3", "1 2"]


def test_the_page_draws_keep_probability_rounds_and_bytes_without_a_request(tmp_path: Path) -> None:
    compare(compose("compare", [f"directory={sweep(tmp_path)}"], CompareSettings))
    html = (tmp_path / "compare.html").read_text()
    assert (
        html.count("<svg") == html.count("<figcaption") == 3
    )  # the runs are written by hand: one epsilon, one number of bytes
    assert "<script" not in html
    assert 'src="' not in html
    for words in (
        "keep probability",
        "test accuracy (%)",
        "Bytes to reach 90.0 %",
        "92.0 ± 1.2 %",
        "0/summary.json",
    ):
        assert words in html


def test_unfinished_runs_are_named_and_do_not_count(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written_run.write(sweep(tmp_path) / "crashed", summary=None)
    for name in ("torn", "bare", "odd"):
        written_run.write(tmp_path / name)
    (tmp_path / "torn" / "summary.json").write_text('{"accuracy": 0.')
    (tmp_path / "bare" / "privacy.json").unlink()
    (tmp_path / "odd" / "metrics.jsonl").write_text("[1]\n")
    document = printed(capsys, tmp_path)
    assert document["runs"] == 5
    assert list(document["left_out"]) == ["bare", "crashed", "odd", "torn"]
    assert document["left_out"]["crashed"] == "unfinished"
    assert "summary.json is not JSON" in document["left_out"]["torn"]
    assert "left out, crashed: unfinished" in (tmp_path / "compare.html").read_text()


def test_a_reproducible_run_is_called_not_private(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep(tmp_path, run={"reproducible": True})
    assert not any(group["private"] for group in printed(capsys, tmp_path)["groups"])
    compare(compose("compare", [f"directory={tmp_path}"], CompareSettings))
    assert "5 of 5 runs are NOT private" in capsys.readouterr().out


def test_a_target_that_some_seed_misses_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    low, high = printed(capsys, sweep(tmp_path), "target_accuracy=0.95")["groups"]
    assert low["bytes_to_target"] is None
    assert high["bytes_to_target"] == pytest.approx(5 * 64 * 921.6)
    assert "keep probability = 0.1: not reached by every seed" in (tmp_path / "compare.html").read_text()


def test_labels_are_short_and_in_words() -> None:
    assert (
        label({"compression.keep_probability": 0.1, "mechanism.name": "blt"})
        == "keep probability = 0.1, mechanism = blt"
    )
    assert label({}) == "all runs"


def test_labels_tell_settings_of_one_name_apart_and_leave_out_what_was_not_given() -> None:
    settings = {
        "client.epochs": 1,
        "population.epochs": 8,
        "privacy.epsilon": None,
        "privacy.noise_multiplier": 0,
    }
    assert label(settings) == "client epochs = 1, population epochs = 8, noise multiplier = 0"


def test_every_output_says_for_whom_epsilon_holds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    claim = {"delta": 1e-4, "unit_of_privacy": "one person = one client", "adjacency": "replace"}
    written_run.write(tmp_path / "r", privacy=claim)
    (group,) = printed(capsys, tmp_path)["groups"]
    assert (group["delta"], group["unit_of_privacy"], group["adjacency"]) == (
        "0.0001",
        "one person = one client",
        "replace",
    )
    said = "at delta = 0.0001, for one person = one client, under replace adjacency"
    assert said in (tmp_path / "compare.html").read_text()
    compare(compose("compare", [f"directory={tmp_path}"], CompareSettings))
    assert said in " ".join(capsys.readouterr().out.split())
    assert "replace" in (tmp_path / "compare.csv").read_text()


def test_a_directory_without_runs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match="which is a file"):
        find_runs(Path(__file__))
    with pytest.raises(RunDirectoryError, match="no finished run"):
        find_runs(tmp_path)
    with pytest.raises(RunDirectoryError, match="does not exist"):
        find_runs(tmp_path / "none")


def test_metrics_are_compared_beside_the_accuracy_and_do_not_part_the_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed, f1, entries in ((1, 0.5, ["f1", "a:recall"]), (2, 0.7, ["f1", "a:recall"]), (3, 0.6, ["f1"])):
        written_run.write(
            tmp_path / str(seed),
            config={"seed": seed, "metrics": entries},
            summary={"f1": f1, "top5": 0.25, "recall": 0.125 if len(entries) == 2 else 0.5},
        )
    (group,) = printed(capsys, tmp_path)["groups"]
    assert group["f1"] == pytest.approx(0.6)
    assert group["f1_standard_error"] == pytest.approx(0.1 / 3**0.5)
    assert (group["recall"], group["recall_runs"], group["f1_runs"]) == (0.125, 2, 3)
    figures = {key for key in group if not key.endswith(("_standard_error", "_runs"))}
    assert figures - {*ALWAYS, "f1", "recall"} <= TAKEN
    assert "top5" not in group  # the run did not record it as a metric
    (row,) = csv.DictReader((tmp_path / "compare.csv").read_text().splitlines())
    assert (float(row["f1"]), row["recall"], row["recall_runs"]) == (pytest.approx(0.6), "0.125", "2")
    compare(compose("compare", [f"directory={tmp_path}"], CompareSettings))
    shown = capsys.readouterr().out
    assert "0.6 ± 0.058" in shown
    assert "(2 of 3" in shown
    html = (tmp_path / "compare.html").read_text()
    assert ">0.125 (2 of 3 runs)<" in html
    assert ">f1</th>" in html
    assert "0.6 ± 0.058" in html


def test_a_metric_that_one_seed_has_no_value_of_is_the_mean_of_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed, value in ((1, 0.25), (2, None), (3, 0.75)):
        written_run.write(
            tmp_path / str(seed), config={"seed": seed, "metrics": ["top5", "f1"]}, summary={"top5": value, "f1": None}
        )  # fmt: skip
    (group,) = printed(capsys, tmp_path)["groups"]
    assert (group["top5"], group["top5_standard_error"], group["top5_runs"]) == (0.5, pytest.approx(0.25), 2)
    assert (group["f1"], group["f1_runs"], group["accuracy_runs"]) == (None, 0, 3)
    html = (tmp_path / "compare.html").read_text()
    assert ">50.0 ± 25.0 % (2 of 3 runs)<" in html


def test_runs_of_one_seed_are_not_called_seeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, entry in enumerate(("f1", "top5", "perplexity")):
        written_run.write(
            tmp_path / str(number), config={"seed": 0, "metrics": [entry]}, summary={entry: 0.5}
        )
    (group,) = printed(capsys, tmp_path)["groups"]
    assert (group["seeds"], group["runs"]) == ([0], 3)
    assert (group["f1"], group["top5"], group["perplexity"]) == (0.5, 0.5, 0.5)
    (row,) = csv.DictReader((tmp_path / "compare.csv").read_text().splitlines())
    assert (row["seeds"], row["runs"]) == ("0", "3")
    compare(compose("compare", [f"directory={tmp_path}"], CompareSettings))
    says = "all runs: 3 runs, but the seed 0 only. Runs of one seed differ in their noise alone"
    assert says in " ".join(capsys.readouterr().out.split())
    html = (tmp_path / "compare.html").read_text()
    assert says in html
    assert ">1 (3 runs)<" in html


def test_runs_of_different_seeds_need_no_word_about_them(tmp_path: Path) -> None:
    compare(compose("compare", [f"directory={sweep(tmp_path)}"], CompareSettings))
    assert "Runs of one seed" not in (tmp_path / "compare.html").read_text()


def test_metrics_of_one_name_that_are_not_the_same_are_not_mixed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed, entry in ((1, "a:recall"), (2, "b:recall")):
        written_run.write(
            tmp_path / str(seed), config={"seed": seed, "metrics": [entry]}, summary={"recall": 0.5}
        )
    (group,) = printed(capsys, tmp_path)["groups"]
    assert "recall" not in group
    says = "recall is left out: it is not the same metric in all runs (a:recall, b:recall)."
    assert says in (tmp_path / "compare.html").read_text()

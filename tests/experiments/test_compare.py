"""`compare`: the document, the table, the page with its plots, and what is said of runs that are not alike."""

import csv
import json
import shutil
import statistics

import pytest

import written_run
from experiments.compare import (
    CompareSettings,
    claims,
    compare,
    find_runs,
    read_comparison,
)
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
        assert (group["compression.keep_probability"], group["seeds"]) == (keep, [1, 2, 4])
        assert row["seeds"] == "1 2 4"
    assert "62.7 ± 1.8 %" in html
    assert "62.7 ± 1.8 %" in printed
    assert html.count("<img") == html.count("<figcaption") == 3
    for words in (">keep probability</th>", ">bytes to 60.0 %</th>"):
        assert words in html


def test_unfinished_and_unreadable_runs_are_named_and_do_not_count(tmp_path, compared):
    written_run.write(tmp_path / "crashed", summary=None)
    with pytest.raises(RunDirectoryError, match=r"no finished run; it must be .* crashed is unfinished"):
        find_runs(tmp_path)
    for name in ("bare", "good", "torn"):
        written_run.write(tmp_path / name)
    (tmp_path / "torn" / "summary.json").write_text('{"accuracy": 0.')
    (tmp_path / "bare" / "privacy.json").unlink()
    document, html, printed = compared()
    assert document["runs"] == 1
    assert list(document["left_out"]) == ["bare", "crashed", "torn"]
    assert "summary.json is not JSON" in document["left_out"]["torn"]
    for said in (html, printed):
        assert "left out, crashed: unfinished" in said


def test_every_output_says_for_whom_epsilon_holds_and_what_is_not_private(tmp_path, compared):
    claim = {"delta": 1e-4, "unit_of_privacy": "one person = one client", "adjacency": "zero_out"}
    for number, epsilon in enumerate((4.0, 7.9996)):  # of one seed
        config = {"run": {"reproducible": bool(number)}}
        written_run.write(tmp_path / str(number), privacy=claim, config=config, summary={"epsilon": epsilon})
    open_run = written_run.write(tmp_path / "none" / "open", summary={"epsilon": None})
    assert not list(claims(read_comparison(open_run).groups))  # without an epsilon none is claimed
    shutil.rmtree(open_run)
    document, html, printed = compared()
    (group,), (row,) = document["groups"], rows(tmp_path)
    assert [group[name] for name in claim] == ["0.0001", "one person = one client", "zero_out"]
    assert (group["private"], group["seeds"], group["runs"]) == (False, [1], 2)
    assert (row["adjacency"], row["private"], row["seeds"]) == ("zero_out", "False", "1")
    for said in (html, printed):
        assert "at delta = 0.0001, for one person = one client, under zero-out adjacency" in said
        assert "1 of 2 runs are NOT private" in said
        assert "all runs: 2 runs of 1 seeds. Runs of one seed differ in their noise alone" in said
    assert 'data-label="epsilon spent">8</td>' in html  # of a group the largest, rounded up

"""`compare`: the document, the table, the page with its plots, and what is said of runs that are not alike."""

import csv
import json
import re
import shutil
import statistics

import pytest

import written_run
from experiments.compare import (
    MOST_LINES,
    CompareSettings,
    by_round_section,
    bytes_to_reach,
    claims,
    compare,
    find_runs,
    measured_sections,
    read_comparison,
)
from experiments.settings.compose import compose
from fedmf.errors import RunDirectoryError

EPSILON, SENT, KEEP = (
    f"accuracy_against_{words}" for words in ("epsilon_spent", "values_sent_by_a_client", "keep_probability")
)
TWO = ("blt", "optimal")


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


def test_bytes_are_counted_until_the_first_scored_round_that_reaches_the_target(tmp_path, compared):
    (run,), _ = find_runs(written_run.write(tmp_path / "0"))
    assert bytes_to_reach(run, 0.5) == pytest.approx(2 * 64 * 921.6)
    assert bytes_to_reach(run, 0.95) is None
    written_run.write(tmp_path / "1", metrics=written_run.metrics(accuracies=(0.96, 0.5)), config={"seed": 2})
    assert read_comparison(tmp_path).target == 0.9  # every run reaches it
    for target, words, end in ((0.94, "176.9 kB", 3 * 64 * 921.6), (0.95, "–", None)):
        document, html, _ = compared(f"target_accuracy={target}")
        reached = document["groups"][0]["bytes_to_target"]
        assert reached == (end and pytest.approx(end))  # None: not every seed
        assert re.findall(rf'data-label="bytes to {100 * target:.1f} %">([^<]*)<', html) == [words]


def test_unfinished_and_unreadable_runs_are_named_and_do_not_count(tmp_path, compared):
    written_run.write(tmp_path / "crashed", summary=None)
    with pytest.raises(RunDirectoryError, match=r"no finished run; it must be .* crashed is unfinished"):
        find_runs(tmp_path)
    for name in ("bare", "good", "odd", "torn"):
        written_run.write(tmp_path / name)
    (tmp_path / "torn" / "summary.json").write_text('{"accuracy": 0.')
    (tmp_path / "bare" / "privacy.json").unlink()
    (tmp_path / "odd" / "metrics.jsonl").write_text("[1]\n")
    document, html, printed = compared()
    assert document["runs"] == 1
    assert list(document["left_out"]) == ["bare", "crashed", "odd", "torn"]
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


def test_metrics_are_compared_with_the_accuracy_and_do_not_split_the_runs(tmp_path, compared):
    listed = {1: ["f1", "a:recall", "a:own"], 2: ["f1", "a:recall", "b:own"], 3: ["f1"]}
    for (seed, entries), f1 in zip(listed.items(), (0.5, 0.7, None), strict=True):
        written_run.write(
            tmp_path / str(seed),
            config={"seed": seed, "metrics": entries},
            summary={"f1": f1, "top5": 0.25, "own": 0.5, "recall": 0.125 if seed < 3 else 0.5},
        )
    document, html, printed = compared()
    (group,), (row,) = document["groups"], rows(tmp_path)
    assert (group["f1"], group["f1_standard_error"]) == (pytest.approx(0.6), pytest.approx(0.1))
    assert [group[f"{name}_runs"] for name in ("recall", "f1", "accuracy")] == [2, 2, 3]
    assert not {"top5", "own"} & set(group)  # top5 was not recorded as a metric, own means two things
    assert document["left_out"] == {"own": "not the same metric in all runs"}
    assert (float(row["f1"]), row["recall"], row["recall_runs"]) == (pytest.approx(0.6), "0.125", "2")
    assert "0.6 ± 0.1" in printed
    for words in ("0.6 ± 0.1 (2 of 3 runs)", ">0.125 (2 of 3 runs)<", ">f1</th>", "left out, own: not"):
        assert words in html


def plots(directory, *sweep):
    """Return the plots of accuracy against what the groups of a sweep differ in, by name."""
    if sweep:
        written_run.sweep(directory, *sweep)
    return {
        section.plot.name: section.plot for section in measured_sections(read_comparison(directory).groups)
    }


def test_accuracy_against_epsilon_has_a_line_for_each_mechanism_with_its_error(tmp_path):
    drawn = plots(tmp_path, TWO, (2.0, 8.0, 32.0))
    assert list(drawn) == [EPSILON]  # neither bytes nor keep probability are varied
    plot = drawn[EPSILON]
    assert [line.label for line in plot.series] == ["mechanism = blt", "mechanism = optimal"]
    for place, line in enumerate(plot.series):
        assert list(line.x) == pytest.approx([2.0, 8.0, 32.0], rel=1e-3)
        assert list(line.y) == pytest.approx([100 * (0.53 + 0.1 * place + 0.01 * x) for x in (2, 8, 32)])
        assert line.error == pytest.approx([1.0] * 3)  # of 0.02 apart: half the distance
    assert (plot.x_label, plot.y_label, plot.log) == ("epsilon spent", "test accuracy (%)", True)
    line = by_round_section(read_comparison(tmp_path).groups).plot.series[0]
    assert (list(line.x), line.y[-1]) == ([1, 2, 3, 4, 5, 6], pytest.approx(55))
    assert line.error == pytest.approx([0, 0, 0, 0, 0, 1.0])


def test_what_else_differs_makes_its_own_lines(tmp_path):
    drawn = plots(tmp_path, TWO, (2.0, 8.0), (0.1, 0.5))
    assert list(drawn) == [EPSILON, SENT, KEEP]
    assert [line.label for line in drawn[EPSILON].series] == [
        f"keep probability = {keep}, mechanism = {name}" for keep in (0.1, 0.5) for name in TWO
    ]
    for name, x in ((SENT, [500, 2500]), (KEEP, [0.1, 0.5])):
        assert all(list(line.x) == pytest.approx(x) for line in drawn[name].series)


def test_epsilons_that_differ_by_calibration_alone_are_not_varied_and_none_is_counted(tmp_path):
    assert plots(tmp_path / "a", ("blt", "independent")) == {}
    written_run.sweep(tmp_path / "b", ("optimal",), (2.0, 8.0))
    config = {"privacy": {"noise_multiplier": 0, "delta": 1e-4}, "mechanism": {"name": "optimal"}}
    written_run.write(tmp_path / "b" / "open", config=config, summary={"epsilon": None})
    assert "2 of 3 groups have a value." in plots(tmp_path / "b")[EPSILON].caption


def test_more_lines_than_looks_are_counted_and_lines_differ_without_colour(tmp_path):
    (plot,) = plots(tmp_path, tuple(f"m{number}" for number in range(MOST_LINES + 1)), (2.0, 8.0)).values()
    # m0 is the worst, the last the best
    assert [line.label[-2:] for line in plot.series] == [f"m{number}" for number in range(1, MOST_LINES + 1)]
    assert f"{MOST_LINES} of {MOST_LINES + 1} lines, those that get highest." in plot.caption
    lines = [bars.lines[0] for bars in plot.figure().axes[0].containers]
    assert len({(line.get_marker(), line.get_linestyle()) for line in lines}) == MOST_LINES

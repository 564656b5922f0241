"""The tables of the studies, of made-up results."""

import json

import pytest

from experiments.reproduce.results import Outcome, Results
from experiments.reproduce.study import Study, Trial
from experiments.reproduce.tables import TABLES, Found

STUDY = Study("sgmf_femnist", "small")
(TASK,) = STUDY.tasks
LEVELS = {"independent, L2-CSGM": 0.80, "honaker_online": 0.82, "SGMF, epoch": 0.82, "SGMF, whole run": 0.85}


def found(tmp_path, study=STUDY, levels=LEVELS, seeds=5):
    """Results in which accuracy depends on the mechanism, the keep probability and the seed."""
    results = Results(tmp_path / "a.jsonl")
    results.add({
        Trial(cell, 0.3, seed).key: Outcome(round(levels[cell.mechanism] * cell.keep**0.01 + seed / 1000, 5), 1.5, 2.0, 3.0, "0.1.0", "abc")
        for cell in study.cells
        if cell.mechanism in levels
        for seed in range(seeds + (cell.mechanism == "SGMF, epoch"))
    })  # fmt: skip
    return Found(study, results, {})


def rows(found, kind):
    (table,) = TABLES[kind](found)
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


def test_the_best_accuracy_is_bold_and_other_numbers_of_runs_are_in_brackets(tmp_path):
    first, *_ = rows(found(tmp_path), "accuracy")
    assert first == {
        "keep": "1",
        "epsilon": "2",
        "independent, L2-CSGM": "80.2 ± 0.1",
        "honaker_online": "82.2 ± 0.1",
        "SGMF, epoch": "82.2 ± 0.1 (6)",
        "SGMF, whole run": "**85.2 ± 0.1**",
        "SGMF, whole run − SGMF, epoch": "+3.0 ± 0.0",
    }


def test_without_runs_there_are_dashes_and_no_time(tmp_path):
    nothing = Found(STUDY, Results(tmp_path / "none.jsonl"), {})
    assert set(rows(nothing, "accuracy")[0].values()) == {"1", "2", "–"}
    assert set(rows(nothing, "claims")[0].values()) == {"1", "2", "–"}
    assert list(TABLES["took"](nothing)) == []


def test_the_order_says_what_differs_significantly_and_what_the_paper_has_otherwise(tmp_path):
    first, *_ = rows(found(tmp_path), "claims")
    assert first["order"] == "SGMF, whole run > SGMF, epoch ≈ honaker_online > independent, L2-CSGM"
    assert first["not as in the paper"] == "–"
    (tmp_path / "b").mkdir()
    swapped = {**LEVELS, "SGMF, epoch": 0.79}
    first, *_ = rows(found(tmp_path / "b", levels=swapped), "claims")
    assert first["not as in the paper"] == "`SGMF, epoch` is below `independent, L2-CSGM`"


def test_what_compression_costs_is_relative_to_everything_sent(tmp_path):
    costs = rows(found(tmp_path), "lost")
    assert [row["keep"] for row in costs[::2]] == ["0.1", "0.03", "0.01", "0.003"]
    assert costs[0]["SGMF, whole run"] == f"{100 * 0.85 * (0.1**0.01 - 1):+.1f} ± 0.1"


def test_bytes_are_four_a_value_of_the_padded_model_and_an_envelope(tmp_path):
    first, second, *_ = rows(found(tmp_path), "bytes")
    assert first["bytes a message"] == "33,159"  # 4 * 8192 + 391
    assert second["with keep 1, over these"] == f"{33159 / (0.1 * 4 * 8192 + 391):.1f}"


def test_what_it_took_counts_runs_time_and_code(tmp_path):
    (row,) = rows(found(tmp_path), "took")
    runs = 4 * 10 * 5 + 10
    assert row["runs"] == runs
    assert row["CPU minutes"] == f"{2 * runs / 60:.0f}"
    assert row["wall minutes"] == f"{3 * runs / 60:.0f}"
    assert row["code"] == f"{runs} by abc"


def test_what_is_not_above_the_most_frequent_words_is_marked(tmp_path):
    study = Study("sgmf_text", "small")
    levels = {**LEVELS, "independent, L2-CSGM": 0.75, "no noise": 0.9}
    shown = found(tmp_path, study, levels)
    (task,) = study.tasks
    key = json.loads(Trial(task.no_noise, 0.0, 0).key) | {"mechanism": "always the same five words"}
    shown.results.add({json.dumps(key): Outcome(0.75, 2.0, 0.0)})
    assert rows(shown, "above")[0]["independent, L2-CSGM"] == "+0.2 ± 0.1"
    assert "no better" in rows(shown, "above")[-1]["independent, L2-CSGM"]
    assert "no better" not in rows(shown, "above")[0]["SGMF, whole run"]
    without = rows(shown, "beside")
    assert [row["test accuracy, %"] for row in without] == ["90.2 ± 0.1", "75.0"]
    assert rows(shown, "loss")[0]["SGMF, epoch"] == "1.50 ± 0.00"


@pytest.mark.parametrize("kind", ["steps", "cooldown", "against", "errors", "multiplier"])
def test_one_pass_tables_name_every_mechanism_and_epsilon(kind, tmp_path):
    study = Study("denisov_mechanisms", "small")
    levels = {name: 0.8 + index / 100 for index, name in enumerate(study["mechanisms"])}
    (table,) = TABLES[kind](found(tmp_path, study, levels))
    text = str(table.rows) + str(table.columns)
    assert all(name in text for name in study["mechanisms"]) or kind in ("multiplier", "cooldown", "steps")
    if kind == "multiplier":
        assert [row[0] for row in table.rows] == ["8", "4", "2", "1"]
        assert table.rows[-1][1] == "3.731"
    if kind == "errors":  # the optimum of momentum leaves the least noise at a constant rate
        least = dict(zip((row[0] for row in table.rows), (row[2] for row in table.rows), strict=True))
        assert least["optimal, momentum"] == "1.000" < least["optimal, prefix sums"]
    if kind == "steps":
        assert "+1.0 ± 0.0" in table.rows[0]

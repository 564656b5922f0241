"""The studies: their cells and chains, the search for a rate, the file of results, the runs that are made, and the tables."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import yaml

from experiments.reproduce import runner, study as studying
from experiments.reproduce.results import Outcome, Results
from experiments.reproduce.runner import compute, play
from experiments.reproduce.study import Cell, Chain, Study, Trial, best_place, rate_at, studies, tuned
from experiments.reproduce.tables import TABLES
from experiments.settings.compose import compose
from experiments.settings.schema import Settings
from fedmf.errors import DataError, RunDirectoryError, SettingError

FOLDER = Path(__file__).resolve().parents[3] / "docs" / "results"
SIZES = [(name, size) for name, study in studies().items() for size in study["sizes"]]
CELL = Cell("digits", "optimal", 0.5, 8.0, ("seed=0",))
LINE = {**json.loads(Trial(CELL, 0.3, 0).key), "accuracy": 0.5, "loss": 1.0, "seconds": 2.0}
TINY = """
title: Tiny
page: tiny
runs: tiny
held_out: 0.1
settings: ["compression.keep_probability={keep:g}", "privacy.epsilon={epsilon:g}", population.cohort_size=8]
mechanisms:
  optimal: {settings: [mechanism=optimal]}
  independent: {settings: [mechanism=independent]}
compared: [optimal, independent]
sizes:
  small:
    seeds: 2
    more: 1
    keep: [0.5]
    epsilon: [8.0]
    tasks:
      digits:
        start: 0.3
        data: false
        settings: [dataset=digits, privacy.delta=1e-5, population.rounds_per_epoch=2, population.epochs=2]
"""


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setattr(studying, "studies", lambda: {"tiny": yaml.safe_load(TINY)})
    return Study("tiny", None)


@pytest.mark.parametrize("file", sorted({study["runs"] for study in studies().values()}))
def test_every_committed_run_is_of_a_cell_and_every_cell_has_runs(file):
    """By the digest of its settings: a setting that is changed or moved in studies.yaml loses its runs."""
    cells = {
        (cell.task, cell.mechanism, cell.fingerprint)
        for name, size in SIZES
        if studies()[name]["runs"] == file
        for cell in Study(name, size).cells
    }
    found = map(json.loads, (FOLDER / f"{file}.jsonl").read_text().splitlines())
    runs = {(line["task"], line["mechanism"], line["settings"]) for line in found}
    assert {key for key in runs if key[1] != "always the same five words"} == cells


@pytest.mark.parametrize(("name", "size"), SIZES)
def test_the_settings_of_every_mechanism_compose(name, size):
    for task in Study(name, size).tasks:
        for cell in {cell.mechanism: cell for cell in task.cells.values()}.values():
            given = compose("config", [*cell.overrides, "seed=0"], Settings)
            assert given.compression.keep_probability == cell.keep
            assert given.privacy.epsilon == cell.epsilon


def test_a_chain_goes_through_neighbours_and_restarts_only_where_its_study_says_so():
    first, *_ = Study("sgmf_csgm", "small").chains()
    assert [(cell.keep, cell.epsilon) for cell in first.cells] == [
        (1.0, 8.0), (1.0, 2.0), (0.1, 2.0), (0.1, 8.0), (0.01, 8.0), (0.01, 2.0)
    ]  # fmt: skip
    chains = [
        [(cell.keep, cell.epsilon) for cell in chain.cells] for chain in Study("whole_run", None).chains()
    ]
    for keep, chain in zip((0.1, 1.0), chains, strict=False):
        assert chain == [(keep, epsilon) for epsilon in (8.0, 4.0, 2.0, 1.0)]


def test_without_epochs_every_round_is_one_and_each_rate_seed_and_share_is_another_trial():
    (task,) = Study("sgmf_csgm", "small").tasks
    for name, rounds, epochs in (("independent, L2-CSGM", 16, 4), ("L2-CSGM, no epochs", 1, 64)):
        given = {f"population.rounds_per_epoch={rounds}", f"population.epochs={epochs}"}
        assert given <= set(task.cells[name, 1.0, 2.0].overrides)
    trials = [Trial(CELL, 0.3, 0), Trial(CELL, 0.45, 0), Trial(CELL, 0.3, 1), Trial(CELL, 0.3, 0, 0.15)]
    assert len({trial.key for trial in trials}) == 4


@pytest.mark.parametrize("best", [-4, 0, 5])
def test_the_search_ends_where_both_neighbours_are_no_better(best):
    tried = []

    def score(place):
        tried.append(place)
        return 0.9 - 0.01 * abs(place - best)

    assert best_place(score, 0) == best
    assert {best - 1, best, best + 1} <= set(tried)
    assert len(tried) == len(set(tried)) == max(3, abs(best) + 3)  # no place twice, none beyond
    assert best_place(lambda place: 0.1, 2) == 2  # a plateau
    assert best_place(lambda place: 0.1 if place < 3 else None, 2) is None


def test_each_search_starts_where_the_neighbour_ended_and_the_mean_of_the_seeds_decides():
    asked = []
    cells = tuple(Cell("digits", "optimal", 0.5, epsilon, ()) for epsilon in (8.0, 4.0))

    def played(trials):
        """Accuracies that are best at the rate 0.3 times epsilon; one of the two seeds misleads."""
        asked.append(trials)
        found = []
        for trial in trials:
            distance = abs(trial.rate / (0.3 * trial.cell.epsilon) - 1)
            tilt = 0.01 * trial.rate * (1 if trial.seed == 100 else -1)
            found.append(Outcome(0.9 - distance / 100 + tilt, None, 0.0))
        return found

    found = dict(tuned(Chain(cells, 0.3, 2), 0.15, played))
    assert found == dict(zip(cells, (rate_at(0.3, 5), rate_at(0.3, 3)), strict=True))
    seen = {(trial.seed, trial.held_out) for trials in asked for trial in trials}
    assert seen == {(100, 0.15), (101, 0.15)}
    second = [trials[0].rate for trials in asked if trials[0].cell == cells[1]]
    assert second[:3] == [rate_at(0.3, place) for place in (4, 5, 6)]

    def missing(trials):
        return None if trials[0].cell == cells[1] else [Outcome(0.5, None, 0.0)] * len(trials)

    assert dict(tuned(Chain(cells, 0.3, 1), 0.15, missing)) == {cells[0]: 0.3}


def test_outcomes_are_written_in_the_order_of_their_keys_and_read_again(tiny, tmp_path):
    path = tmp_path / "a.jsonl"
    outcomes = {
        seed: Outcome(0.5 + seed / 100, None if seed else 1.0, 2.0, 3.0, "0.1.0", "abc") for seed in (2, 0, 1)
    }
    for seed, outcome in outcomes.items():
        Results(tiny, path).add({Trial(CELL, 0.3, seed).key: outcome})
    assert [json.loads(line)["seed"] for line in path.read_text().splitlines()] == [0, 1, 2]
    assert {seed: Results(tiny, path).find(Trial(CELL, 0.3, seed)) for seed in outcomes} == outcomes
    assert Results(tiny, path).find(Trial(CELL, 0.3, 3)) is None
    before = path.read_bytes()
    Results(tiny, path).add({})
    assert path.read_bytes() == before
    path.write_text(json.dumps({**LINE, "epsilon": 8, "held_out": 0}) + "\n")  # whole numbers without a point
    assert Results(tiny, path).find(Trial(CELL, 0.3, 0)) == Outcome(0.5, 1.0, 2.0)


@pytest.mark.parametrize(
    "line",
    [
        *(json.dumps({**LINE, **one}) for one in ({"accuracy": None}, {"accuracy": 86.5}, {"seconds": "x"}, {"keep": [0.1]}, {"rate": None})),
        "a note of mine",
        '{"task": "digi',
        "[]",
        '{"task": "buy milk"}',
    ],
)  # fmt: skip
def test_a_line_that_is_no_result_is_an_error_with_its_number_and_the_file_stays(tiny, tmp_path, line):
    path = tmp_path / "a.jsonl"
    path.write_text(f"{json.dumps(LINE)}\n{line}\n")
    with pytest.raises(RunDirectoryError, match=re.escape(f"{path}: line 2 is not a result")):
        Results(tiny, path)
    assert path.read_text().endswith(f"{line}\n")


def test_of_several_rates_the_tuned_one_counts_and_without_it_the_one_with_most_runs(tiny, tmp_path):
    results = Results(tiny, tmp_path / "a.jsonl")
    results.add({Trial(CELL, 0.3, seed).key: Outcome(0.5, 1.0, 0.0) for seed in range(3)})
    results.add({Trial(CELL, 0.2, seed).key: Outcome(0.9, 1.0, 0.0) for seed in range(2)})
    results.add({Trial(CELL, 0.2, 100, 0.1).key: Outcome(0.1, 1.0, 0.0)})
    assert results.runs(CELL).accuracies == {0: 0.5, 1: 0.5, 2: 0.5}
    results.rates = {CELL: 0.2}
    assert results.runs(CELL).accuracies == {0: 0.9, 1: 0.9}
    assert results.runs(Cell("digits", "optimal", 0.5, 8.0, ())).outcomes == {}


@pytest.mark.long
def test_a_study_is_computed_once_and_the_same_again(tiny, tmp_path):
    path, folder = tmp_path / "tiny.jsonl", tmp_path / "runs"

    def scores():
        found = map(json.loads, path.read_text().splitlines())
        return [{key: value for key, value in one.items() if key not in ("seconds", "wall")} for one in found]

    compute(Results(tiny, path), None, folder, 2)
    first, runs = scores(), sorted(folder.iterdir())
    assert all(line["code"] and 0 <= line["accuracy"] <= 1 for line in first)
    assert len(runs) == len(first)
    results = Results(tiny, path)
    assert set(results.rates) == set(tiny.cells)
    for cell in tiny.cells:  # two that lie close have a third run
        assert set(results.runs(cell).accuracies) in ({0, 1}, {0, 1, 2})
    configs = [yaml.safe_load((run / "config.yaml").read_text()) for run in runs]
    assert {(one["seed"] >= 100, one["dataset"]["held_out"]) for one in configs} == {
        (True, 0.1),
        (False, None),
    }
    stamps = [file.stat().st_mtime_ns for file in runs]
    path.write_text(
        "\n".join(path.read_text().splitlines()[1:]) + "\n"
    )  # a lost line is read from its directory
    compute(Results(tiny, path), None, folder, 2)
    assert scores() == first
    assert [file.stat().st_mtime_ns for file in sorted(folder.iterdir())] == stamps
    before = path.read_bytes()
    compute(Results(tiny, path), None, tmp_path / "others", 2)
    assert path.read_bytes() == before
    assert not (tmp_path / "others").exists()


def test_runs_that_need_data_say_which_and_other_data_are_refused(tmp_path):
    results = Results(Study("sgmf_femnist", "small"), tmp_path / "sgmf.jsonl")
    with pytest.raises(
        SettingError, match=r"sgmf_femnist trains on real data. Set data=mnist_by_writer\.npz"
    ):
        compute(results, None, tmp_path / "runs")
    np.savez(tmp_path / "other.npz", **{name: np.zeros(3, np.uint8) for name in runner.ARRAYS})
    with pytest.raises(DataError, match="not the data of the committed results"):
        compute(results, tmp_path / "other.npz", tmp_path / "runs")
    for name in ("a.npz", "a.gz"):
        (tmp_path / name).write_bytes(b"x")
        with pytest.raises(DataError, match=f"{name}: cannot be read"):
            runner.check_data(tmp_path / name, results.study)
    assert not (tmp_path / "runs").exists()


@pytest.fixture
def given(monkeypatch):
    """What `run` was called with, and what it returns."""
    calls = SimpleNamespace(overrides=(), settings={}, result=None)

    def run(*overrides, **settings):
        calls.overrides, calls.settings = set(overrides), settings
        return calls.result

    monkeypatch.setattr(runner, "run", run)
    return calls


def test_texts_are_tuned_by_likelihood_on_held_out_clients_and_what_diverged_has_no_accuracy(tmp_path, given):
    study = Study("sgmf_text", "small")
    given.result = SimpleNamespace(summary={"accuracy": 0.1, "loss": 4.60517}, scores={"KnownWords": 0.25})
    assert play(study, Path("/data"), tmp_path, Trial(study.cells[0], 0.3, 0, 0.3)).accuracy == 0.0100000019
    assert {"dataset.held_out=0.3", "dataset.path=/data"} <= given.overrides
    final = play(study, Path("/data"), tmp_path, Trial(study.cells[0], 0.3, 5))
    assert (final.accuracy, final.loss) == (0.25, 4.60517)
    assert given.settings == {"seed": 5, "optimizer": {"learning_rate": 0.3}}
    assert {"run.resume=true", "run.reproducible=true"} <= given.overrides
    assert not any("held_out" in one for one in given.overrides)
    assert any("sgmf_text_words.txt" in one for one in given.overrides)
    given.result = SimpleNamespace(summary={"accuracy": 0.1, "loss": None})
    found = play(study, None, tmp_path, Trial(study.cells[0], 0.3, 5))
    assert (found.accuracy, found.loss) == (0.0, None)


LEVELS = {"independent, L2-CSGM": 0.80, "honaker_online": 0.82, "SGMF, epoch": 0.82, "SGMF, whole run": 0.85}


def made_up(tmp_path, study, levels=LEVELS, seeds=5):
    """Return results in which accuracy depends on the mechanism, the keep probability and the seed."""
    results = Results(study, tmp_path / "a.jsonl")
    results.add({
        Trial(cell, 0.3, seed).key: Outcome(round(levels[cell.mechanism] * cell.keep**0.01 + seed / 1000, 5), 1.5, 2.0, 3.0, "0.1.0", "abc")
        for cell in study.cells
        if cell.mechanism in levels
        for seed in range(seeds + (cell.mechanism == "SGMF, epoch"))
    })  # fmt: skip
    return results


def rows(results, kind):
    (table,) = TABLES[kind](results)
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


def test_tables_of_accuracy_order_cells_messages_and_time(tmp_path):
    results = made_up(tmp_path, Study("sgmf_femnist", "small"))
    assert rows(results, "accuracy")[0] == {
        "keep": "1",
        "epsilon": "2",
        "independent, L2-CSGM": "80.2 ± 0.1",
        "honaker_online": "82.2 ± 0.1",
        "SGMF, epoch": "82.2 ± 0.1",
        "SGMF, whole run": "**85.2 ± 0.1**",
        "SGMF, whole run − SGMF, epoch": "+3.0 ± 0.0",
    }
    (alike,) = rows(results, "claims")  # all rows have one order, and none contradicts the paper's
    assert alike["order"] == "SGMF, whole run > SGMF, epoch ≈ honaker_online > independent, L2-CSGM"
    assert alike["keep: epsilon"] == "; ".join(
        f"{keep}: 2, 8" for keep in ("1", "0.1", "0.03", "0.01", "0.003")
    )
    assert "not as in the paper" not in alike
    found = {(row["keep"], row["mechanism"]): row for row in rows(results, "cells") if row["epsilon"] == 2.0}
    assert (found[1.0, "SGMF, epoch"]["runs"], found[1.0, "SGMF, whole run"]["runs"]) == (6, 5)
    assert found[1.0, "SGMF, whole run"]["cost_of_compression"] is None
    sparse = found[0.1, "SGMF, whole run"]
    assert sparse["cost_of_compression"] == pytest.approx(100 * 0.85 * (0.1**0.01 - 1), abs=1e-3)
    assert (sparse["learning_rate"], sparse["loss"], sparse["loss_se"]) == (0.3, 1.5, 0.0)
    dense, _, less, *_ = rows(results, "messages")
    assert (
        round(dense["bytes_a_message"]) == 33159
    )  # four for each value of the padded model, 4 * 8192, and 391
    assert less["bytes_with_keep_1_over_these"] == pytest.approx(33159 / (0.1 * 4 * 8192 + 391), rel=1e-4)
    noise = rows(results, "messages")[6]
    assert (noise["keep"], noise["noise_multiplier_over_keep_7850_parameters"]) == (0.01, "6.116")
    (took,) = rows(results, "took")
    runs = 4 * 10 * 5 + 10
    assert (took["runs"], took["code"]) == (runs, f"{runs} by abc")
    assert (took["CPU minutes"], took["wall minutes"]) == (f"{2 * runs / 60:.0f}", f"{3 * runs / 60:.0f}")


def test_without_runs_there_are_dashes_and_an_order_unlike_the_papers_is_named(tmp_path):
    study = Study("sgmf_femnist", "small")
    nothing = Results(study, tmp_path / "none.jsonl")
    assert set(rows(nothing, "accuracy")[0].values()) == {"1", "2", "–"}
    assert rows(nothing, "claims")[0]["order"] == "–"
    assert rows(nothing, "cells")[0]["accuracy"] is None
    assert list(TABLES["took"](nothing)) == []
    first, *_ = rows(made_up(tmp_path, study, {**LEVELS, "SGMF, epoch": 0.79}), "claims")
    assert first["not as in the paper"] == "`SGMF, epoch` is below `independent, L2-CSGM`"


def test_with_texts_the_cells_are_compared_with_the_most_frequent_words(tmp_path):
    study = Study("sgmf_text", "small")
    shown = made_up(tmp_path, study, {**LEVELS, "independent, L2-CSGM": 0.75, "no noise": 0.9})
    key = json.loads(Trial(study.tasks[0].no_noise, 0.0, 0).key) | {"mechanism": "always the same five words"}
    shown.add({json.dumps(key): Outcome(0.75, 2.0, 0.0)})
    first, *_, bare, words = rows(shown, "cells")
    assert first["above_the_most_frequent_words"] == pytest.approx(0.2)
    assert (bare["mechanism"], bare["epsilon"]) == ("no noise", None)
    assert [row["accuracy"] for row in (bare, words)] == pytest.approx([90.2, 75.0])
    assert (words["learning_rate"], words["loss"], words["above_the_most_frequent_words"]) == (None, 2.0, 0.0)


def test_differences_are_from_a_mechanism_to_the_next_and_from_a_constant_rate_to_the_cooldown(tmp_path):
    study = Study("denisov_mechanisms", "small")
    levels = {"honaker_online": 0.80, "honaker_full": 0.82}
    found = made_up(tmp_path, study, levels)
    first, *_ = rows(found, "differences")
    assert list(first.values())[:5] == [
        8.0,
        "honaker_full",
        "constant rate",
        "honaker_online",
        "constant rate",
    ]
    assert first["difference"] == pytest.approx(2.0)
    (same,) = [row for row in rows(found, "differences")[:20] if row["mechanism"] == row["less_mechanism"] == "honaker_full" and row["epsilon"] == 8.0]  # fmt: skip
    assert (same["schedule"], same["of_schedule"], same["difference"]) == ("cooldown", "constant rate", 0.0)

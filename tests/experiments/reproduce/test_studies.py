"""The studies: their cells and chains, the search for a rate, the file of results, the runs that are made, and the tables."""

import json
import pickle
import re
from contextlib import nullcontext
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import yaml

from experiments.reproduce import runner, study as studying
from experiments.reproduce.results import Outcome, Results
from experiments.reproduce.runner import compute, run_trial
from experiments.reproduce.study import Cell, Chain, Study, Trial, rate_at, studies, tuned
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


@pytest.mark.parametrize("name", studies())
def test_the_settings_of_every_mechanism_and_task_compose(name):
    tasks = chain.from_iterable(Study(name, size).tasks for size in studies()[name]["sizes"])
    cells = [cell for task in tasks for cell in task.cells.values()]
    for cell in ({cell.mechanism: cell for cell in cells} | {cell.task: cell for cell in cells}).values():
        given = compose("config", [*cell.overrides, "seed=0"], Settings)
        assert (given.compression.keep_probability, given.privacy.epsilon) == (cell.keep, cell.epsilon)


def test_each_search_starts_where_the_neighbour_ended_and_the_mean_of_the_seeds_decides():
    asked = []
    cells = tuple(Cell("digits", "optimal", 0.5, epsilon, ()) for epsilon in (8.0, 4.0))

    def accuracy(trial):
        """Best at the rate 0.3 times epsilon; one of the two seeds misleads."""
        distance = abs(trial.rate / (0.3 * trial.cell.epsilon) - 1)
        return 0.9 - distance / 100 + 0.01 * trial.rate * (1 if trial.seed == 100 else -1)

    def played(trials):
        asked.append(trials)
        return [Outcome(accuracy(trial), None, 0.0) for trial in trials]

    found = dict(tuned(Chain(cells, 0.3, 2), 0.15, played))
    assert found == dict(zip(cells, (rate_at(0.3, 5), rate_at(0.3, 3)), strict=True))
    tried = {(trial.seed, trial.held_out) for trials in asked for trial in trials}
    assert tried == {(100, 0.15), (101, 0.15)}
    second = [trials[0].rate for trials in asked if trials[0].cell == cells[1]]
    assert second[:3] == [rate_at(0.3, place) for place in (4, 5, 6)]


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
    for wrong in (json.dumps({**LINE, "accuracy": 86.5}), "a note"):
        path.write_text(f"{json.dumps(LINE)}\n{wrong}\n")
        with pytest.raises(RunDirectoryError, match=re.escape(f"{path}: line 2 is not a result")):
            Results(tiny, path)
        assert path.read_text().endswith(f"{wrong}\n")


def test_of_several_rates_the_tuned_one_counts_and_without_it_the_one_with_most_runs(tiny, tmp_path):
    results = Results(tiny, tmp_path / "a.jsonl")
    results.add({Trial(CELL, 0.3, seed).key: Outcome(0.5, 1.0, 0.0) for seed in range(3)})
    results.add({Trial(CELL, 0.2, seed).key: Outcome(0.9, 1.0, 0.0) for seed in range(2)})
    results.add({Trial(CELL, 0.2, 100, 0.1).key: Outcome(0.1, 1.0, 0.0)})
    assert results.runs(CELL).accuracies == {0: 0.5, 1: 0.5, 2: 0.5}
    results.rates = {CELL: 0.2}
    assert results.runs(CELL).accuracies == {0: 0.9, 1: 0.9}
    assert results.runs(Cell("digits", "optimal", 0.5, 8.0, ())).outcomes == {}


def no_processes():
    """Return what makes a pool that works here and is given pickled copies, as processes are, which take seconds to begin."""
    each = lambda work, given: map(pickle.loads(pickle.dumps(work)), given)  # noqa: E731
    return SimpleNamespace(Pool=lambda *_: nullcontext(SimpleNamespace(imap=each, imap_unordered=each)))


@pytest.mark.long
@pytest.mark.parametrize("pool", [no_processes, pytest.param(runner.spawn_context, marks=pytest.mark.slow)])
def test_a_study_is_computed_once_and_the_same_again(pool, tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "spawn_context", pool)
    path, folder = tmp_path / "tiny.jsonl", tmp_path / "runs"

    def scores():
        found = map(json.loads, path.read_text().splitlines())
        return [{key: value for key, value in one.items() if key not in ("seconds", "wall")} for one in found]

    compute(Results(tiny, path), None, folder, 2)
    first, runs = scores(), {run: run.stat().st_mtime_ns for run in folder.iterdir()}
    assert all(line["code"] and 0 <= line["accuracy"] <= 1 for line in first)
    assert len(runs) == len(first)
    results = Results(tiny, path)
    assert set(results.rates) == set(tiny.cells)
    for cell in tiny.cells:  # two that lie close have a third run
        assert set(results.runs(cell).accuracies) in ({0, 1}, {0, 1, 2})
    configs = [yaml.safe_load((run / "config.yaml").read_text()) for run in runs]
    held_out = {(one["seed"] >= 100, one["dataset"]["held_out"]) for one in configs}
    assert held_out == {(True, 0.1), (False, None)}
    monkeypatch.setattr(runner, "spawn_context", no_processes)
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[1:]) + "\n")  # a lost line is read from its directory
    compute(Results(tiny, path), None, folder, 2)
    assert scores() == first
    assert {run: run.stat().st_mtime_ns for run in folder.iterdir()} == runs
    compute(Results(tiny, path), None, tmp_path / "others", 2)
    assert not (tmp_path / "others").exists()


def test_runs_that_need_data_say_which_and_other_data_are_refused(tmp_path):
    results = Results(Study("sgmf_femnist", "small"), tmp_path / "sgmf.jsonl")
    np.savez(tmp_path / "other.npz", **{name: np.zeros(3, np.uint8) for name in runner.ARRAYS})
    for data, error, said in (
        (None, SettingError, r"sgmf_femnist trains on real data\. Set data=mnist_by_writer"),
        (tmp_path / "other.npz", DataError, "not the data of the committed results"),
    ):
        with pytest.raises(error, match=said):
            compute(results, data, tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_texts_are_tuned_by_likelihood_and_what_diverged_has_no_accuracy(tmp_path, monkeypatch):
    study, calls = Study("sgmf_text", "small"), []

    def played(result, *trial):
        monkeypatch.setattr(runner, "run", lambda *overrides, **more: calls.append({*overrides}) or result)
        return run_trial(study, Path("/data"), tmp_path, Trial(study.cells[0], 0.3, *trial))

    result = SimpleNamespace(summary={"accuracy": 0.1, "loss": 4.60517}, scores={"KnownWords": 0.25})
    assert played(result, 0, 0.3).accuracy == 0.0100000019
    final = played(result, 5)
    assert (final.accuracy, final.loss) == (0.25, 4.60517)
    diverged = played(SimpleNamespace(summary={"accuracy": 0.1, "loss": None}), 5)
    assert (diverged.accuracy, diverged.loss) == (0.0, None)
    tuning, scoring, _ = calls
    assert {"dataset.held_out=0.3", "dataset.path=/data"} <= tuning
    assert {"run.resume=true", "run.reproducible=true"} <= scoring
    assert not any("held_out" in one for one in scoring)

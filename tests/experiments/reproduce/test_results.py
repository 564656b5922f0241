"""The file of results: what is written is read again, and a line that is not a result is an error with its number."""

import json
import re

import pytest

from experiments.reproduce.results import Outcome, Results
from experiments.reproduce.study import Cell, Trial
from fedmf.errors import RunDirectoryError

CELL = Cell("digits", "optimal", 0.5, 8.0, ("seed=0",))
LINE = {**json.loads(Trial(CELL, 0.3, 0).key), "accuracy": 0.5, "loss": 1.0, "seconds": 2.0}


def test_outcomes_are_written_in_the_order_of_their_keys_and_read_again(tmp_path):
    path = tmp_path / "a.jsonl"
    outcomes = {
        seed: Outcome(0.5 + seed / 100, None if seed else 1.0, 2.0, 3.0, "0.1.0", "abc") for seed in (2, 0, 1)
    }
    for seed, outcome in outcomes.items():
        Results(path).add({Trial(CELL, 0.3, seed).key: outcome})
    assert [json.loads(line)["seed"] for line in path.read_text().splitlines()] == [0, 1, 2]
    assert {seed: Results(path).find(Trial(CELL, 0.3, seed)) for seed in outcomes} == outcomes
    assert Results(path).find(Trial(CELL, 0.3, 3)) is None
    before = path.read_bytes()
    Results(path).add({})
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "changed",
    [
        {"accuracy": "abc"},
        {"accuracy": None},
        {"accuracy": float("nan")},
        {"accuracy": 86.5},
        {"seconds": "x"},
        {"seconds": -1},
        {"epsilon": "eight"},
        {"keep": [0.1]},
        {"seed": "x"},
        {"rate": None},
    ],
)
def test_a_line_with_a_value_of_another_type_is_refused_by_its_number(tmp_path, changed):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in (LINE, {**LINE, "seed": 1, **changed})))
    with pytest.raises(RunDirectoryError, match=re.escape(f"{path}: line 2 is not a result")):
        Results(path)


@pytest.mark.parametrize("text", ["a note of mine", '{"task": "digi', "[]", '{"task": "buy milk"}'])
def test_another_file_is_refused_and_left_as_it_is(tmp_path, text):
    path = tmp_path / "a.jsonl"
    path.write_text(text)
    with pytest.raises(RunDirectoryError, match="line 1 is not a result"):
        Results(path)
    assert path.read_text() == text


def test_whole_numbers_are_the_same_run_as_with_a_point(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({**LINE, "epsilon": 8, "held_out": 0}) + "\n")
    assert Results(path).find(Trial(CELL, 0.3, 0)) == Outcome(0.5, 1.0, 2.0)


def test_of_several_rates_the_tuned_one_counts_and_without_it_the_one_with_most_runs(tmp_path):
    results = Results(tmp_path / "a.jsonl")
    results.add({Trial(CELL, 0.3, seed).key: Outcome(0.5, 1.0, 0.0) for seed in range(3)})
    results.add({Trial(CELL, 0.2, seed).key: Outcome(0.9, 1.0, 0.0) for seed in range(2)})
    results.add({Trial(CELL, 0.2, 100, 0.1).key: Outcome(0.1, 1.0, 0.0)})
    assert results.runs(CELL, 0.2).accuracies == {0: 0.9, 1: 0.9}
    assert results.runs(CELL, None).accuracies == {0: 0.5, 1: 0.5, 2: 0.5}
    assert results.runs(Cell("digits", "optimal", 0.5, 8.0, ()), 0.2).outcomes == {}

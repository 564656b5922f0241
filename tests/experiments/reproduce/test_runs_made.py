"""What a page says of its runs' time follows from the runs."""

from dataclasses import replace

import tiny_cells
from experiments.reproduce.results import Results
from experiments.reproduce.runs_made import time_words
from experiments.reproduce.trials import Outcome, Trial

CELL = tiny_cells.CHAINS[0][0]


def said(tmp_path, seconds, wall=None):
    results = Results(tmp_path / "runs.jsonl")
    for seed, each in enumerate(seconds):
        results.add(Trial(CELL, 0.1, seed), Outcome(0.9, None, each, wall))
    other = replace(CELL, mechanism="another")
    results.add(Trial(other, 0.1, 0), Outcome(0.9, None, 5000.0, 5000.0))
    return time_words(results, [CELL])


def test_the_spread_is_that_of_nine_runs_of_ten(tmp_path):
    words = said(tmp_path, [100.0, *[10.0] * 2, *range(11, 28), 0.0])
    assert "21 runs and 0 trials for tuning" in words
    assert "Wall time was not measured." in words
    assert "Nine runs of ten took 10.0 to 27.0 CPU seconds" in words


def test_one_run_has_no_spread(tmp_path):
    words = said(tmp_path, [60.0], wall=120.0)
    assert words.startswith("1 runs and 0 trials for tuning, 1 CPU minutes in all")
    assert words.endswith("Wall time, measured for 1 of them: 2 minutes one after the other, 120.0 s a run.")

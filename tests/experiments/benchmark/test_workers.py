"""The benchmark of worker processes: what it counts, and that it plays what it says."""

import sys

import pytest

from experiments.benchmark import workers
from experiments.benchmark.simulation import Federation
from experiments.benchmark.workers import Walls, measure


def test_gains_are_medians_of_the_ratios_of_a_turn():
    walls = Walls(one=[1.0, 2.0, 3.0], several=[0.5, 0.5, 2.0], apart=[2.0, 3.0, 3.0])
    assert walls.gain() == 2.0  # of 2, 4 and 1.5
    assert walls.most(4) == pytest.approx(8 / 3)  # of 2, 2.67 and 4


@pytest.mark.long
def test_rounds_of_workers_and_of_processes_apart_are_played_in_turns():
    small = Federation("logistic", 10, cohort_size=6)
    ((count, walls),) = measure([2], 2, small).items()
    assert count == 2
    assert [len(taken) for taken in (walls.one, walls.several, walls.apart)] == [2, 2, 2]
    assert min(*walls.one, *walls.several, *walls.apart) > 0


@pytest.mark.long
def test_a_process_apart_that_cannot_begin_is_an_error_and_not_a_wait(monkeypatch):
    monkeypatch.setattr(workers, "_START", 1.0)
    said = "one of 2 processes that play rounds apart did not go on"
    with pytest.raises(RuntimeError, match=said), workers._apart(2, Federation("none", 10)) as play:
        play()


@pytest.mark.parametrize("given", [["many"], ["0"], ["3", "1"], ["3", "-2"], ["2.5"]])
def test_arguments_that_are_no_rounds_or_workers_are_refused(given, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["workers", *given])
    with pytest.raises(SystemExit) as end:
        workers.main()
    assert end.value.code == 2
    assert "numbers of workers, 2 or more" in capsys.readouterr().err

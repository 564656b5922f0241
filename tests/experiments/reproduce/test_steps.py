"""Computations of minutes say where they stand before each step, and about how long the rest takes."""

import importlib

import pytest

from experiments.reproduce import Means, denisov_table2, steps
from experiments.reproduce.steps import PAUSE, told


class Clock:
    """Seconds that pass only when they are added."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def lines(capsys):
    captured = capsys.readouterr()
    assert not captured.out  # a document is printed there
    return captured.err.splitlines()


def test_each_long_step_is_told_before_it_begins_with_the_time_left_in_proportion_to_the_costs(capsys):
    clock, heard = Clock(), []
    for rounds in told((1, 2, 4), "{} rounds".format, lambda rounds: rounds**2.0, clock):
        heard += lines(capsys)
        clock.now += 60.0 * rounds**2
    assert heard == [
        "0/3 | time left unknown | 1 rounds",
        "1/3 | time left about 20 min | 2 rounds",
        "2/3 | time left about 16 min | 4 rounds",
    ]
    assert lines(capsys) == []


def test_short_steps_say_nothing_after_the_first(capsys):
    clock = Clock()
    for _ in told(range(100), str, lambda _: 1.0, clock):
        clock.now += PAUSE / 10
    said = lines(capsys)
    assert len(said) == 10  # one in ten
    assert said[-1] == "90/100 | time left under 1 min | 90"


def test_nothing_is_told_of_no_items(capsys):
    assert list(told((), str, lambda _: 1.0)) == []
    assert lines(capsys) == []


@pytest.mark.parametrize("name", ["denisov_solvers", "henzinger_counting"])
def test_results_of_minutes_tell_of_each_of_their_tables_on_stderr_alone(name, tmp_path, monkeypatch, capsys):
    module = importlib.import_module(f"experiments.reproduce.{name}")
    small = {
        "denisov_solvers": lambda size: size((16,), (16,), (16,), (32,), 5.0),
        "henzinger_counting": lambda size: size(3, (2,), 2, (2,)),
    }[name](module.Size)
    monkeypatch.setitem(module.SIZES, "small", small)
    monkeypatch.setattr(steps, "PAUSE", 1e9)  # one line a table, however slow the machine is
    module.reproduce(tmp_path, Means())
    assert (
        lines(capsys)
        == {
            "denisov_solvers": [
                "0/3 | time left unknown | all solvers, prefix sums, 16 rounds",
                "0/2 | time left unknown | ours alone, prefix sums, 32 rounds",
            ],
            "henzinger_counting": [
                "0/3 | time left unknown | errors, 2^1 rounds",
                "0/1 | time left unknown | real counters, 2^2 rounds",
                "0/1 | time left unknown | 8 epochs, 2^2 rounds",
            ],
        }[name]
    )


def test_the_tables_of_denisov_table_2_are_told_too(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(steps, "PAUSE", 1e9)
    monkeypatch.setattr(denisov_table2, "PUBLISHED", {256: denisov_table2.PUBLISHED[256]})
    denisov_table2.reproduce(tmp_path)
    assert lines(capsys) == [
        f"0/1 | time left unknown | {table}, 256 rounds"
        for table in ("errors", "bands and rank", "a run of 8 epochs")
    ]

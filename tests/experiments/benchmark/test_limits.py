"""`check=true`: a row that became 1.5 times as slow breaks its limit, or the machine is in another state; the command says which."""

import json
from functools import partial

import pytest
from hypothesis import given, strategies as st

from benchmark_runs import run_benchmark
from experiments.benchmark import __main__ as benchmark, limits
from experiments.benchmark.row import Row
from experiments.cli.command import guard
from fedmf.errors import RunStoppedError


class Machine:
    """CPU time that passes only when a row says how much it takes."""

    def __init__(self):
        self.now = 0.0

    def take(self, seconds):
        self.now += seconds

    def row(self, ours, floor=1.0):
        """Return what makes a row of so many seconds."""
        return lambda: Row(partial(self.take, ours), partial(self.take, floor), "a second")


@pytest.fixture
def machine(monkeypatch):
    machine = Machine()
    monkeypatch.setattr("experiments.benchmark.row.time.process_time", lambda: machine.now)
    return machine


@pytest.fixture
def rows(monkeypatch, tmp_path, machine):
    """Two rows at their usual speed, and a place for their limits."""
    mine = {"steady": machine.row(2.0), "slowed": machine.row(2.0)}
    monkeypatch.setattr(benchmark, "ROWS", mine)
    monkeypatch.setattr(limits.read, "__defaults__", (tmp_path / "limits.json",))
    monkeypatch.setattr(limits.write, "__defaults__", (tmp_path / "limits.json",))
    return mine


def test_a_slip_of_one_and_a_half_exits_1_and_is_named(rows, machine, capsys):
    assert run_benchmark(capsys, "limits=true", "repeats=3")[0] == 0
    code, out, err = run_benchmark(capsys, "check=true", "repeats=3", "output=json")
    assert (code, set(json.loads(out))) == (0, {"steady", "slowed"})
    assert "slower" not in err
    assert "undecided" not in err
    rows["slowed"] = machine.row(3.0)
    code, out, err = run_benchmark(capsys, "check=true", "repeats=3", "output=json")
    assert code == 1
    assert json.loads(out)["slowed"]["ratio"] == 3.0  # it is printed nevertheless
    last = err.strip().splitlines()[-1]
    assert last.startswith("error: slower than their limits: slowed (ratio 3, limit 2.5).")
    assert "steady" not in last


@pytest.mark.parametrize("factor", [1.2, 0.8])
def test_on_a_machine_in_another_state_a_row_is_undecided_which_exits_3(rows, machine, capsys, factor):
    """Also a row whose ratio is within its limit: floors that others slow down hide a slip."""
    run_benchmark(capsys, "limits=true", "repeats=3")
    rows["slowed"] = machine.row(3.0 * factor, factor)
    code, _, err = run_benchmark(capsys, "check=true", "repeats=3", "output=json")
    assert code == 3
    last = err.strip().splitlines()[-1]
    assert last.startswith("undecided, ")
    assert f"slowed (floor {factor:.2f} times as long)" in last
    assert "steady" not in last
    rows["steady"] = machine.row(3.0)
    code, _, err = run_benchmark(capsys, "check=true", "repeats=3", "output=json")
    assert code == 1
    undecided, error = err.strip().splitlines()[-2:]
    assert "slowed (floor" in undecided
    assert "steady (ratio 3, limit 2.5)" in error


def exit_code(action):
    try:
        return guard(action)
    except SystemExit as stop:
        return stop.code


@given(st.floats(0.2, 5.0), st.floats(0.2, 5.0), st.floats(0.01, 100.0), st.floats(1e-5, 10.0))
def test_a_row_that_takes_one_and_a_half_times_as_long_never_passes(slower, busy, ratio, floor):
    """Whatever became of the floor; and a row that takes as long as it took is never called slower."""
    found = {"mask": {"ratio": ratio * slower / busy, "floor": floor * busy}}
    code = exit_code(lambda: limits.check(found, {"mask": {"ratio": ratio, "floor": floor}}))
    assert code in {0, 1, 3}
    assert code != 0 or slower < 1.5
    assert code != 1 or slower > 1.07
    assert code != 3 or not 1 / 1.14 < busy < 1.14


def test_limits_keep_those_of_other_rows_and_say_when_and_where_they_were_set(
    rows, machine, capsys, tmp_path
):
    run_benchmark(capsys, "limits=true", "repeats=2")
    first = json.loads((tmp_path / "limits.json").read_text())["measured"]
    rows["steady"] = machine.row(40.0, 0.5)
    run_benchmark(capsys, "limits=true", "rows=[steady]", "repeats=2")
    second = json.loads((tmp_path / "limits.json").read_text())["measured"]
    assert second["slowed"] == first["slowed"]
    assert (first["steady"]["ratio"], second["steady"]["ratio"]) == (2.0, 80.0)
    assert second["steady"]["floor"] == 0.5
    assert len(second["steady"]["date"]) == len("2026-01-01")
    assert second["steady"]["machine"]


def test_a_row_without_a_limit_is_refused_before_anything_is_measured(rows, capsys):
    run_benchmark(capsys, "limits=true", "rows=[steady]", "repeats=1")
    code, out, err = run_benchmark(capsys, "check=true")
    assert (code, out) == (2, "")
    assert "slowed has no limit" in err
    assert "1/2" not in err


def test_limits_that_were_set_with_other_compiled_code_are_refused(rows, capsys, tmp_path, monkeypatch):
    run_benchmark(capsys, "limits=true", "repeats=1")
    monkeypatch.setattr(limits, "available", lambda: False)
    code, out, err = run_benchmark(capsys, "check=true")
    assert (code, out) == (2, "")
    assert "set with numba, which cannot be used here" in err
    run_benchmark(capsys, "limits=true", "rows=[steady]", "repeats=1")  # and no file mixes the two
    assert list(json.loads((tmp_path / "limits.json").read_text())["measured"]) == ["steady"]


def test_the_median_of_three_measurements_is_compared_with_the_limit(rows, machine, capsys):
    """So that one busy measurement of three is forgiven, and one lucky one hides nothing."""
    run_benchmark(capsys, "limits=true", "repeats=3")
    for ours, expected in (((9.0, 2.0, 2.0), 0), ((2.0, 3.0, 3.0), 1)):
        made = iter(ours)
        rows["slowed"] = lambda made=made: machine.row(next(made))()
        assert run_benchmark(capsys, "check=true", "repeats=3", "output=json")[0] == expected


def test_shipped_limits_cover_every_row_and_break_at_a_slip_of_one_and_a_half():
    known = limits.read(list(benchmark.ROWS))
    assert set(known) == set(benchmark.ROWS)
    for name, measured in known.items():
        for busy in (1.0, 1.149):
            slow = {"ratio": 1.5 * measured["ratio"] / busy, "floor": busy * measured["floor"]}
            with pytest.raises(RunStoppedError, match=name):
                limits.check({name: slow}, known)
        limits.check({name: measured}, known)

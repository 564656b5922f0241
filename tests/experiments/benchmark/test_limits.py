"""`check=true`: a row that became 1.5 times as slow breaks its limit, or the machine is not as it was; the command says which."""

import json
from functools import partial

import pytest
from hypothesis import given, strategies as st

from benchmark_runs import run_benchmark
from experiments.benchmark import __main__ as benchmark, limits
from experiments.benchmark.limits import Limit
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
    assert run_benchmark(capsys, "limits=write", "repeats=3")[0] == 0
    code, out, err = run_benchmark(capsys, "check=true", "repeats=3", "output=json")
    assert (code, set(json.loads(out))) == (0, {"steady", "slowed"})
    assert "slower" not in err
    assert "undecided" not in err
    rows["slowed"] = machine.row(3.0)
    code, out, err = run_benchmark(capsys, "check=true", "repeats=3", "output=json")
    assert code == 1
    assert json.loads(out)["slowed"]["ratio"] == 3.0  # it is printed all the same
    last = err.strip().splitlines()[-1]
    assert last.startswith("error: slower than their limits: slowed (ratio 3, limit 2.5).")
    assert "steady" not in last


@pytest.mark.parametrize("factor", [1.2, 0.8])
def test_on_a_machine_in_another_state_a_row_is_undecided_which_exits_3_and_is_said(
    rows, machine, capsys, factor
):
    """Also a row whose ratio is within its limit: floors that others slow down hide a slip."""
    run_benchmark(capsys, "limits=write", "repeats=3")
    rows["slowed"] = machine.row(3.0 * factor, factor)
    code, out, err = run_benchmark(capsys, "check=true", "repeats=3", "output=json")
    assert (code, set(json.loads(out))) == (3, {"steady", "slowed"})
    last = err.strip().splitlines()[-1]
    assert last.startswith("undecided, as their floors took other times")
    assert f"slowed (floor {factor:.2f} times as long)" in last
    assert "steady" not in last
    rows["steady"] = machine.row(3.0)
    code, out, err = run_benchmark(capsys, "check=true", "repeats=3", "output=json")
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
def test_a_row_that_takes_one_and_a_half_times_as_long_is_never_passed(slower, busy, ratio, floor):
    """Whatever became of the floor; and a row that takes as long as it took is never said to be slower."""
    limit = {"mask": Limit(float(f"{limits.ROOM * ratio:.3g}"), float(f"{floor:.4g}"))}
    found = {"mask": {"ratio": ratio * slower / busy, "floor": floor * busy}}
    code = exit_code(lambda: limits.hold(found, limit))
    assert code in {0, 1, 3}
    assert code != 0 or slower < 1.5
    assert code != 1 or slower > 1.07
    assert code != 3 or not 1 / 1.14 < busy < 1.14


def test_limits_say_when_and_how_they_were_set_and_keep_those_of_other_rows(rows, machine, capsys, tmp_path):
    run_benchmark(capsys, "limits=write", "repeats=2")
    path = tmp_path / "limits.json"
    first = json.loads(path.read_text())
    rows["steady"] = machine.row(40.0, 0.5)
    run_benchmark(capsys, "limits=write", "rows=[steady]", "repeats=2")
    second = json.loads(path.read_text())
    assert second["limits"]["slowed"] == first["limits"]["slowed"]
    assert (first["limits"]["steady"], second["limits"]["steady"]) == (2.5, 100.0)
    assert {name: measured["floor"] for name, measured in second["measured"].items()} == {
        "steady": 0.5,
        "slowed": 1.0,
    }
    for name, measured in second["measured"].items():
        assert second["limits"][name] == pytest.approx(1.25 * measured["ratio"], rel=0.005)
        assert len(measured["date"]) == len("2026-01-01")
    assert "rows=[steady]" in second["how"]
    assert second["machine"]
    assert isinstance(second["numba"], bool)


def test_a_row_without_a_limit_is_refused_before_anything_is_measured(rows, capsys, tmp_path):
    run_benchmark(capsys, "limits=write", "rows=[steady]", "repeats=1")
    code, out, err = run_benchmark(capsys, "check=true")
    assert (code, out) == (2, "")
    assert "no limit is set for slowed" in err
    assert "1/2" not in err


def test_limits_that_were_set_with_other_compiled_code_are_refused(rows, capsys, tmp_path, monkeypatch):
    run_benchmark(capsys, "limits=write", "repeats=1")
    monkeypatch.setattr(limits, "available", lambda: False)
    code, out, err = run_benchmark(capsys, "check=true")
    assert (code, out) == (2, "")
    assert "set with numba, which cannot be used here" in err
    run_benchmark(capsys, "limits=write", "rows=[steady]", "repeats=1")  # and no file mixes the two
    assert list(json.loads((tmp_path / "limits.json").read_text())["limits"]) == ["steady"]


def test_no_limits_at_all_are_refused(rows, capsys):
    code, out, err = run_benchmark(capsys, "check=true")
    assert (code, out) == (2, "")
    assert "limits=write" in err


def test_setting_and_checking_at_once_is_refused(rows, capsys, tmp_path):
    code, _, err = run_benchmark(capsys, "check=true", "limits=write")
    assert code == 2
    assert "would hold in any case" in err
    assert not (tmp_path / "limits.json").exists()


def test_the_median_of_three_measurements_is_held_to_the_limit(rows, machine, capsys, monkeypatch):
    """So that one busy measurement of three is forgiven, and one lucky one hides nothing."""
    run_benchmark(capsys, "limits=write", "repeats=3")
    for ours, expected in (((9.0, 2.0, 2.0), 0), ((2.0, 3.0, 3.0), 1)):
        made = iter(ours)
        rows["slowed"] = lambda made=made: machine.row(next(made))()
        assert run_benchmark(capsys, "check=true", "repeats=3", "output=json")[0] == expected


def test_shipped_limits_cover_every_row_and_break_at_a_slip_of_one_and_a_half():
    document, known = json.loads(limits.LIMITS.read_text()), limits.read()
    assert set(known) == set(benchmark.ROWS)
    for name, limit in known.items():
        measured = document["measured"][name]
        assert limit.ratio == pytest.approx(1.25 * measured["ratio"], rel=0.005), name
        assert limit.floor == measured["floor"], name
        for busy in (1.0, 1.149):
            slow = {"ratio": 1.5 * measured["ratio"] / busy, "floor": busy * measured["floor"]}
            with pytest.raises(RunStoppedError, match=name):
                limits.hold({name: slow}, known)
        limits.hold({name: measured}, known)

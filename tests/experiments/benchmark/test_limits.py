"""`check=true`: a row that became 1.5 times as slow breaks its limit, and the command says which."""

import json
from functools import partial

import numpy as np
import pytest

from benchmark_runs import run_benchmark
from experiments.benchmark import __main__ as benchmark
from experiments.benchmark import limits
from experiments.benchmark.row import Row
from fedmf.updates.rotation import hadamard


def work(times):
    """Return real work of the benchmark, `times` over: 1.5 times as much of it is a slip of 1.5, whatever the machine."""
    vectors = np.random.default_rng(0).standard_normal((times, 1 << 15), dtype=np.float32)
    return lambda: [hadamard(vector) for vector in vectors]


def row(times):
    return Row(work(times), work(4), "four of them")


@pytest.fixture
def rows(monkeypatch, tmp_path):
    """Two rows at their usual speed, and limits that are set from them."""
    mine = {"steady": partial(row, 4), "slowed": partial(row, 4)}
    monkeypatch.setattr(benchmark, "ROWS", mine)
    monkeypatch.setattr(limits.read, "__defaults__", (tmp_path / "limits.json",))
    monkeypatch.setattr(limits.write, "__defaults__", (tmp_path / "limits.json",))
    return mine


def test_a_slip_of_one_and_a_half_exits_1_and_is_named(rows, capsys, tmp_path):
    code, _, _ = run_benchmark(capsys, "limits=write", "repeats=9")
    assert code == 0
    code, out, err = run_benchmark(capsys, "check=true", "repeats=9", "output=json")
    assert (code, set(json.loads(out))) == (0, {"steady", "slowed"})
    assert "slower" not in err
    rows["slowed"] = partial(row, 6)
    code, out, err = run_benchmark(capsys, "check=true", "repeats=9", "output=json")
    assert code == 1
    assert json.loads(out)["slowed"]["ratio"] > 1.25  # it is printed all the same
    last = err.strip().splitlines()[-1]
    assert last.startswith("error: slower than their limits")
    assert "slowed (ratio 1." in last
    assert "steady" not in last


def test_limits_say_when_and_how_they_were_set_and_keep_those_of_other_rows(rows, capsys, tmp_path):
    run_benchmark(capsys, "limits=write", "repeats=2")
    path = tmp_path / "limits.json"
    first = json.loads(path.read_text())
    rows["steady"] = partial(row, 40)
    run_benchmark(capsys, "limits=write", "rows=[steady]", "repeats=2")
    second = json.loads(path.read_text())
    assert second["limits"]["slowed"] == first["limits"]["slowed"]
    assert second["limits"]["steady"] > 5 * first["limits"]["steady"]
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
    assert "set with numba, which is not installed here" in err
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


def test_a_busy_second_is_forgiven_and_a_slower_row_is_not():
    looks = iter([{"ratio": 3.0}, {"ratio": 1.0}])
    assert limits.least_of_looks("mask", lambda: next(looks), 1.25) == {"ratio": 1.0}
    looks = iter([{"ratio": 3.0}, {"ratio": 2.0}, {"ratio": 2.5}])
    assert limits.least_of_looks("mask", lambda: next(looks), 1.25) == {"ratio": 2.0}


def test_shipped_limits_cover_every_row_and_break_at_a_slip_of_one_and_a_half():
    document = json.loads(limits.LIMITS.read_text())
    assert set(document["limits"]) == set(benchmark.ROWS)
    for name, limit in document["limits"].items():
        assert 1.0 < limit / document["measured"][name]["ratio"] < 1.5, name

"""The benchmark: which rows there are, what a row says, that each does what it claims, and limits. Speed is not asserted."""

import json
import sys
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from torch.nn.utils import parameters_to_vector

from client.app import make_client_app
from experiments.benchmark import __main__ as benchmark, row as timing, rows
from experiments.benchmark.row import Row, check_limits, measure, read_limits
from experiments.benchmark.versus import work
from experiments.cli.command import guard
from experiments.reproduce import tools
from server.strategy import FedMF
from without_numba import without_numba

TINY = rows.Federation("logistic", 3, cohort_size=4, examples=5)
TINY_ROWS = {
    "design_2048": partial(rows.design_row, 16),
    "gaussian_row": partial(rows.normals, 64),
    "correlation_step": partial(rows.correlation_step, 3, 64),
    "hadamard": partial(rows.rotation, 64),
    "mask": partial(rows.mask, 500, 0.1),
    "add_message": partial(rows.add_message, 500, 0.1),
    "server_round": partial(rows.server_round, 64, 4, 0.1, 3),
    "simulation_logistic": partial(rows.simulation, TINY, 1.5),
    "simulation_mlp": partial(rows.simulation, TINY, None),
    "simulation_cnn": partial(rows.simulation, TINY, 1.1),
}
ROOT = Path(benchmark.__file__).parents[2]
OURS = ("client", "experiments", "fedmf", "server")  # not all beneath ROOT: `make setup` puts .venv there
WORK = {"client/models.py"}  # what clients train is the same work on both sides


@pytest.fixture(autouse=True)
def short_turns(monkeypatch):
    monkeypatch.setattr(rows, "ROUNDS", 4)
    monkeypatch.setattr(timing, "_SHORTEST_TURN", 0.0)


@pytest.fixture
def call(capsys):
    """Call the command in this process, as its command line does, and return exit code, stdout and stderr."""

    def called(*arguments):
        with pytest.raises(SystemExit) as stop:
            tools.run(benchmark.benchmark, benchmark.BenchmarkSettings, benchmark.__doc__, arguments)
        return stop.value.code, *capsys.readouterr()

    return called


def test_json_holds_ratio_floor_and_goal_of_every_row_of_the_contract_and_a_page_the_table(
    call, monkeypatch, tmp_path
):
    assert set(TINY_ROWS) <= set(benchmark.ROWS) == set(read_limits(benchmark.ROWS))
    assert {row.func for row in TINY_ROWS.values()} == {row.func for row in benchmark.ROWS.values()}
    monkeypatch.setattr(benchmark, "ROWS", TINY_ROWS)
    page = tmp_path / "p.md"
    page.write_text("Before <!-- benchmark: rows --> old <!-- /benchmark --> after")
    code, out, err = call("repeats=1", "output=json", f"page={page}")
    assert code == 0
    results = json.loads(out)
    assert list(results) == list(TINY_ROWS)
    for name, row in results.items():
        assert row["ratio"] == pytest.approx(row["seconds"] / row["floor"])
        assert set(row) == {"ratio", "goal", "seconds", "floor", "floor_is", "turns"}
        assert row["floor"] > 0
        assert name in err
    assert "bare PyTorch loop with the same cohort: 4 clients" in results["simulation_cnn"]["floor_is"]
    text = page.read_text()
    assert text.startswith("Before <!-- benchmark: rows -->\n\n| row | ratio |")
    assert text.endswith("<!-- /benchmark --> after")
    assert "old" not in text
    assert f"torch {torch.__version__}" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("rows=[speed]", "hadamard"),
        ("rows=[]", "rows is empty"),
        ("rows=mask,hadamard", "rows"),
        ("device=tpu", "device"),
        ("pages=x", "pages is no setting"),
        ("repeats=0", "repeats"),
        ("device=cuda rows=[simulation_mlp]", "cuda"),
    ],
)
def test_mistakes_exit_2(call, monkeypatch, arguments, message):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    code, out, err = call(*arguments.split())
    assert (code, out) == (2, "")
    assert message in err


def test_a_large_round_is_measured_only_when_named_by_the_million_and_with_its_memory(call, monkeypatch):
    assert "round_100m" not in benchmark.ROWS
    units = []
    monkeypatch.setattr(rows, "measure", lambda row, turns: units.append(row.units) or measure(row, turns))
    monkeypatch.setattr(benchmark, "NAMED", {"round_100m": partial(rows.large_round, 2_000_000, 4, 0.001)})
    code, out, _ = call("rows=[round_100m]", "output=json")
    found = json.loads(out)["round_100m"]
    assert (code, found["goal"], units) == (0, 12, [2])
    assert 2e6 * 4 * 4 < found["most_memory"] < 64e9  # the model, its sum and its noise at least
    assert "2,000,000 parameters by the million" in found["floor_is"]
    assert f"{found['most_memory'] / 1e9:.1f} GB" in found["floor_is"]


def test_a_simulated_round_trains_each_client_and_is_played_again_and_again(monkeypatch):
    """The row times the real pipeline: the strategy asks the client app, and every call plays the same round.

    Only its noise differs: the noise stream goes on in place.
    """
    asked, states = [], []
    real_start = FedMF.start

    def watched(examples_of, *rest):
        return make_client_app(lambda *who: asked.append(who[0]) or examples_of(*who), *rest)

    def start(self, *arguments, **keywords):
        states.append(self.state)
        result = real_start(self, *arguments, **keywords)
        states.append(self.state)
        return result

    monkeypatch.setattr(rows, "make_client_app", watched)
    monkeypatch.setattr(FedMF, "start", start)
    play = rows.simulated_round(TINY)
    play()
    play()
    assert len(asked) == 3 * TINY.cohort_size
    assert asked[4:8] == asked[8:12]
    assert [state.round for state in states] == [0, 1, 1, 2, 1, 2]
    np.testing.assert_array_equal(states[2].model, states[4].model)
    assert np.abs(states[3].model - states[2].model).max() > 0


def test_the_bare_loop_is_local_sgd_from_the_same_start_for_every_client():
    model = TINY.build()
    cohort = [(torch.from_numpy(one.x), torch.from_numpy(one.y)) for one in TINY.cohort()]
    before = parameters_to_vector(model.parameters()).detach().clone()
    torch.manual_seed(0)
    both = work.bare_round(model, cohort[:1] * 2)
    torch.testing.assert_close(parameters_to_vector(model.parameters()).detach(), before)
    torch.manual_seed(0)
    torch.testing.assert_close(both, work.bare_round(model, cohort[:1]), atol=1e-6, rtol=1e-5)


def test_on_a_device_rows_are_in_wall_time_and_no_limit_holds(call, monkeypatch):
    """A CPU stands for the device: pick_device and the clock are those of a machine that has one."""
    monkeypatch.setattr(benchmark, "pick_device", lambda device: torch.device("cpu"))
    monkeypatch.setattr(benchmark, "ON_CUDA", {"simulation_mlp": TINY_ROWS["simulation_mlp"]})
    ticks = iter(range(10_000))
    monkeypatch.setattr(benchmark, "cuda_clock", lambda: float(next(ticks)))
    code, out, _ = call("device=cuda", "repeats=1", "output=json")
    assert (code, json.loads(out)["simulation_mlp"]["seconds"]) == (0, 1.0)
    assert call("device=cuda", "check=true")[0] == 2


@contextmanager
def files_run():
    """Collect the files of ours in which a function runs, those of the benchmark itself aside."""
    found = set()

    def look(frame, event, argument):
        path = Path(frame.f_code.co_filename)
        if event == "call" and any(path.is_relative_to(ROOT / room) for room in OURS):
            found.add(str(path.relative_to(ROOT)))

    sys.setprofile(look)
    try:
        yield found
    finally:
        sys.setprofile(None)
        found -= {name for name in found if name.startswith("experiments/benchmark/")}


@pytest.mark.parametrize(
    "name", [name for name in TINY_ROWS if name not in ("simulation_mlp", "simulation_cnn")]
)
def test_a_floor_runs_no_code_of_ours(name):
    """A slip that slows the floor as well would never show."""
    with without_numba():
        row = TINY_ROWS[name]()
        row.floor(), row.run()  # what is imported or compiled at a first call is no part of it
        with files_run() as found:
            row.floor()
        assert found <= WORK
        with files_run() as found:
            row.run()
        assert found - WORK  # which the look would have seen


class Machine:
    """CPU time that passes only when an action says how much it takes."""

    def __init__(self):
        self.now = 0.0

    def taking(self, *seconds, warm=(0.0, 0.0)):
        """Return an action that takes the next of `seconds` at each call, the last one for ever, after two that warm up."""
        left = [*warm, *seconds]

        def action():
            self.now += left.pop(0) if len(left) > 1 else left[0]

        return action

    def row(self, ours, floor=1.0):
        """Return what makes a row of so many seconds."""
        return lambda: Row(self.taking(ours), self.taking(floor), "a second")


@pytest.fixture
def machine(monkeypatch):
    machine = Machine()
    monkeypatch.setattr(timing.time, "process_time", lambda: machine.now)
    return machine


def test_the_turn_with_the_median_ratio_counts(machine):
    """A slow minute makes both slow: the median of our times over the median of the floors would be 30 / 2 here."""
    row = Row(machine.taking(30.0, 3.0, 40.0), machine.taking(10.0, 2.0, 2.0), "steps")
    measured = measure(row, 3, lambda: machine.now)
    assert (measured["ratio"], measured["seconds"], measured["floor"]) == (3.0, 30.0, 10.0)
    assert measured["turns"] == 3


@pytest.fixture
def limited(monkeypatch, tmp_path, machine, call):
    """Two rows whose limits are set at their usual speed."""
    mine = {"steady": machine.row(2.0), "slowed": machine.row(2.0)}
    monkeypatch.setattr(benchmark, "ROWS", mine)
    monkeypatch.setattr(timing, "LIMITS", tmp_path / "limits.json")
    assert call("limits=true", "repeats=3")[0] == 0
    return mine


def test_a_slip_exits_1_and_another_state_of_the_machine_3_and_each_row_is_named(limited, machine, call):
    code, out, err = call("check=true", "repeats=3", "output=json")
    assert (code, set(json.loads(out))) == (0, {"steady", "slowed"})
    assert "slower" not in err
    limited["slowed"] = machine.row(3.0)
    code, out, err = call("check=true", "repeats=3", "output=json")
    assert (code, json.loads(out)["slowed"]["ratio"]) == (1, 3.0)  # it is printed nevertheless
    assert "error: slower than their limits: slowed (ratio 3, limit 2.5). " in err
    for factor in (1.2, 0.8):  # floors that others slow down hide a slip
        limited["slowed"] = machine.row(3.0 * factor, factor)
        code, _, err = call("check=true", "repeats=3", "output=json")
        last = err.strip().splitlines()[-1]
        assert (code, last[:11]) == (3, "undecided, ")
        assert last.endswith(f": slowed (floor {factor:.2f} times as long).")
    limited["steady"] = machine.row(3.0)
    code, _, err = call("check=true", "repeats=3", "output=json")
    assert code == 1
    assert "slowed (floor" in err.splitlines()[-2]
    assert "steady (ratio 3, limit 2.5)" in err.splitlines()[-1]


@given(st.floats(0.2, 5.0), st.floats(0.2, 5.0), st.floats(0.01, 100.0), st.floats(1e-5, 10.0))
def test_a_row_that_takes_one_and_a_half_times_as_long_never_passes(slower, busy, ratio, floor):
    """Whatever became of the floor; and a row that takes as long as it took is never called slower."""
    found = {"mask": {"ratio": ratio * slower / busy, "floor": floor * busy}}
    try:
        code = guard(lambda: check_limits(found, {"mask": {"ratio": ratio, "floor": floor}}))
    except SystemExit as stop:
        code = stop.code
    assert code in {0, 1, 3}
    assert code != 0 or slower < 1.5
    assert code != 1 or slower > 1.07
    assert code != 3 or not 1 / 1.14 < busy < 1.14


def test_limits_keep_those_of_other_rows_and_one_without_is_refused_before_anything_is_measured(
    limited, machine, call, monkeypatch
):
    first = json.loads(timing.LIMITS.read_text())["measured"]
    limited["steady"] = machine.row(40.0, 0.5)
    call("limits=true", "rows=[steady]", "repeats=2")
    second = json.loads(timing.LIMITS.read_text())["measured"]
    assert second["slowed"] == first["slowed"]
    assert (first["steady"]["ratio"], first["steady"]["floor"]) == (2.0, 1.0)
    assert (second["steady"]["ratio"], second["steady"]["floor"]) == (80.0, 0.5)
    assert len(second["steady"]["date"]) == len("2026-01-01")
    assert second["steady"]["machine"]
    limited["another"] = machine.row(2.0)
    code, out, err = call("check=true")
    assert (code, out) == (2, "")
    assert "another has no limit" in err
    assert "1/3" not in err
    monkeypatch.setattr(timing, "available", lambda: False)  # set with numba
    code, _, err = call("check=true", "rows=[steady]")
    assert (code, "steady has no limit without numba" in err) == (2, True)
    call("limits=true", "rows=[steady]", "repeats=1")  # and no file mixes the two
    assert list(json.loads(timing.LIMITS.read_text())["measured"]) == ["steady"]


def test_the_median_of_three_measurements_is_compared_with_the_limit(limited, machine, call):
    """So that one busy measurement of three is forgiven, and one lucky one hides nothing."""
    for ours, expected in (((9.0, 2.0, 2.0), 0), ((2.0, 3.0, 3.0), 1)):
        made = iter(ours)
        limited["slowed"] = lambda made=made: machine.row(next(made))()
        assert call("check=true", "repeats=3", "output=json")[0] == expected

"""The benchmark: which rows there are, what a row says, that each does what it claims, and limits. Speed is not asserted."""

import json
import subprocess
import sys
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import client.models
from client.app import make_client_app
from experiments.benchmark import __main__ as benchmark, row as timing, rows
from experiments.benchmark.row import Row, check_limits, measure, read_limits
from experiments.benchmark.versus import ours, work
from experiments.cli.command import guard
from experiments.reproduce import tools
from oracles import without_numba
from server.strategy import FedMF

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
    results = json.loads(out)
    assert (code, list(results)) == (0, list(TINY_ROWS))
    for name, row in results.items():
        assert row["ratio"] == pytest.approx(row["seconds"] / row["floor"])
        assert set(row) == {"ratio", "goal", "seconds", "floor", "floor_is", "turns"}
        assert row["floor"] > 0
        assert name in err
    assert "bare PyTorch loop with the same cohort: 4 clients" in results["simulation_cnn"]["floor_is"]
    text = page.read_text()
    assert text.startswith("Before <!-- benchmark: rows -->\n\n| row | ratio |")
    assert text.endswith("<!-- /benchmark --> after")
    assert f"torch {torch.__version__}" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("rows=[speed]", "hadamard"),
        ("rows=[]", "rows is empty"),
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


def test_a_simulated_round_trains_each_client_and_is_played_again_and_again(monkeypatch):
    """The row times the real pipeline: the strategy asks the client app, and every call plays the same round.

    Only its noise differs: the noise stream continues in place.
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


@pytest.mark.parametrize("row", work.ROWS)
def test_the_bare_loop_is_local_sgd_of_the_models_of_our_clients_from_the_same_start_for_every_client(row):
    model, classes = work.ROWS[row]
    theirs = work.build(model, classes)
    mine = client.models.build(model, input_shape=work.SHAPE, classes=classes, seed=0)
    vector_to_parameters(parameters_to_vector(mine.parameters()), theirs.parameters())
    x = torch.randn(3, *work.SHAPE)
    torch.testing.assert_close(theirs(x), mine(x))
    assert rows.Federation(*work.ROWS[row]).cohort()[0].x.shape == (work.EXAMPLES, *work.SHAPE)
    model = TINY.build()
    cohort = [(torch.from_numpy(one.x), torch.from_numpy(one.y)) for one in TINY.cohort()]
    before = parameters_to_vector(model.parameters()).detach().clone()
    torch.manual_seed(0)
    both = work.bare_round(model, cohort[:1] * 2)
    torch.testing.assert_close(parameters_to_vector(model.parameters()).detach(), before)
    torch.manual_seed(0)
    torch.testing.assert_close(both, work.bare_round(model, cohort[:1]), atol=1e-6, rtol=1e-5)


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

    def taking(self, *seconds):
        """Return an action that takes the next of `seconds` at each call, the last one for ever, after two that warm up."""
        left = [0.0, 0.0, *seconds]

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
    monkeypatch.setattr(work, "cpu_seconds", lambda: machine.now)
    return machine


@pytest.fixture
def limited(monkeypatch, tmp_path, machine, call):
    """Two rows whose limits are set at their usual speed."""
    mine = {"steady": machine.row(2.0), "slowed": machine.row(2.0)}
    monkeypatch.setattr(benchmark, "ROWS", mine)
    monkeypatch.setattr(timing, "LIMITS", tmp_path / "limits.json")
    assert call("limits=true", "repeats=3")[0] == 0
    return mine


def test_the_turn_with_the_median_ratio_counts_and_the_median_of_three_measurements(limited, machine, call):
    """A slow minute makes both slow: the median of our times over the median of the floors would be 30 / 2 here."""
    row = Row(machine.taking(30.0, 3.0, 40.0), machine.taking(10.0, 2.0, 2.0), "steps")
    measured = measure(row, 3, lambda: machine.now)
    assert [measured[key] for key in ("ratio", "seconds", "floor", "turns")] == [3.0, 30.0, 10.0, 3]
    for ours_, expected in (((9.0, 2.0, 2.0), 0), ((2.0, 3.0, 3.0), 1)):
        made = iter(ours_)
        limited["slowed"] = lambda made=made: machine.row(next(made))()
        assert call("check=true", "repeats=3", "output=json")[0] == expected


def test_a_slip_exits_1_and_another_state_of_the_machine_3_and_each_row_is_named(limited, machine, call):
    code, out, err = call("check=true", "repeats=3", "output=json")
    assert (code, set(json.loads(out)), "slower" in err) == (0, {"steady", "slowed"}, False)
    limited["slowed"] = machine.row(3.0)
    code, out, err = call("check=true", "repeats=3", "output=json")
    assert (code, json.loads(out)["slowed"]["ratio"]) == (1, 3.0)  # it is printed nevertheless
    assert "error: slower than their limits: slowed (ratio 3, limit 2.5). " in err
    for factor in (1.2, 0.8):  # floors that others slow down hide a slip
        limited["slowed"] = machine.row(3.0 * factor, factor)
        code, _, err = call("check=true", "repeats=3", "output=json")
        assert code == 3
        assert err.strip().endswith(f": slowed (floor {factor:.2f} times as long).")
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


def test_a_turn_beside_other_systems_is_a_round_of_the_same_work_and_the_bare_loop(machine, monkeypatch):
    def bare(model, clients):
        machine.now += 2.0

    monkeypatch.setattr(work, "bare_round", bare)
    turns, costs, played = (
        work.Turns("simulation_mlp", 3),
        iter((50.0, 6.0, 2.0, 8.0)),
        0,
    )  # the first warms up
    wanted = True
    while wanted:
        machine.now += next(costs)
        played += 1
        wanted = turns(work.CLIENTS * work.EXAMPLES)
    assert (played, turns.result()) == (4, {"ratio": 3.0, "seconds": 6.0, "floor": 2.0})
    with pytest.raises(ValueError, match="a round trained on 5 examples instead of 2000"):
        turns(5)
    asked = []
    monkeypatch.setattr(ours, "simulated_round", lambda federation: lambda: asked.append(federation))
    ours.play(work.Turns("simulation_mlp", 2))
    assert asked == [rows.Federation("mlp", 10)] * 3


@pytest.mark.slow
@pytest.mark.ray
def test_flowers_engine_plays_rounds_in_turns():
    """The script imports torch, Flower and its siblings: our environment has them too."""
    script = [
        sys.executable,
        Path(work.__file__).with_name("with_flower.py"),
        "simulation_logistic",
        "--repeats",
        "1",
    ]
    done = subprocess.run(script, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout[done.stdout.index("{") :])["simulation_logistic"]
    assert found["ratio"] == pytest.approx(found["seconds"] / found["floor"])

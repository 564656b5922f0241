"""The benchmark: which rows there are, what a row says, that each does what it claims, and limits. Speed is not asserted."""

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import client.models
from experiments.benchmark import __main__ as benchmark, row as timing, rows
from experiments.benchmark.row import Row, measure, read_limits
from experiments.benchmark.versus import work
from experiments.reproduce import tools
from runs import ended

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
}


@pytest.fixture(autouse=True)
def short_turns(monkeypatch):
    monkeypatch.setattr(rows, "ROUNDS", 4)
    monkeypatch.setattr(timing, "_SHORTEST_TURN", 0.0)


@pytest.fixture
def call(capsys):
    """Call the command in this process, as its command line does, and return exit code, stdout and stderr."""
    run = partial(tools.run, benchmark.benchmark, benchmark.BenchmarkSettings, benchmark.__doc__)
    return lambda *arguments: ended(capsys, run, arguments)


def test_json_holds_ratio_floor_and_goal_of_every_row_and_a_page_the_table(call, monkeypatch, tmp_path):
    assert set(TINY_ROWS) <= set(benchmark.ROWS) == set(read_limits(benchmark.ROWS))
    assert {row.func for row in TINY_ROWS.values()} == {row.func for row in benchmark.ROWS.values()}
    monkeypatch.setattr(benchmark, "ROWS", TINY_ROWS)
    monkeypatch.setattr(benchmark, "NAMED", {"round_100m": partial(rows.large_round, 2_000_000, 4, 0.001)})
    page = tmp_path / "p.md"
    page.write_text("Before <!-- benchmark: rows --> old <!-- /benchmark --> after")
    code, out, err = call("repeats=1", "output=json", f"page={page}")
    results = json.loads(out)
    assert (code, list(results)) == (0, list(TINY_ROWS))  # those of NAMED only when they are asked for
    for name, row in results.items():
        assert row["ratio"] == pytest.approx(row["seconds"] / row["floor"])
        assert set(row) == {"ratio", "goal", "seconds", "floor", "floor_is", "turns"}
        assert name in err
    assert "bare PyTorch loop with the same cohort: 4 clients" in results["simulation_logistic"]["floor_is"]
    text = page.read_text()
    assert text.startswith("Before <!-- benchmark: rows -->\n\n| row | ratio |")
    assert text.endswith("<!-- /benchmark --> after")
    large = json.loads(call("rows=[round_100m]", "output=json")[1])["round_100m"]
    assert 2e6 * 4 * 4 < large["most_memory"] < 64e9  # the model, its sum and its noise at least
    assert "2,000,000 parameters by the million" in large["floor_is"]


@pytest.mark.parametrize(
    ("argument", "message"), [("rows=[speed]", "hadamard"), ("rows=[]", "rows is empty"), ("repeats=0", "repeats")]
)  # fmt: skip
def test_mistakes_exit_2(call, argument, message):
    code, out, err = call(argument)
    assert (code, out) == (2, "")
    assert message in err


@pytest.mark.parametrize("row", work.ROWS)
def test_the_bare_loop_trains_the_models_of_our_clients_from_the_same_start_for_every_client(row):
    model, classes = work.ROWS[row]
    theirs = work.build(model, classes)
    mine = client.models.build(model, input_shape=work.SHAPE, classes=classes, seed=0)
    vector_to_parameters(parameters_to_vector(mine.parameters()), theirs.parameters())
    x = torch.randn(3, *work.SHAPE)
    torch.testing.assert_close(theirs(x), mine(x))
    model = TINY.build()
    cohort = [(torch.from_numpy(one.x), torch.from_numpy(one.y)) for one in TINY.cohort()]
    before = parameters_to_vector(model.parameters()).detach().clone()
    torch.manual_seed(0)
    both = work.bare_round(model, cohort[:1] * 2)
    torch.testing.assert_close(parameters_to_vector(model.parameters()).detach(), before)
    torch.manual_seed(0)
    torch.testing.assert_close(both, work.bare_round(model, cohort[:1]), atol=1e-6, rtol=1e-5)


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


def test_the_turn_with_the_median_ratio_counts(call):
    """A slow minute makes both slow: the median of our times over the median of the floors would be 30 / 2 here."""
    machine = Machine()
    row = Row(machine.taking(30.0, 3.0, 40.0), machine.taking(10.0, 2.0, 2.0), "steps")
    measured = measure(row, 3, lambda: machine.now)
    assert [measured[key] for key in ("ratio", "seconds", "floor", "turns")] == [3.0, 30.0, 10.0, 3]


def test_a_slip_exits_1_and_another_state_of_the_machine_3_and_each_row_is_named(call, monkeypatch, tmp_path):
    machine = Machine()
    monkeypatch.setattr(timing.time, "process_time", lambda: machine.now)
    monkeypatch.setattr(timing, "LIMITS", tmp_path / "limits.json")

    def taking(ours, floor):
        return Row(machine.taking(ours), machine.taking(floor), "a second")

    def checked(*, ours=2.0, floor=1.0, more="check=true"):
        made = {"steady": partial(taking, 2.0, 1.0), "slowed": partial(taking, ours, floor)}
        monkeypatch.setattr(benchmark, "ROWS", made)
        code, out, err = call(more, "repeats=3", "output=json")
        return code, json.loads(out)["slowed"]["ratio"], err.strip()

    assert checked(more="limits=true")[0] == 0  # at their usual speed
    assert checked()[:2] == (0, 2.0)
    code, ratio, err = checked(ours=3.0)
    assert (code, ratio) == (1, 3.0)  # it is printed nevertheless
    assert "error: slower than their limits: slowed (ratio 3, limit 2.5). " in err
    for factor in (1.2, 0.8):  # floors that others slow down hide a slip
        code, _, err = checked(ours=3.0 * factor, floor=factor)
        assert code == 3
        assert err.endswith(f": slowed (floor {factor:.2f} times as long).")


@pytest.mark.slow
@pytest.mark.ray
def test_flowers_engine_plays_rounds_in_turns():
    """The script imports torch, Flower and its siblings: our environment has them too. A round of other work is an error."""
    script = Path(work.__file__).with_name("with_flower.py")
    command = [sys.executable, script, "simulation_logistic", "--repeats", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout[done.stdout.index("{") :])["simulation_logistic"]
    assert found["ratio"] == pytest.approx(found["seconds"] / found["floor"])
    with pytest.raises(ValueError, match="a round trained on 5 examples instead of 2000"):
        work.Turns("simulation_mlp", 3)(5)

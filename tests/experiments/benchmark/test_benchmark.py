"""The benchmark: which rows there are, what a row says, and that each does what it claims. Speed is not asserted."""

import json
from functools import partial

import numpy as np
import pytest
import torch
from torch.nn.utils import parameters_to_vector

from benchmark_runs import run_benchmark
from client.app import make_client_app
from experiments.benchmark import __main__ as benchmark, kernels, rounds, simulation
from experiments.benchmark.row import measure
from experiments.benchmark.simulation import Federation
from experiments.benchmark.versus import work
from server.strategy import FedMF

TINY = Federation("logistic", 3, cohort_size=4, examples=5)
TINY_ROWS = {
    "design_2048": partial(kernels.design_row, 16),
    "gaussian_row": partial(kernels.normals, 64),
    "correlation_step": partial(kernels.correlation_step, 3, 64),
    "hadamard": partial(kernels.rotation, 64),
    "mask": partial(kernels.mask, 500, 0.1),
    "add_message": partial(kernels.add_message, 500, 0.1),
    "server_round": partial(rounds.server_round, 64, 4, 0.1, 3),
    "simulation_logistic": partial(simulation.simulation, TINY, 1.5),
    "simulation_mlp": partial(simulation.simulation, TINY, None),
    "simulation_cnn": partial(simulation.simulation, TINY, 1.1),
}


@pytest.fixture(autouse=True)
def short_epochs(monkeypatch):
    monkeypatch.setattr(simulation, "ROUNDS", 4)
    monkeypatch.setattr("experiments.benchmark.row._SHORTEST_TURN", 0.0)


def test_every_row_of_the_contract_is_there():
    assert set(TINY_ROWS) <= set(benchmark.ROWS)


def test_json_holds_ratio_floor_and_goal_of_every_row(capsys, monkeypatch):
    monkeypatch.setattr(benchmark, "ROWS", TINY_ROWS)
    code, out, err = run_benchmark(capsys, "repeats=1", "output=json")
    assert code == 0
    results = json.loads(out)
    assert list(results) == list(TINY_ROWS)
    for name, row in results.items():
        assert row["ratio"] == pytest.approx(row["seconds"] / row["floor"])
        assert set(row) == {"ratio", "goal", "seconds", "floor", "floor_is", "turns"}
        assert row["floor"] > 0
        assert name in err
    assert "bare PyTorch loop with the same cohort: 4 clients" in results["simulation_cnn"]["floor_is"]


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("rows=[speed]", "hadamard"),
        ("rows=[]", "rows is empty"),
        ("rows=mask,hadamard", "rows"),
        ("device=tpu", "device"),
        ("pages=x", "The settings are rows"),
        ("repeats=0", "repeats"),
    ],
)
def test_mistakes_exit_2(capsys, argument, message):
    code, out, err = run_benchmark(capsys, argument)
    assert (code, out) == (2, "")
    assert message in err


def test_a_large_round_is_measured_only_when_named_by_the_million_and_with_its_memory(capsys, monkeypatch):
    assert "round_100m" not in benchmark.ROWS
    small, units = partial(rounds.large_round, 2_000_000, 4, 0.001), []
    monkeypatch.setattr(rounds, "measure", lambda row, turns: units.append(row.units) or measure(row, turns))
    monkeypatch.setattr(benchmark, "NAMED", {"round_100m": small})
    code, out, _ = run_benchmark(capsys, "rows=[round_100m]", "output=json")
    found = json.loads(out)["round_100m"]
    assert code == 0
    assert found["goal"] == 12
    assert 2e6 * 4 * 4 < found["most_memory"] < 64e9  # the model, its sum and its noise at least
    assert "2,000,000 parameters by the million" in found["floor_is"]
    assert f"{found['most_memory'] / 1e9:.1f} GB" in found["floor_is"]
    assert units == [2]


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

    monkeypatch.setattr(simulation, "make_client_app", watched)
    monkeypatch.setattr(FedMF, "start", start)
    play = simulation.simulated_round(TINY)
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


def test_a_page_gets_the_table_of_rows_and_where_it_was_measured(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(benchmark, "ROWS", {"mask": TINY_ROWS["mask"]})
    page = tmp_path / "p.md"
    page.write_text("Before <!-- benchmark: rows --> old <!-- /benchmark --> after")
    assert run_benchmark(capsys, "repeats=1", f"page={page}")[0] == 0
    text = page.read_text()
    assert text.startswith("Before <!-- benchmark: rows -->\n\n| row | ratio |")
    assert text.endswith("<!-- /benchmark --> after")
    assert "old" not in text
    assert f"torch {torch.__version__}" in text


def test_on_a_device_rows_are_in_wall_time_and_no_limit_holds(capsys, monkeypatch):
    """A CPU stands for the device: pick_device and the clock are those of a machine that has one."""
    monkeypatch.setattr(benchmark, "pick_device", lambda device: torch.device("cpu"))
    monkeypatch.setattr(benchmark, "ON_CUDA", {"simulation_mlp": TINY_ROWS["simulation_mlp"]})
    ticks = iter(range(10_000))
    monkeypatch.setattr(benchmark, "cuda_clock", lambda: float(next(ticks)))
    code, out, _ = run_benchmark(capsys, "device=cuda", "repeats=1", "output=json")
    assert (code, json.loads(out)["simulation_mlp"]["seconds"]) == (0, 1.0)
    assert run_benchmark(capsys, "device=cuda", "check=true")[0] == 2


def test_a_device_that_is_not_there_is_a_mistake(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert run_benchmark(capsys, "device=cuda", "rows=[simulation_mlp]")[0] == 2

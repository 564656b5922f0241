"""The benchmark: which rows there are, what a row says, and that each does what it claims. Speed is not asserted."""

import json
from functools import partial

import numpy as np
import pytest
import torch
from torch.nn.utils import parameters_to_vector

from benchmark_runs import run_benchmark
from client.app import make_client_app
from experiments.benchmark import __main__ as benchmark, mechanisms, rounds, simulation, updates
from experiments.benchmark.row import Row, measure
from experiments.benchmark.simulation import Federation
from fedmf.plan import Compression
from server.strategy import FedMF
from tasks import values_in

TINY = Federation("logistic", 3, cohort_size=4, examples=5)
TINY_ROWS = {
    "design_2048": partial(mechanisms.design_row, 16),
    "gaussian_row": partial(mechanisms.normals, 64),
    "correlation_step": partial(mechanisms.correlation_step, 3, 64),
    "hadamard": partial(updates.rotation, 64),
    "mask": partial(updates.mask, 500, 0.1),
    "add_message": partial(updates.add_message, 500, 0.1),
    "server_round": partial(rounds.server_round, 64, 4, 0.1, 3),
    "simulation_logistic": partial(simulation.simulation, TINY, 1.5),
    "simulation_mlp": partial(simulation.simulation, TINY, None),
    "simulation_cnn": partial(simulation.simulation, TINY, 1.1),
    "checkpoint": partial(rounds.checkpoint, TINY),
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


def test_the_table_is_for_people_and_rows_can_be_chosen(capsys, monkeypatch):
    monkeypatch.setattr(benchmark, "ROWS", TINY_ROWS)
    code, out, err = run_benchmark(capsys, "repeats=1", "rows=[mask]")
    assert code == 0
    assert "AES-256 in counter mode" in out
    assert "hadamard" not in out
    assert err == "1/1 mask\n"


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("rows=[speed]", "hadamard"),
        ("rows=[]", "rows is []; it must name a row"),
        ("rows=mask,hadamard", "rows"),
        ("repeats=0", "repeats"),
    ],
)
def test_mistakes_exit_2(capsys, argument, message):
    code, out, err = run_benchmark(capsys, argument)
    assert (code, out) == (2, "")
    assert message in err


def test_units_divide_the_time_of_a_call(monkeypatch):
    clock = iter(np.arange(100.0))  # every look at the clock is a second later
    monkeypatch.setattr("experiments.benchmark.row.time.process_time", lambda: next(clock))
    measured = measure(Row(lambda: None, lambda: None, "nothing", units=16), 3)
    assert (measured["seconds"], measured["floor"], measured["ratio"]) == (1 / 16, 1.0, 1 / 16)


def test_a_large_round_is_measured_only_when_named_by_the_million_and_with_its_memory(capsys, monkeypatch):
    assert "round_100m" not in benchmark.ROWS
    small, units = partial(rounds.large_round, 2_000_000, 4, 0.001), []
    monkeypatch.setattr(rounds, "measure", lambda row, turns: units.append(row.units) or measure(row, turns))
    monkeypatch.setattr(benchmark, "NAMED_ROWS", {"round_100m": small})
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


def test_prepared_clients_answer_with_values_of_the_right_length():
    """Another length would count as the zero vector and cost the server less."""
    plan = simulation.build_plan(64, 4, Compression(0.5))
    messages = []

    class Watching(rounds.PreparedClients):
        def collect(self, message_ids):
            replies = super().collect(message_ids)
            messages.extend(replies)
            return replies

    play = simulation.repeated_round(plan, np.zeros(64, np.float32), Watching(plan))
    strategy = play.args[0]
    assert not np.array_equal(strategy.state.model, np.zeros(64))
    sizes = [len(values) // 4 for message in messages for values in values_in(message)]
    assert len(sizes) == 4
    assert np.mean(sizes) == pytest.approx(32, abs=12)


def test_the_bare_loop_is_local_sgd_from_the_same_start_for_every_client():
    model, cohort = TINY.build(), simulation.tensors(TINY.cohort(), torch.device("cpu"))
    before = parameters_to_vector(model.parameters()).detach().clone()
    torch.manual_seed(0)
    both = simulation.bare_round(model, cohort[:1] * 2)
    torch.testing.assert_close(parameters_to_vector(model.parameters()).detach(), before)
    torch.manual_seed(0)
    torch.testing.assert_close(both, simulation.bare_round(model, cohort[:1]), atol=1e-6, rtol=1e-5)


def test_checkpointed_rounds_leave_a_bounded_folder():
    plan = simulation.build_plan(64, 4, Compression(0.5))
    row = rounds.CheckpointedRounds(plan, every=3)
    for _ in range(4):
        row()
    assert sorted(path.name for path in row.folder.iterdir()) == [
        "base-000009.npz",
        "base-000012.npz",
        "journal-000009.bin",
        "origin.json",
        "register-000000.bin",
        "secrets.npz",
    ]

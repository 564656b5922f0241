"""The work of the scripts beside other systems: the same models as ours, and turns that time the right rounds."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import client.models
from experiments.benchmark.rows import Federation
from experiments.benchmark.versus import ours, work

VERSUS = Path(work.__file__).parent


@pytest.mark.parametrize("row", work.ROWS)
def test_the_models_are_those_of_our_clients(row):
    model, classes = work.ROWS[row]
    theirs, mine = (
        work.build(model, classes),
        client.models.build(model, input_shape=work.SHAPE, classes=classes, seed=0),
    )
    vector_to_parameters(parameters_to_vector(mine.parameters()), theirs.parameters())
    x = torch.randn(3, *work.SHAPE)
    torch.testing.assert_close(theirs(x), mine(x))
    assert Federation(*work.ROWS[row]).cohort()[0].x.shape == (work.EXAMPLES, *work.SHAPE)


@pytest.fixture
def clock(monkeypatch):
    """CPU time that passes only when something is played."""
    now = [0.0]
    monkeypatch.setattr(work, "cpu_seconds", lambda: now[0])
    monkeypatch.setattr(work.time, "process_time", lambda: now[0])

    def bare(model, clients):
        now[0] += 2.0

    monkeypatch.setattr(work, "bare_round", bare)
    return now


def test_a_turn_is_a_round_of_the_same_work_and_the_bare_loop_and_the_first_round_warms_up(clock):
    turns, costs, played = work.Turns("simulation_mlp", 3), iter((50.0, 6.0, 2.0, 8.0)), 0
    wanted = True
    while wanted:
        clock[0] += next(costs)
        played += 1
        wanted = turns(work.CLIENTS * work.EXAMPLES)
    assert played == 4
    assert turns.result() == {"ratio": 3.0, "seconds": 6.0, "floor": 2.0}
    with pytest.raises(ValueError, match="a round trained on 5 examples instead of 2000"):
        turns(5)


def test_ours_plays_the_rounds_of_the_row(clock, monkeypatch):
    asked = []
    monkeypatch.setattr(ours, "simulated_round", lambda federation: lambda: asked.append(federation))
    ours.play(work.Turns("simulation_mlp", 2))
    assert asked == [Federation("mlp", 10)] * 3  # the first warms up


def test_a_command_line_without_rows_plays_all_and_an_unknown_row_is_named(clock, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["ours", "--repeats", "1"])
    work.main(lambda turns: turns.__dict__.update(result=lambda: turns.row))
    assert list(json.loads(capsys.readouterr().out)) == list(work.ROWS)
    monkeypatch.setattr(sys, "argv", ["ours", "simulation_mlp", "rnn"])
    with pytest.raises(SystemExit, match="2"):
        work.main(lambda turns: None)
    assert "no such row: rnn" in capsys.readouterr().err


def test_children_count_with_what_they_spent():
    before = work.cpu_seconds()
    child = subprocess.Popen(
        [sys.executable, "-c", "sum(i * i for i in range(3_000_000)); print(); input()"], stdin=-1, stdout=-1
    )
    child.stdout.readline()
    assert work.cpu_seconds() - before > 0.05  # while it lives
    child.communicate(b"\n")
    assert work.cpu_seconds() - before > 0.05


@pytest.mark.slow
@pytest.mark.ray
def test_flowers_engine_plays_rounds_in_turns():
    """The script imports torch, Flower and its siblings: our environment has them too."""
    script = [sys.executable, str(VERSUS / "with_flower.py"), "simulation_logistic", "--repeats", "1"]
    done = subprocess.run(script, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout[done.stdout.index("{") :])["simulation_logistic"]
    assert found["ratio"] == pytest.approx(found["seconds"] / found["floor"])

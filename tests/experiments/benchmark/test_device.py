"""`device=cuda`: the rows on a device, their clock, and what is refused beside them; the CPU takes the same code."""

import json
import time
from dataclasses import replace

import pytest
import torch

from benchmark_runs import run_benchmark
from client import resident
from client.on_device import DevicePrivatizer
from client.parameters import flat_parameters
from client.training import Trainer
from experiments.benchmark import __main__ as benchmark, row, simulation, updates
from experiments.benchmark.row import Row, measure
from experiments.benchmark.simulation import Federation
from fedmf.errors import SettingError

TINY = Federation("logistic", 3, cohort_size=4, examples=5)
without_cuda = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(simulation, "ROUNDS", 4)
    monkeypatch.setattr(row, "_SHORTEST_TURN", 0.0)
    for name in ("LOGISTIC", "MLP", "CNN", "UNROTATED"):
        monkeypatch.setattr(benchmark, name, TINY)
    monkeypatch.setattr(benchmark, "DIMENSION", 64)


@without_cuda
def test_without_a_device_it_is_refused_before_anything_is_measured(capsys):
    code, out, err = run_benchmark(capsys, "device=cuda")
    assert (code, out) == (2, "")
    assert "torch sees no CUDA device" in err
    assert "1/" not in err


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        (["compare=[pfl]", "rows=[simulation_mlp]"], "compare"),
        (["check=true"], "check"),
        (["limits=write"], "limits=write"),
        (["page=docs/performance.md"], "page"),
    ],
)
def test_what_is_made_of_cpu_times_is_refused_beside_it(capsys, monkeypatch, arguments, key):
    monkeypatch.setattr(benchmark, "pick_device", lambda device: None)  # as on a machine that has one
    code, out, err = run_benchmark(capsys, "device=cuda", *arguments)
    assert (code, out) == (2, "")
    assert f"beside {key}, which is about CPU time" in err


def test_a_row_that_has_nothing_to_do_with_a_device_is_refused(capsys):
    code, _, err = run_benchmark(capsys, "device=cuda", "rows=[mask]")
    assert code == 2
    assert "it must be one of privatize, simulation_logistic" in err


def test_the_clock_of_a_device_waits_until_its_work_is_done(monkeypatch):
    """Work that was only asked for would cost nothing: here it is done when the clock waits for it."""
    asked = []
    monkeypatch.setattr(
        torch.cuda, "synchronize", lambda: [time.sleep(0.05) for _ in range(len(asked))] and asked.clear()
    )
    measured = measure(Row(lambda: asked.append(1), lambda: None, "nothing"), 3, clock=row.cuda_clock)
    assert 0.05 < measured["seconds"] < 0.5
    assert measured["floor"] < 0.01


def test_clients_and_the_bare_loop_train_where_the_row_says(monkeypatch):
    places, real = [], Trainer.__init__

    def made(trainer, model, settings):
        places.append(settings.device)
        real(trainer, model, settings)

    monkeypatch.setattr(Trainer, "__init__", made)
    simulation.simulation(replace(TINY, device="auto"), None)
    assert set(places) == {"auto"}
    if not torch.cuda.is_available():
        with pytest.raises(SettingError, match="no CUDA device"):
            simulation.simulation(replace(TINY, device="cuda"), None)
    assert {made.args[0].device for name, made in benchmark.cuda_rows().items() if name != "privatize"} == {
        "cuda"
    }
    assert benchmark.cuda_rows()["privatize"].args == (64, 0.01, "cuda")


def test_a_round_on_a_device_privatizes_there(monkeypatch):
    """A CPU whose memory counts as its own stands in for the device: every client's update is privatized on it."""
    privatized, real = [], DevicePrivatizer.privatize

    def privatize(self, update, **given):
        privatized.append(len(update))
        return real(self, update, **given)

    monkeypatch.setattr(DevicePrivatizer, "privatize", privatize)
    play = simulation.simulated_round(TINY)
    assert privatized == []
    monkeypatch.setattr(resident, "has_own_memory", lambda device: True)
    play = simulation.simulated_round(TINY)
    privatized.clear()
    play()
    assert privatized == [len(flat_parameters(TINY.build()))] * TINY.cohort_size


def test_privatizing_on_a_device_brings_back_a_share_of_what_its_floor_does():
    made = updates.on_device(1000, 0.05, "cpu")
    values, finite = made.run()
    assert finite
    assert len(values) < 120
    assert len(made.floor()) == 1000
    assert "1,000 float32" in made.floor_is


@pytest.mark.gpu
def test_the_command_measures_on_a_device(capsys):
    code, out, err = run_benchmark(capsys, "device=cuda", "repeats=2", "output=json")
    assert code == 0, err
    results = json.loads(out)
    assert set(results) == {"privatize", *(name for name in benchmark.ROWS if name.startswith("simulation_"))}
    assert all(measured["ratio"] > 0 for measured in results.values())
    assert "on the device" in results["simulation_cnn"]["floor_is"]

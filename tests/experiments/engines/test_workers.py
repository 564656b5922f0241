"""Runs with several worker processes: the same bits as with one, on the devices that were named."""

import numpy as np
import pytest
import torch

import runs
from experiments.cli.command import guard
from experiments.engines.engine import shared_tasks
from experiments.session import simulation
from experiments.settings.client import build_for_clients
from experiments.settings.engine import LocalSettings, worker_devices
from experiments.settings.experiment import build
from fedmf.errors import SettingError
from runs import composed

# Two epochs, of which the second sends a scale with the model; few enough parameters for several clients a message.
OPTIONS = (
    *("population.cohort_size=20", "population.rounds_per_epoch=2", "population.epochs=2"),
    *("optimizer=adam", "optimizer.precondition=true", "run.reproducible=true", "output=json"),
    *("privacy.epsilon=null", "privacy.noise_multiplier=1"),
)
TWO = ("engine.workers=2", "engine.devices=[cpu,cpu]")


def test_workers_and_devices_change_no_bit(tmp_path):
    one = runs.run(tmp_path / "one", *OPTIONS)
    two = runs.run(tmp_path / "two", *OPTIONS, *TWO)
    np.testing.assert_array_equal(runs.model(one), runs.model(two))
    assert runs.metrics(one) == runs.metrics(two)


def test_a_worker_enforces_what_the_plan_of_the_run_says_and_trains_the_same_model():
    settings = composed(*OPTIONS)
    held, whole = build_for_clients(settings), build(settings)
    assert held.client_plan == whole.client_plan
    assert held.training == whole.training
    for ours, twin in zip(held.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(ours, twin)


def test_a_worker_trains_on_the_device_that_it_was_given(monkeypatch):
    chosen = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    settings = composed(*OPTIONS)
    assert build_for_clients(settings, "cpu").training.device == "cpu"
    assert chosen == []
    assert build_for_clients(settings, "cuda:1").training.device == "cuda"
    assert chosen == [torch.device("cuda:1")]


@pytest.mark.parametrize(
    ("given", "at_most", "shared"),
    [((), 50, 50), (("engine.workers=2",), 50, 3), (("engine.workers=2",), 2, 2), (("engine.workers=40",), 50, 1),
     (("faults.error=0.1",), 50, 1), (("engine.workers=2", "faults.error=0.1"), 50, 1), (("engine=ray",), 50, 3)],
)  # fmt: skip
def test_messages_hold_many_clients_unless_each_may_fail_on_its_own(given, at_most, shared):
    assert shared_tasks(composed("population.cohort_size=20", *given), at_most) == shared


def local(workers, devices=None):
    return LocalSettings("local", workers, devices)


@pytest.mark.parametrize(
    ("settings", "device", "found", "taken"),
    [
        (local(4), "auto", 0, ()),
        (local(4), "auto", 1, ()),
        (local(4), "auto", 2, ("cuda:0", "cuda:1")),
        (local(4), "cuda", 3, ("cuda:0", "cuda:1", "cuda:2")),
        (local(4), "cpu", 2, ()),
        (local(1), "auto", 2, ()),
        (local(2, ("cuda:1", "cpu")), "auto", 2, ("cuda:1", "cpu")),
        (local(2, ("cpu",)), "cpu", 0, ("cpu",)),
    ],
)
def test_without_a_choice_each_gpu_is_given_a_worker_and_then_the_next(settings, device, found, taken):
    assert worker_devices(settings, device, found) == taken


@pytest.mark.parametrize(
    ("devices", "device", "found", "said"),
    [
        (("cuda:0",), "auto", 0, "names cuda:0, but torch sees no CUDA device on this machine"),
        (("cpu", "cuda:2"), "auto", 2, "names cuda:2, but torch sees 2 CUDA devices, counted from 0 on"),
        (("cpu",), "cuda", 2, "names cpu, but client.device is cuda"),
        (("cuda:0",), "cpu", 2, "names cuda:0, but client.device is cpu"),
    ],
)
def test_a_device_that_is_not_there_or_not_meant_is_refused(devices, device, found, said):
    with pytest.raises(SettingError, match=said):
        worker_devices(local(2, devices), device, found)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("engine.workers=2", "engine.devices=[gpu]"), "engine.devices names 'gpu'; a device is cpu or cuda:N"),
        (("engine.devices=[cpu]",), "but engine.workers is 1, and one process computes on client.device"),
        (("engine.workers=2", "engine.devices=[cpu,cpu,cpu]"), "is [cpu,cpu,cpu] for engine.workers=2"),
        (("engine.workers=2", "engine.devices=[]"), "is [] for engine.workers=2"),
        (("engine.workers=2", "engine.devices=[cuda:99]"), "names cuda:99, but torch sees"),
    ],
)  # fmt: skip
def test_devices_that_cannot_be_taken_are_one_sentence_and_nothing_is_begun(
    given, said, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(simulation, "build", lambda settings: pytest.fail("it began"))
    assert guard(lambda: runs.simulate(composed(f"run.directory={tmp_path / 'r'}", *given))) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not (tmp_path / "r").exists()

"""A run whose process loses its device to one client is the run in which that client alone fails."""

import numpy as np
import pytest
import torch
from flwr.app import Context, RecordDict
from torch.utils._python_dispatch import _pop_mode

from experiments.deployment import apps
from experiments.engines.engine import run_engine
from experiments.engines.failures import ignore_failure
from experiments.engines.grid import set_identity
from experiments.settings.experiment import build
from plans import KEY
from runs import composed
from server.cohort import SimulatedPopulation
from server.state import first_state
from server.strategy import FedMF
from tasks import joint, untagged

pytestmark = pytest.mark.long

DATA = ("dataset=custom", "dataset.name=poison:load")


def model_named(*, dies):
    return (
        "model=custom",
        "model.name=poison:Net",
        f"model.settings={{dies: {'true' if dies else 'false'}}}",
    )


@pytest.fixture
def _device():
    """A device that works again after the test."""
    yield
    revive()


def revive():
    while torch._C._len_torch_dispatch_stack():
        _pop_mode()


def trained(*, dies, on_failure=ignore_failure):
    """The model after two epochs in two rounds each, with the engine of a simulation in this process."""
    settings = composed(
        *DATA, *model_named(dies=dies), "population.cohort_size=3", "population.epochs=2", "client.device=cpu"
    )
    experiment = build(settings)
    state = first_state(experiment.plan, experiment.initial, KEY)
    strategy = FedMF(experiment.plan, experiment.optimizer, SimulatedPopulation(), state, tasks_per_message=3)
    run_engine(settings, experiment, strategy, on_failure)
    revive()
    assert strategy.state.round == 4
    return strategy.state.model


@pytest.mark.usefixtures("_device")
def test_a_simulation_in_one_process_goes_on_bit_for_bit_without_its_device():
    heard = []
    np.testing.assert_array_equal(trained(dies=True, on_failure=heard.append), trained(dies=False))
    # In the second epoch another process plays the client: what it notes is told here.
    assert [failure.client for failure in heard] == ["2", "2"]
    assert all("device-side assert" in failure.reason for failure in heard)


@pytest.mark.usefixtures("_device")
def test_a_node_whose_device_is_lost_answers_for_all_its_other_clients(monkeypatch):
    monkeypatch.setattr(apps, "show_logs", lambda: None)
    set_identity()
    node = f"clients=6 {' '.join(DATA)}"
    replies = []
    for dies in (True, False):
        run = (
            " ".join(f"'{word}'" for word in model_named(dies=dies))
            + " client.device=cpu compression.keep_probability=1"
        )
        context = Context(1, 1, {"overrides": node}, RecordDict(), {"overrides": run})
        message = joint(*(f"a:{number}" for number in range(6)))
        reply = apps.client_app(message, context)
        replies.append(untagged(reply))
        revive()
    assert replies[0] == replies[1]
    silent = [not np.frombuffer(data, "f4").any() for data in replies[0]]
    assert silent == [False, False, True, False, False, False]

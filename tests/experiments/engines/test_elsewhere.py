"""A process that loses its device, or room on it, to one client: that client alone fails, and another process runs the rest."""

from functools import partial

import numpy as np
import pytest
import torch
from flwr.app import Context, RecordDict
from torch.utils._python_dispatch import _pop_mode

from experiments.deployment import apps
from experiments.engines.engine import engine_worker
from experiments.engines.grid import local_context, run_locally, set_identity
from experiments.engines.processes import in_another_process
from experiments.settings.experiment import build
from plans import KEY
from poison import app_of, app_that_dies, lose_device
from runs import composed
from server.cohort import SimulatedPopulation
from server.state import first_state
from server.strategy import FedMF, make_server_app
from tasks import joint, untagged

pytestmark = pytest.mark.long

DATA = ("dataset=custom", "dataset.name=poison:load")


def model_named(*, dies):
    return "model=custom", "model.name=poison:Net", f"model.settings={{dies: {str(dies).lower()}}}"


@pytest.fixture(autouse=True)
def _device():
    """A device that works again after the test."""
    set_identity()
    yield
    revive()


def revive():
    while torch._C._len_torch_dispatch_stack():
        _pop_mode()


def trained(*, dies, on_failure=lambda failure: None):
    """The model after two epochs in two rounds each, with the engine of a simulation in this process."""
    small = ("population.cohort_size=3", "population.epochs=2", "client.device=cpu")
    settings = composed(*DATA, *model_named(dies=dies), *small)
    experiment = build(settings)
    state = first_state(experiment.plan, experiment.initial, KEY)
    strategy = FedMF(experiment.plan, experiment.optimizer, SimulatedPopulation(), state, tasks_per_message=3)
    with engine_worker(settings, experiment) as worker:
        run_locally(make_server_app(lambda context: strategy), worker, on_failure)
    revive()
    assert strategy.state.round == 4
    return strategy.state.model


@pytest.mark.slow
def test_a_simulation_in_one_process_goes_on_bit_for_bit_without_its_device():
    heard = []
    np.testing.assert_array_equal(trained(dies=True, on_failure=heard.append), trained(dies=False))
    # In the second epoch another process plays the client: what it notes is told here.
    assert [failure.client for failure in heard] == ["2", "2"]
    assert all("device-side assert" in failure.reason for failure in heard)


def test_a_node_whose_device_is_lost_answers_for_all_its_other_clients(monkeypatch):
    monkeypatch.setattr(apps, "prepare", lambda: None)
    node = f"clients=6 {' '.join(DATA)} public={{shape:[2,2],classes:3}}"
    replies = []
    for dies in (True, False):
        model = " ".join(f"'{word}'" for word in model_named(dies=dies))
        run = f"{model} client.device=cpu compression.keep_probability=1"
        context = Context(1, 1, {"overrides": node}, RecordDict(), {"overrides": run})
        message = joint(*(f"a:{number}" for number in range(6)))
        reply = apps.client_app(message, context)
        replies.append(untagged(reply))
        revive()
    assert replies[0] == replies[1]
    silent = [not np.frombuffer(data, "f4").any() for data in replies[0]]
    assert silent == [False, False, True, False, False, False]


def played(app, *clients):
    """Return what each of `clients` sends, who share a message."""
    sent = untagged(app(joint(*clients), local_context()))
    revive()
    return dict(zip(clients, sent, strict=True))


def is_zero(values):
    return len(values) > 0 and not np.frombuffer(values, "f4").any()


@pytest.fixture(scope="module")
def alone():
    """What each client sends whom nobody left anything behind for."""
    set_identity()
    return {client: played(app_of(None), client)[client] for client in "123"}


def test_a_client_that_ends_the_other_process_too_silences_no_other(alone):
    clients = ("1", "special", "2", "3", "special")
    sent = played(app_of(lose_device, partial(in_another_process, app_that_dies)), *clients)
    assert is_zero(sent.pop("special"))
    assert sent == alone

"""A device without room before a client's data are read stops a run; what one client leaves behind costs no other."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import OutOfMemoryError
from torch.utils._python_dispatch import _pop_mode

from client.app import make_client_app
from experiments.engines import pool, processes
from experiments.engines.grid import InProcessWorker, LocalGrid, local_context, set_identity
from experiments.engines.pool import WorkerPool
from experiments.engines.processes import in_another_process
from fedmf.errors import DeviceLostError, RunStoppedError
from no_room import app_if_room, app_once, app_that_dies, play_in_new_process, refuse_room
from plans import KEY
from poison import PLAN, app_of, examples_of, fail, lose_device
from server.cohort import SimulatedPopulation
from server.optimizer import Sgd
from server.state import first_state
from server.strategy import FedMF
from tasks import joint, untagged

pytestmark = pytest.mark.long

CLIENTS = ("1", "special", "2", "3")


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    """Short pauses between tries, and a device that works again after the test."""
    set_identity()
    for module in (pool, processes):
        monkeypatch.setattr(module, "PAUSE", 0.1)
    yield
    while torch._C._len_torch_dispatch_stack():
        _pop_mode()


def played(app, *clients):
    """Return what each of `clients` sends, who share a message."""
    sent = untagged(app(joint(*clients), local_context()))
    while torch._C._len_torch_dispatch_stack():
        _pop_mode()
    return dict(zip(clients, sent, strict=True))


@pytest.fixture(scope="module")
def alone():
    """What each client sends whom nobody left anything behind for."""
    set_identity()
    return {client: played(app_of(None), client)[client] for client in "123"}


def is_zero(values):
    return len(values) > 0 and not np.frombuffer(values, "f4").any()


def test_what_making_the_first_trainer_raises_is_raised_at_once_and_else_costs_a_client_its_turn():
    arguments = examples_of, refuse_room, PLAN.client_plan
    with pytest.raises(OutOfMemoryError):
        make_client_app(*arguments, at_once=True)
    assert is_zero(played(make_client_app(*arguments), "1")["1"])


def lose_and_fill(full, model):
    """Lose the device, and leave no other process room on it."""
    full.touch()
    lose_device(model)


def test_where_no_process_can_begin_after_a_lost_device_nothing_is_released(tmp_path):
    full, heard, state = tmp_path / "full", [], first_state(PLAN, np.zeros(PLAN.dimension, "f4"), KEY)
    goes_on = partial(in_another_process, partial(app_if_room, full))

    def data(client, context):
        return examples_of("special", context)

    app = app_of(partial(lose_and_fill, full), goes_on, examples=data)
    strategy = FedMF(PLAN, Sgd(1.0), SimulatedPopulation(), state, tasks_per_message=5)
    with pytest.raises(RunStoppedError, match=r"lost device \(OutOfMemoryError: CUDA out.*; 3 tries"):
        strategy.start(LocalGrid(InProcessWorker(app), heard.append), num_rounds=1)
    assert strategy.state.round == 0
    assert len(strategy.state.register.spent) == 0
    assert heard == []


def test_a_client_that_ends_the_other_process_too_silences_no_other(alone):
    sent = played(app_of(lose_device, partial(in_another_process, app_that_dies)), *CLIENTS, "special")
    assert is_zero(sent.pop("special"))
    assert sent == alone


@pytest.mark.parametrize("spoil", [fail, lose_device])
def test_a_trainer_that_cannot_be_made_again_costs_nobody_but_the_client_before_it(alone, spoil):
    sent = played(app_once(spoil, play_in_new_process(spoil)), *CLIENTS)
    assert is_zero(sent.pop("special"))
    assert sent == alone


def test_without_another_process_a_trainer_that_cannot_be_made_again_ends_this_one():
    with pytest.raises(DeviceLostError, match="has no room; end this process"):
        app_once(fail)(joint(*CLIENTS), local_context())


def app_of_worker(settings):
    """Return the app of a worker that can make one trainer, and whose client "special" fails."""
    return app_once(fail)


def test_a_worker_that_cannot_make_a_trainer_again_gives_way_and_the_next_client_is_not_charged(alone):
    heard, clients = (
        [],
        ("special", "1", "2", "3"),
    )  # the first two are played in one go, and again one by one
    with WorkerPool(app_of_worker, None, 1) as workers:
        (reply,) = LocalGrid(workers, heard.append).send_and_receive([joint(*clients)])
    sent = dict(zip(clients, untagged(reply), strict=True))
    assert is_zero(sent.pop("special"))
    assert sent == alone
    assert [failure for failure in heard if failure.client != "special"] == []
    assert all(failure.has_sent for failure in heard)

"""The server's side of an extended run: a learning-rate schedule that has ended runs anew over the added epochs."""

import numpy as np
import pytest

from fedmf.mechanisms import design_run, of_run
from fedmf.mechanisms.schedules import rates
from plans import KEY, small_plan
from server.optimizer import Sgd
from server.state import apply_release, begin_epoch, first_state, make_release


@pytest.mark.parametrize("schedule", ["constant", "decay", "cooldown", "step"])
def test_steps_of_an_extended_run_are_those_of_each_parts_own_schedule(schedule):
    plan = small_plan(epochs=2, noise_multiplier=0.0, l2_norm=None, rotation="identity", schedule=schedule)
    plan = plan.extended(2, design_run("optimal", of_run(4, 1, 0.0, rates(schedule, 4))))
    state = first_state(plan, np.zeros(plan.dimension, np.float32), KEY)
    sizes = []
    for _ in range(plan.participation.rounds):
        before, state = state.model, begin_epoch(plan, state)
        release, secrets = make_release(plan, state, np.full(plan.rotation.padded, plan.denominator), [])
        state = apply_release(plan, Sgd(1.0, 0.0, schedule), state, release, secrets)
        sizes.append(np.abs(state.model - before).max())
    np.testing.assert_allclose(sizes, [*rates(schedule, 8), *rates(schedule, 4)], rtol=1e-5)
    assert state.secrets is None
    assert len(state.ledger.entries) == 3

"""Learning-rate schedules in the optimizer and in a run."""

from pathlib import Path

import numpy as np
import pytest

from fedmf.choices import SCHEDULES
from fedmf.errors import SettingError
from fedmf.mechanisms import momentum, workload as workloads
from fedmf.mechanisms.schedules import rates
from runs import model, run
from server.optimizer import Sgd

pytestmark = pytest.mark.long

ROUNDS = 40


def test_the_optimizer_scales_the_step_and_not_the_momentum() -> None:
    model, velocity, mean = (np.full(3, value, "f4") for value in (1.0, 2.0, 4.0))
    moved, slots = Sgd(0.1, 0.5, "decay").step(model, {"velocity": velocity}, mean, progress=0.75)
    kept = slots["velocity"]
    np.testing.assert_allclose(kept, 0.5 * velocity + mean)
    np.testing.assert_allclose(moved, model + 0.025 * kept, rtol=1e-6)
    assert moved.dtype == kept.dtype == np.float32


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_workload_of_the_same_schedule_is_what_the_optimizer_does(schedule: str) -> None:
    """Models of a run are learning rate times A x, A the workload with the schedule's rates."""
    means = np.random.default_rng(1).normal(size=(ROUNDS, 3)).astype("f4")
    optimizer, moved = Sgd(0.1, 0.5, schedule), np.zeros(3, "f4")
    slots = optimizer.first(moved)
    for done in range(ROUNDS):
        moved, slots = optimizer.step(moved, slots, means[done], progress=done / ROUNDS)
    workload = momentum(ROUNDS, 0.5, rates(schedule, ROUNDS))
    # 1e-5: forty steps in float32.
    np.testing.assert_allclose(moved, 0.1 * workloads.apply(workload, means.astype("f8"))[-1], rtol=1e-5)


def test_an_unknown_schedule_is_refused_at_once() -> None:
    with pytest.raises(SettingError, match="constant, decay, cosine, cooldown, step"):
        Sgd(0.1, 0.5, "linear")


@pytest.mark.parametrize(("rounds", "same"), [(1, True), (2, False)])
def test_a_run_follows_its_schedule_from_the_second_round_on(tmp_path: Path, rounds: int, same: bool) -> None:
    settings = [
        "population.cohort_size=5",
        f"population.rounds_per_epoch={rounds}",
        "population.epochs=1",
        "run.reproducible=true",
    ]
    constant = model(run(tmp_path / "constant", *settings))
    decay = model(run(tmp_path / "decay", *settings, "optimizer.schedule=decay"))
    assert np.array_equal(constant, decay) == same

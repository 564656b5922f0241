"""Learning-rate schedules, alone and in the optimizer."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from fedmf.errors import SettingError
from runs import model, run
from server.optimizer import Optimizer
from server.schedule import SCHEDULES, share

ROUNDS = 40


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_rates_begin_whole_never_grow_and_stay_positive(schedule: str) -> None:
    shares = [share(schedule, done / ROUNDS) for done in range(ROUNDS)]
    assert shares[0] == 1
    assert all(later <= earlier for earlier, later in pairwise(shares))
    assert shares[-1] > 0


def test_the_cooldown_spends_the_last_quarter_going_down_to_a_twentieth() -> None:
    shares = [share("cooldown", done / ROUNDS) for done in range(ROUNDS)]
    assert shares[:31] == [1.0] * 31
    np.testing.assert_allclose(np.diff(shares[30:]), -0.095, rtol=1e-12)
    assert share("cooldown", 1 - 1e-12) == pytest.approx(0.05)


def test_the_optimizer_scales_the_step_and_not_the_momentum() -> None:
    model, velocity, mean = (np.full(3, value, "f4") for value in (1.0, 2.0, 4.0))
    moved, kept = Optimizer(0.1, 0.5, "decay").step(model, velocity, mean, progress=0.75)
    np.testing.assert_allclose(kept, 0.5 * velocity + mean)
    np.testing.assert_allclose(moved, model + 0.025 * kept, rtol=1e-6)
    assert moved.dtype == kept.dtype == np.float32


def test_an_unknown_schedule_is_refused_at_once() -> None:
    with pytest.raises(SettingError, match="constant, decay, cooldown"):
        Optimizer(0.1, 0.5, "cosine")
    with pytest.raises(SettingError, match="progress is 1"):
        share("decay", 1.0)


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

"""Learning-rate schedules: one definition for the server and for the workloads fitted to it."""

from itertools import pairwise

import numpy as np
import pytest

from fedmf.choices import SCHEDULES
from fedmf.errors import SettingError
from fedmf.mechanisms import momentum
from fedmf.mechanisms.schedules import rates, share

ROUNDS = 40


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("rounds", [1, 2, 7, ROUNDS])
def test_rates_begin_whole_never_grow_and_stay_positive(schedule: str, rounds: int) -> None:
    shares = rates(schedule, rounds)
    assert len(shares) == rounds
    assert shares[0] == 1
    assert all(later <= earlier for earlier, later in pairwise(shares))
    assert shares[-1] > 0


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_longest_runs_stay_within_what_a_workload_takes(schedule: str) -> None:
    assert momentum(100_000, 0.9, rates(schedule, 100_000)).learning_rates is not None


def test_the_cooldown_spends_the_last_quarter_going_down_to_a_twentieth() -> None:
    shares = rates("cooldown", ROUNDS)
    assert shares[:31] == (1.0,) * 31
    np.testing.assert_allclose(np.diff(shares[30:]), -0.095, rtol=1e-12)
    assert share("cooldown", 1 - 1e-12) == pytest.approx(0.05)


def test_the_cosine_is_half_way_in_the_middle_and_ends_at_a_twentieth() -> None:
    assert share("cosine", 0.5) == pytest.approx((1 + 0.05) / 2)
    assert share("cosine", 1 - 1e-9) == pytest.approx(0.05)


@pytest.mark.parametrize("rounds", [1, 3, 4, 22, 40, 41])
def test_the_step_is_one_of_fifteen_hundredths_at_the_last_quarter_of_the_rounds(rounds: int) -> None:
    before = -(-3 * rounds // 4)  # the rounds of which fewer than three quarters come before
    assert rates("step", rounds) == (1.0,) * before + (0.15,) * (rounds - before)


def test_unknown_schedules_and_progress_outside_the_run_are_refused() -> None:
    with pytest.raises(SettingError, match="schedule is 'linear'; it must be one of constant, decay, cosine"):
        rates("linear", 3)
    for progress in (-0.1, 1.0, float("nan")):
        with pytest.raises(SettingError, match=f"progress is {progress}"):
            share("decay", progress)
    with pytest.raises(SettingError, match="rounds is 0"):
        rates("decay", 0)

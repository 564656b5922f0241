"""Noise multipliers for a target."""

import math

import pytest

from fedmf.accounting import (
    EpochEvent,
    calibrate_noise_multiplier,
    privacy_spent,
)
from fedmf.accounting.calibration import solve_noise_multiplier
from fedmf.errors import NotCoveredError, SettingError
from fedmf.updates.client_plan import default_linf_ratio
from oracles import ORACLE


@pytest.mark.parametrize("row", ORACLE["calibration"])
def test_calibration_matches_the_oracle(row):
    def epsilon_of(noise_multiplier):
        event = EpochEvent(noise_multiplier, row["gamma"], row["kinf_over_k2"])
        return privacy_spent(event, row["E"], delta=row["delta"]).epsilon_rdp

    found = solve_noise_multiplier(epsilon_of, row["target_eps"], start=row["gamma"])
    assert found == pytest.approx(row["z_sum"], rel=1e-3)
    assert found <= row["z_sum"] * (1 + 1e-7)  # the oracle's orders are a grid, ours are real


@pytest.mark.parametrize("adjacency", ["zero_out", "replace"])
@pytest.mark.parametrize("gamma", [1e-3, 0.3, 1.0])
@pytest.mark.parametrize("epsilon", [0.1, 3.0, 200.0])
def test_calibration_meets_its_target_from_below_and_no_less_noise_would(adjacency, gamma, epsilon):
    z = calibrate_noise_multiplier(
        epsilon=epsilon, delta=1e-6, keep_probability=gamma, linf_over_l2=0.05, epochs=7, adjacency=adjacency
    )
    found = privacy_spent(EpochEvent(z, gamma, 0.05), 7, delta=1e-6, adjacency=adjacency).epsilon
    assert found <= epsilon
    assert z == float(f"{z:.7e}")  # 8 digits
    less = (
        z * (1 - 1e-6)
        if adjacency == "replace"
        else float(f"{z - 10 ** (math.floor(math.log10(z)) - 7):.7e}")
    )
    assert privacy_spent(EpochEvent(less, gamma, 0.05), 7, delta=1e-6, adjacency=adjacency).epsilon > epsilon


def test_impossible_targets_are_refused():
    good = {"epsilon": 1.0, "delta": 1e-5, "keep_probability": 0.1, "linf_over_l2": 0.1, "epochs": 1}
    for name, value in (("epsilon", 0.0), ("delta", 1.0), ("epochs", 0), ("linf_over_l2", 2.0)):
        with pytest.raises(SettingError, match=name):
            calibrate_noise_multiplier(**{**good, name: value})
    with pytest.raises(NotCoveredError):
        calibrate_noise_multiplier(**good, accountant="tight", adjacency="replace")
    for epsilon in (1e-12, 1e-300):  # beyond the largest wherever the search starts
        with pytest.raises(SettingError, match=r"no noise multiplier below 1e\+12"):
            calibrate_noise_multiplier(**{**good, "epsilon": epsilon, "delta": 1e-300})


def test_the_default_infinity_norm_is_the_formula_and_at_most_one():
    assert default_linf_ratio(2**20, 100) == pytest.approx(0.005935076377073027, rel=1e-12)
    assert default_linf_ratio(10**6, 100) == default_linf_ratio(2**20, 100)  # padded
    assert default_linf_ratio(4, 10**6) == 1.0
    assert default_linf_ratio(10**6, 100, "identity") == 1.0

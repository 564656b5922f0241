"""(epsilon, delta) of runs: conversion, the order search, the exact Gaussian, both adjacencies, the ledger, and noise for a target."""

import dataclasses
import itertools
import json
import math

import pytest

from fedmf.accounting import (
    EpochEvent,
    Ledger,
    calibrate_noise_multiplier,
    divergence,
    gaussian_delta,
    gaussian_epsilon,
    privacy_spent,
    rdp,
)
from fedmf.accounting.calibration import solve_noise_multiplier
from fedmf.accounting.conversion import GRID, best_order, epsilon_of_order, joint_order, triangle
from fedmf.accounting.spent import spent
from fedmf.errors import DataError, NotCoveredError, SettingError
from fedmf.updates.client_plan import default_linf_ratio
from oracles import ORACLE, gaussian

EVENT = EpochEvent(noise_multiplier=0.05, keep_probability=0.01, linf_over_l2=0.006)
OTHER = EpochEvent(noise_multiplier=0.08, keep_probability=0.02, linf_over_l2=0.01)
PLAIN = EpochEvent(3.0, 1.0, 1.0)


def release(row):
    return EpochEvent(row["sigma_over_k2"], row["gamma"], row["kinf_over_k2"])


@pytest.mark.parametrize("row", ORACLE["epsilon"])
def test_epsilon_over_real_orders_and_at_integer_ones_matches_the_oracle(row):
    order = row["order_int_floor"]
    at_order = epsilon_of_order(order, row["E"] * rdp(release(row), order), row["delta"])
    assert at_order == pytest.approx(float(row["eps_int_floor"]), rel=1e-9, abs=0)
    found = privacy_spent(release(row), row["E"], delta=row["delta"])
    assert found.epsilon_rdp == pytest.approx(row["eps_continuous_floor"], rel=1e-9, abs=0)
    assert found.order == pytest.approx(row["order_continuous"], rel=1e-4, abs=0)
    assert found.epsilon_rdp <= float(row["eps_int_floor"])


def test_a_narrow_valley_between_grid_orders_is_found_although_another_seems_lower():
    shallow, deep = GRID[20], math.sqrt((GRID[27] - 1) * (GRID[28] - 1)) + 1

    def epsilon(order):
        away = [math.log((order - 1) / (place - 1)) for place in (shallow, deep)]
        return 3 - 0.04 * math.exp(-((away[0] / 0.3) ** 2)) - 0.05 * math.exp(-((away[1] / 0.15) ** 2))

    def curve(order):
        return epsilon(order) - epsilon_of_order(order, 10.0, 1e-5) + 10.0

    assert min(map(epsilon, GRID)) == pytest.approx(2.96, abs=1e-4)
    found, order = best_order(curve, 1e-5)
    assert found == pytest.approx(2.95, abs=1e-4)
    assert order == pytest.approx(deep, rel=0.01)


def test_epsilon_is_never_negative_nothing_costs_nothing_and_no_noise_is_infinite():
    assert epsilon_of_order(1e6, 0.0, 1e-5) == 0
    assert privacy_spent(EpochEvent(1e9, 0.1, 0.5), 1, delta=1e-5).epsilon == 0
    assert best_order(lambda _: 0.0, 1e-5)[0] == 0
    found = privacy_spent(EpochEvent(0.0, 0.01, 0.5), 0, delta=1e-5)
    assert (found.epsilon, found.order) == (0.0, None)
    for gamma, adjacency in itertools.product((0.1, 1.0), ("zero_out", "replace")):
        found = privacy_spent(EpochEvent(0.0, gamma, 0.5), 1, delta=1e-5, adjacency=adjacency)
        assert found.epsilon == found.epsilon_rdp == math.inf


def test_gaussian_profile_is_the_one_of_balle_and_wang_and_epsilon_its_inverse():
    for mu, epsilon in [(0.5, 0.3), (1.0, 2.0), (4.0, 1.0), (0.05, 0.01)]:
        assert gaussian_delta(epsilon, mu) == pytest.approx(gaussian(epsilon, mu), rel=1e-9, abs=0)
    for mu, delta in itertools.product((1e-3, 0.1, 1.0, 5.0, 40.0), (1e-2, 1e-6, 1e-12)):
        epsilon = gaussian_epsilon(mu, delta)
        if epsilon == 0:
            assert gaussian_delta(0.0, mu) <= delta
        else:
            assert gaussian_delta(epsilon, mu) == pytest.approx(delta, rel=1e-9, abs=0)


# (mu, delta): epsilon, by bisection of Balle and Wang's formula at 80 digits with mpmath.
SMALL_SIGNALS = {
    (1e-12, 1e-300): 3.619517737605931e-11,
    (1e-9, 1e-100): 2.0129806805062974e-08,
    (1e-6, 1e-15): 5.69907383194314e-06,
    (1e-3, 1e-8): 0.003924011098957865,
    (0.0999, 1e-5): 0.3402983240878075,
    (0.0999, 0.03): 0.02232589386911176,
}


@pytest.mark.parametrize("case", SMALL_SIGNALS)
def test_gaussian_epsilon_keeps_its_precision_for_small_signals(case):
    """There the two terms of the formula agree to all digits: subtracted, epsilon would come out too low."""
    assert gaussian_epsilon(*case) == pytest.approx(SMALL_SIGNALS[case], rel=1e-12, abs=0)


def test_the_gaussian_delta_and_epsilon_at_no_and_infinite_signal_and_out_of_range():
    assert (gaussian_delta(1.0, 0.0), gaussian_delta(1.0, math.inf)) == (0, 1)
    assert gaussian_epsilon(math.inf, 1e-5) == math.inf
    for name, call, *wrong in (
        ("epsilon", gaussian_delta, -1.0, 1.0),
        ("mu", gaussian_delta, 1.0, -1.0),
        ("delta", gaussian_epsilon, 1.0, 0.0),
    ):
        with pytest.raises(SettingError, match=f"^{name} is"):
            call(*wrong)


def test_without_sparsification_the_exact_number_is_reported_beside_a_larger_rdp_one():
    found = privacy_spent(EpochEvent(5.0, 1.0, 0.006), 16, delta=1e-5)
    assert (
        found.epsilon == found.epsilon_exact == pytest.approx(gaussian_epsilon(4 / 5, 1e-5), rel=1e-12, abs=0)
    )
    assert 1.04 < found.epsilon_rdp / found.epsilon < 1.09


def test_the_published_replacement_example():
    oracle = ORACLE["replacement"]
    p = oracle["params"]
    event = EpochEvent(p["z"], p["gamma"], p["r"])
    zero_out = privacy_spent(event, p["E"], delta=p["delta"])
    replace = privacy_spent(event, p["E"], delta=p["delta"], adjacency="replace")
    assert zero_out.epsilon == pytest.approx(oracle["zero_out"], rel=1e-3, abs=0)
    assert 3.66 < replace.epsilon <= 3.678
    at_its_order = divergence({event: p["E"]}, replace.order, "replace")
    assert epsilon_of_order(replace.order, at_its_order, p["delta"]) == pytest.approx(
        replace.epsilon, rel=1e-6
    )
    exact = privacy_spent(
        EpochEvent(p["z"] / p["gamma"], 1.0, 1.0), p["E"], delta=p["delta"], adjacency="replace"
    )
    assert exact.epsilon == pytest.approx(oracle["gdp2"], rel=1e-9, abs=0)


def mironov(curve, order, p):
    """Mironov 2017, Proposition 11, as printed."""
    q = p / (p - 1)
    return (order - 1 / p) / (order - 1) * curve(p * order) + curve(q * (order - 1 / p))


@pytest.mark.parametrize("order", [1.001, 1.7, 9.0, 3000.0])
@pytest.mark.parametrize("p", [1.01, 1.75, 2.0, 40.0])
def test_conjugate_orders_are_mironovs_triangle(order, p):
    b, c = p * order, p / (p - 1) * (order - 1 / p)
    assert joint_order(b, c) == pytest.approx(order, rel=1e-12, abs=0)
    for curve in (lambda a: a, lambda a: a**2, math.log):
        assert triangle(curve, b, c) == pytest.approx(mironov(curve, order, p), rel=1e-9, abs=0)


@pytest.mark.parametrize("row", ORACLE["shared_mask_and_replacement"])
def test_the_triangle_bound_matches_the_oracle_and_covers_true_replacements(row):
    t = row["kappa_over_sigma"]
    event = EpochEvent(1 / t, row["gamma"], 1.0)

    def curve(order):
        return rdp(event, order)

    order = row["alpha"]
    assert curve(order) == pytest.approx(row["theorem_bound"], rel=1e-9, abs=0)
    assert mironov(curve, order, 2.0) == pytest.approx(row["triangle_p2"], rel=1e-9, abs=0)
    assert triangle(curve, 2 * order, 2 * order - 1) == pytest.approx(row["triangle_p2"], rel=1e-9, abs=0)
    best = divergence({event: 1}, order, "replace")
    assert best == pytest.approx(row["triangle_opt"], rel=1e-3, abs=0)
    assert best >= max(row["replace_pm"], row["replace_half"])


@pytest.mark.parametrize("adjacency", ["zero_out", "replace"])
def test_a_huge_divergence_is_converted_at_an_order_close_to_one(adjacency):
    event, epochs, delta = EpochEvent(1e-5, 1e-3, 0.1), 10, 1e-9
    found = privacy_spent(event, epochs, delta=delta, adjacency=adjacency)
    assert found.order < 1.001
    assert found.epsilon < epsilon_of_order(1.001, divergence({event: epochs}, 1.001, adjacency), delta) * 0.9


def test_a_mixed_ledger_under_replacement_doubles_the_gaussian_part_only():
    plain, sparse = EpochEvent(4.0, 1.0, 1.0), EpochEvent(0.1, 0.01, 0.006)
    order = 5.0
    both = divergence({plain: 2, sparse: 3}, order, "replace")
    parts = divergence({plain: 2}, order, "replace") + divergence({sparse: 3}, order, "replace")
    assert both == pytest.approx(parts, rel=1e-9, abs=0)
    assert divergence({plain: 2}, order, "replace") == pytest.approx(
        4 * 2 * order / (2 * 16), rel=1e-12, abs=0
    )
    found = spent({plain: 2, sparse: 3}, delta=1e-5, adjacency="replace")
    assert found.epsilon > spent({plain: 2, sparse: 3}, delta=1e-5).epsilon


def test_accountants_and_adjacencies_that_do_not_exist_are_refused():
    good = {"event": EpochEvent(1.0, 0.5, 1.0), "epochs": 1, "delta": 1e-5}
    with pytest.raises(NotCoveredError, match="zero_out only"):
        privacy_spent(**good, accountant="tight", adjacency="replace")
    for name, wrong in (("accountant", "pld"), ("adjacency", "add_remove"), ("delta", 0.0), ("epochs", -1)):
        with pytest.raises(SettingError, match=f"^{name} is"):
            privacy_spent(**{**good, name: wrong})
    with pytest.raises(SettingError, match=r"^adjacency is"):
        divergence({}, 2.0, "add_remove")


def test_a_ledger_is_append_only_and_epsilon_follows_from_it_alone_to_the_last_bit():
    one = Ledger().record(EVENT)
    assert (Ledger().entries, one.entries) == ((), (EVENT,))
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.entries = ()
    assert {field.name for field in dataclasses.fields(Ledger)} == {
        "entries"
    }  # nothing smaller than an epoch
    assert Ledger().spent(delta=1e-5).epsilon == 0
    assert Ledger((EVENT,) * 5).spent(delta=1e-5) == privacy_spent(EVENT, 5, delta=1e-5)
    assert Ledger((EVENT, OTHER, EVENT)).spent(delta=1e-5) == Ledger((OTHER, EVENT, EVENT)).spent(delta=1e-5)
    ledger = Ledger((EVENT, OTHER, EpochEvent(1 / 3, 1.0, 0.1)))
    assert Ledger.from_json(ledger.to_json()) == ledger


@pytest.mark.parametrize("second", [OTHER, PLAIN])
def test_different_epochs_compose_by_adding_divergences(second):
    found = Ledger((EVENT, second, second)).spent(delta=1e-5)
    assert found.epsilon_exact is None
    total = rdp(EVENT, found.order) + 2 * rdp(second, found.order)
    assert found.epsilon == pytest.approx(epsilon_of_order(found.order, total, 1e-5), rel=1e-9, abs=0)
    assert found.epsilon > max(
        privacy_spent(EVENT, 1, delta=1e-5).epsilon, privacy_spent(second, 2, delta=1e-5).epsilon_rdp
    )


GOOD = {"format": "fedmf-ledger-1", "entries": [dataclasses.asdict(EVENT)]}


@pytest.mark.parametrize(
    "document",
    [
        "not json",
        "[]",
        json.dumps({**GOOD, "format": "fedmf-ledger-0"}),
        json.dumps({**GOOD, "entries": [{"noise_multiplier": 1.0}]}),
        json.dumps({**GOOD, "entries": [{**GOOD["entries"][0], "count": 2}]}),
        json.dumps({**GOOD, "entries": [{**GOOD["entries"][0], "noise_multiplier": "1"}]}),
    ],
)
def test_a_ledger_that_is_not_understood_is_refused(document):
    assert Ledger.from_json(json.dumps(GOOD)).entries == (EVENT,)
    with pytest.raises(DataError, match="cannot be read"):
        Ledger.from_json(document)


# noise multipliers for a target


@pytest.mark.parametrize("row", ORACLE["calibration"])
def test_calibration_matches_the_oracle(row):
    def epsilon_of(noise_multiplier):
        event = EpochEvent(noise_multiplier, row["gamma"], row["kinf_over_k2"])
        return privacy_spent(event, row["E"], delta=row["delta"]).epsilon_rdp

    found = solve_noise_multiplier(epsilon_of, row["target_eps"], start=row["gamma"])
    assert found == pytest.approx(row["z_sum"], rel=1e-3)
    assert found <= row["z_sum"] * (1 + 1e-7)  # the oracle's orders are a grid, ours are real
    assert found == solve_noise_multiplier(epsilon_of, row["target_eps"], start=found * (1 - 1e-5))


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
    for error, said, wrong in (
        *((SettingError, f"^{name} is", {name: value})
          for name, value in (("epsilon", 0.0), ("delta", 1.0), ("epochs", 0), ("linf_over_l2", 2.0),
                              ("keep_probability", 0.0), ("count_noise", -1.0))),
        (NotCoveredError, "zero_out only", {"accountant": "tight", "adjacency": "replace"}),
        *((SettingError, r"no noise multiplier below 1e\+12", {"epsilon": epsilon, "delta": 1e-300})
          for epsilon in (1e-12, 1e-300)),  # beyond the largest wherever the search starts
    ):  # fmt: skip
        with pytest.raises(error, match=said):
            calibrate_noise_multiplier(**{**good, **wrong})


def test_the_default_infinity_norm_is_the_formula_and_at_most_one():
    assert default_linf_ratio(2**20, 100) == pytest.approx(0.005935076377073027, rel=1e-12)
    assert default_linf_ratio(10**6, 100) == default_linf_ratio(2**20, 100)  # padded
    assert default_linf_ratio(4, 10**6) == 1.0
    assert default_linf_ratio(10**6, 100, "identity") == 1.0

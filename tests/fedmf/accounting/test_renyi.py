"""The Renyi curve of one epoch against the oracle, dp-accounting, and brute force over splits."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.rdp import RdpAccountant
from scipy.integrate import quad

from fedmf.accounting import EpochEvent, rdp, rdp_curve, rdp_per_coordinate
from fedmf.errors import SettingError

ORACLE = json.loads((Path(__file__).parent / "oracles.json").read_text())


def release(row):
    return EpochEvent(row["sigma"] / row["kappa2"], row["gamma"], min(1.0, row["kappainf"] / row["kappa2"]))


@pytest.mark.parametrize("form", ["floor", "ratio"])
@pytest.mark.parametrize("row", ORACLE["rdp_epoch"])
def test_curve_matches_the_oracle(row, form):
    assert rdp(release(row), row["alpha"], form) == pytest.approx(float(row[form]), rel=1e-9, abs=0)


@pytest.mark.parametrize("gamma", [1e-5, 1e-2, 0.5, 0.99])
@pytest.mark.parametrize("root", [0.01, 0.3, 2.0])
def test_integer_orders_agree_with_dp_accounting(gamma, root):
    orders = [2, 3, 5, 16, 64]
    accountant = RdpAccountant(orders)
    accountant.compose(dp_event.PoissonSampledDpEvent(gamma, dp_event.GaussianDpEvent(1 / root)))
    ours = [rdp_per_coordinate(order, root**2, gamma) for order in orders]
    # dp-accounting takes the logarithm of F itself, so small values carry an absolute error of about 1e-15.
    assert ours == pytest.approx(accountant._rdp, rel=1e-9, abs=1e-14)


def test_no_split_of_the_l2_norm_over_coordinates_costs_more_than_the_floor_form():
    rng = np.random.default_rng(2)
    event = EpochEvent(noise_multiplier=0.9, keep_probability=0.2, linf_over_l2=0.55)
    for order in (1.5, 4.0, 9.3):
        bound = rdp(event, order)
        for _ in range(50):
            squares = rng.dirichlet(np.full(8, 0.4))
            if squares.max() > event.linf_over_l2**2:
                continue
            cost = sum(rdp_per_coordinate(order, s / 0.9**2, 0.2) for s in squares)
            assert cost <= bound * (1 + 1e-12)


def test_the_worst_split_reaches_the_floor_form():
    event = EpochEvent(0.9, 0.2, 0.55)  # K = 3.306
    whole, rest = 0.55**2 / 0.81, (1 - 3 * 0.55**2) / 0.81
    expected = 3 * rdp_per_coordinate(4.4, whole, 0.2) + rdp_per_coordinate(4.4, rest, 0.2)
    assert rdp(event, 4.4) == pytest.approx(expected, rel=1e-13, abs=0)
    assert rdp(event, 4.4, "ratio") > rdp(event, 4.4) * (1 + 1e-6)


@pytest.mark.parametrize("order", [1.2, 2.0, 5.5])
@pytest.mark.parametrize("gamma", [0.02, 0.4, 0.9])
def test_removing_a_client_costs_no_more_than_adding_it(order, gamma):
    """F is the moment of (with client)/(without); the other direction is below it, for real orders too."""
    root = 0.8

    def integrand(x):
        density = math.exp(-x * x / 2) / math.sqrt(2 * math.pi)
        return density * (1 + gamma * math.expm1(root * x - root**2 / 2)) ** (1 - order)

    other = math.log(quad(integrand, -14, 14, epsabs=0, epsrel=1e-12)[0]) / (order - 1)
    assert 0 < other <= rdp_per_coordinate(order, root**2, gamma) * (1 + 1e-9)


@pytest.mark.parametrize("order", [1.0001, 1.5, 2.0, 31.7, 1e6])
@pytest.mark.parametrize("ratio", [1.0, 0.3, 0.005])
def test_without_sparsification_the_curve_is_the_gaussian_one(order, ratio):
    assert rdp(EpochEvent(0.7, 1.0, ratio), order) == order / (2 * 0.7 * 0.7)


@pytest.mark.parametrize("order", [1.5, 2.0, 8.25])
def test_keep_probability_near_one_tends_to_the_gaussian_curve(order):
    assert rdp(EpochEvent(0.7, 1 - 1e-12, 0.3), order) == pytest.approx(order / (2 * 0.49), rel=1e-9, abs=0)


def test_ratio_form_is_above_floor_form_and_equal_at_integer_k():
    assert rdp(EpochEvent(0.3, 0.1, 0.5), 3.3, "ratio") == pytest.approx(
        rdp(EpochEvent(0.3, 0.1, 0.5), 3.3), rel=1e-12, abs=0
    )
    assert rdp(EpochEvent(0.3, 0.1, 0.6), 3.3, "ratio") > rdp(EpochEvent(0.3, 0.1, 0.6), 3.3)


def test_curve_grows_with_order_signal_and_keep_probability():
    event = EpochEvent(0.05, 0.01, 0.01)
    curve = rdp_curve(event, [1.1, 1.5, 2, 3.7, 20, 300.5])
    assert curve.shape == (6,)
    assert (np.diff(curve) > 0).all()
    assert rdp(EpochEvent(0.06, 0.01, 0.01), 4.5) < rdp(event, 4.5)
    assert rdp(EpochEvent(0.05, 0.02, 0.01), 4.5) > rdp(event, 4.5)
    assert rdp(EpochEvent(0.05, 0.01, 0.02), 4.5) > rdp(event, 4.5)


def test_every_k_times_a_ulp_leaves_a_remainder_that_is_not_negative():
    for k in range(1, 2000):
        event = EpochEvent(0.5, 0.1, 1 / math.sqrt(k))
        floor, ratio = rdp(event, 2.0), rdp(event, 2.0, "ratio")
        assert floor == pytest.approx(ratio, rel=1e-10, abs=0)


def test_no_noise_is_infinite_at_every_order():
    assert rdp(EpochEvent(0.0, 0.01, 0.5), 1.5) == math.inf


@pytest.mark.parametrize("noise_multiplier", [1e-300, 1e-160, 1e-10, 1e-3, 1e8, 1e150])
@pytest.mark.parametrize("gamma", [1e-5, 0.3, 1.0])
def test_no_extreme_gives_not_a_number(noise_multiplier, gamma):
    for ratio in (1e-4, 0.3, 1.0):
        for order in (1.01, 2.0, 17.5, 1e4):
            value = rdp(EpochEvent(noise_multiplier, gamma, ratio), order)
            assert value >= 0, (ratio, order)


@pytest.mark.parametrize("order", [1.0, 0.5, -2.0, math.inf, math.nan])
def test_orders_of_one_and_below_are_refused(order):
    with pytest.raises(SettingError, match="above 1"):
        rdp(EpochEvent(1.0, 0.1, 0.5), order)


def test_an_unknown_form_is_refused():
    with pytest.raises(SettingError, match="form is 'paper'"):
        rdp(EpochEvent(1.0, 0.1, 0.5), 2.0, "paper")


@pytest.mark.parametrize(
    "values",
    [(-0.1, 0.5, 0.5), (math.nan, 0.5, 0.5), (1, 0.0, 0.5), (1, 1.1, 0.5), (1, 0.5, 0), (1, 0.5, 1.01)],
)
def test_impossible_events_are_refused(values):
    with pytest.raises(SettingError):
        EpochEvent(*values)


def test_a_curve_is_of_the_form_that_was_asked_for():
    event, orders = EpochEvent(0.5, 0.1, 0.45), [1.5, 2.0, 7.25]
    curves = {form: rdp_curve(event, orders, form) for form in ("floor", "ratio")}
    for form, curve in curves.items():
        assert curve.tolist() == [rdp(event, order, form) for order in orders]
    assert (curves["floor"] < curves["ratio"]).all()

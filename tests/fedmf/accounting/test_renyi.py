"""The Renyi curve of one epoch against oracles, dp-accounting and brute force; its moments; our epochs among dp_accounting's events."""

import itertools
import math

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant
from dp_accounting.privacy_accountant import NeighboringRelation, UnsupportedEventError
from dp_accounting.rdp import RdpAccountant
from scipy.integrate import quad
from scipy.special import gammaln

from fedmf.accounting import (
    EpochEvent,
    Ledger,
    divergence,
    gaussian_epsilon,
    privacy_spent,
    rdp,
    rdp_per_coordinate,
)
from fedmf.accounting.conversion import epsilon_of_order
from fedmf.accounting.dp_events import ZeroOutAccountant, to_dp_event
from fedmf.accounting.renyi import TWO_BUMPS, log_moment, log_moment_integral
from fedmf.accounting.tight import log_expm1
from fedmf.errors import NotCoveredError, SettingError
from oracles import ORACLE


def release(row):
    return EpochEvent(row["sigma"] / row["kappa2"], row["gamma"], min(1.0, row["kappainf"] / row["kappa2"]))


def papers_form(event, order):
    """K f_a(t), as the paper has it: above the floor form, and equal at an integer K."""
    return event.ratio * rdp_per_coordinate(
        order, event.linf_over_l2**2 / event.noise_multiplier**2, event.keep_probability
    )


@pytest.mark.parametrize("row", ORACLE["rdp_epoch"])
def test_curve_and_the_papers_form_match_the_oracle(row):
    event, order = release(row), row["alpha"]
    assert rdp(event, order) == pytest.approx(float(row["floor"]), rel=1e-9, abs=0)
    if event.keep_probability < 1:
        assert papers_form(event, order) == pytest.approx(float(row["ratio"]), rel=1e-9, abs=0)


def test_no_split_of_the_l2_norm_over_coordinates_costs_more_than_the_floor_form():
    rng = np.random.default_rng(2)
    event = EpochEvent(noise_multiplier=0.9, keep_probability=0.2, linf_over_l2=0.55)
    for order in (1.5, 4.0, 9.3):
        bound = rdp(event, order)
        for _ in range(50):
            squares = rng.dirichlet(np.full(8, 0.4))
            if squares.max() > event.linf_over_l2**2:
                continue
            assert sum(rdp_per_coordinate(order, s / 0.9**2, 0.2) for s in squares) <= bound * (1 + 1e-12)


def test_the_worst_split_reaches_the_floor_form():
    event = EpochEvent(0.9, 0.2, 0.55)  # K = 3.306
    whole, rest = 0.55**2 / 0.81, (1 - 3 * 0.55**2) / 0.81
    expected = 3 * rdp_per_coordinate(4.4, whole, 0.2) + rdp_per_coordinate(4.4, rest, 0.2)
    assert rdp(event, 4.4) == pytest.approx(expected, rel=1e-13, abs=0)
    assert papers_form(event, 4.4) > rdp(event, 4.4) * (1 + 1e-6)


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
    exact = order / (2 * 0.7 * 0.7)
    assert rdp(EpochEvent(0.7, 1.0, ratio), order) == exact
    if order < 100:
        assert rdp(EpochEvent(0.7, 1 - 1e-12, ratio), order) == pytest.approx(exact, rel=1e-9, abs=0)


def test_every_k_times_a_ulp_leaves_a_remainder_that_is_not_negative():
    for k in range(1, 2000):
        event = EpochEvent(0.5, 0.1, 1 / math.sqrt(k))
        assert rdp(event, 2.0) == pytest.approx(papers_form(event, 2.0), rel=1e-10, abs=0)


@pytest.mark.parametrize("noise", [0.0, 1e-300, 1e-160, 1e-10, 1e-3, 1e8, 1e150])
@pytest.mark.parametrize("gamma", [1e-5, 0.3, 1.0])
def test_no_extreme_gives_not_a_number_and_none_overflows_to_a_small_one(noise, gamma):
    for ratio, order in itertools.product((1e-4, 0.3, 1.0), (1.01, 2.0, 17.5, 1e4, 1e8)):
        value = rdp(EpochEvent(noise, gamma, ratio), order)
        assert value >= 0, (ratio, order)
        assert value == math.inf or noise > 0
        assert value > 1e8 or noise > 1e-3 or gamma < 0.3 or order < 1e4


@pytest.mark.parametrize("order", [1.0, 0.5, -2.0, math.inf, math.nan])
def test_orders_of_one_and_below_are_refused(order):
    with pytest.raises(SettingError, match="above 1"):
        rdp(EpochEvent(1.0, 0.1, 0.5), order)


@pytest.mark.parametrize(
    "values",
    [(-0.1, 0.5, 0.5), (math.nan, 0.5, 0.5), (1, 0.0, 0.5), (1, 1.1, 0.5), (1, 0.5, 0), (1, 0.5, 1.01)],
)
def test_impossible_events_are_refused(values):
    with pytest.raises(SettingError):
        EpochEvent(*values)


# (order, sqrt(t), gamma, log F), by 40-digit quadrature of (1 + y)^a - 1 - a y.
GOLDEN = [
    (1.05, 0.3, 0.01, 2.469810164070482e-07),
    (2.5, 0.0001, 1e-05, 1.8750000093750942e-18),
    (6.4668, 0.1187, 0.01, 2.509751841382392e-05),
    (33.3, 0.02, 0.0001, 2.1516129878153946e-09),
    (1.5, 10.0, 1e-05, 20.230611804181287),
    (7.75, 5.0, 0.3, 644.575460766474),
    (300.5, 0.05, 0.001, 0.00011272466204068281),
    (1 + 2**-20, 0.5, 0.1, 1.3171358147077141e-9),
    (1 + 2**-30, 3.0, 0.001, 3.1355603288919629e-13),
    (1 + 2**-20, 10.0, 1e-5, 3.5751479035522136e-10),
    (1 + 2**-20, 120.0, 0.001, 6.8824798251007744e-6),
    (1 + 2**-11, 150.0, 1e-5, 0.0024102047831325059),
]


def finite_sum(order, t, gamma):
    """log F of an integer order: F = 1 + sum_{l=2}^a binom(a,l) (1-gamma)^(a-l) gamma^l (e^{(l^2-l) t/2} - 1)."""
    count = np.arange(2.0, order + 1)
    log_binomial = gammaln(order + 1) - gammaln(count + 1) - gammaln(order - count + 1)
    exponent = (count * count - count) * t / 2
    logs = log_binomial + (order - count) * math.log1p(-gamma) + count * math.log(gamma) + log_expm1(exponent)
    return float(np.logaddexp(0.0, np.logaddexp.reduce(logs)))


def test_the_integral_agrees_with_the_finite_sum_at_integers_from_tiny_to_huge_signals():
    rng = np.random.default_rng(1)
    cases = [
        (int(rng.integers(2, 257)), 10 ** rng.uniform(-8, 4), 10 ** rng.uniform(-5, -1e-4))
        for _ in range(400)
    ]
    extreme = itertools.product(
        (2, 7, 100), (1e-8, 0.01, 9.0, 64.0, 2500.0, 1e4), (1e-60, 1e-12, 1 - 1e-6, 1 - 1e-12)
    )
    for order, t, gamma in itertools.chain(cases, extreme):
        expected = finite_sum(order, t, gamma)
        assert log_moment_integral(order, t, gamma) == pytest.approx(expected, rel=1e-11, abs=0)


@pytest.mark.parametrize(("order", "root", "gamma", "value"), GOLDEN)
def test_fractional_orders_match_forty_digits(order, root, gamma, value):
    assert log_moment(order, root**2, gamma) == pytest.approx(value, rel=1e-11, abs=0)


@pytest.mark.parametrize("order", [1.3, 2.0, 5.5, 40.0])
@pytest.mark.parametrize("gamma", [1e-4, 0.05, 0.7])
def test_f_is_convex_increasing_and_zero_at_zero(order, gamma):
    t = np.linspace(0, 3, 31)
    f = np.array([log_moment(order, s, gamma) for s in t])
    assert f[0] == 0
    assert log_moment(order, math.inf, gamma) == math.inf
    assert (np.diff(f) > 0).all()
    assert (np.diff(f, 2) > -1e-13 * f[-1]).all()  # f tends to a line for large t
    assert f[1] < f[-1] / 30 * (1 - 1e-4)


def test_the_limit_for_large_signals_continues_the_integral_and_is_the_finite_sum_at_integers():
    for order, gamma in itertools.product((1.05, 2.0, 7.5), (1e-5, 0.4, 0.999)):
        limit = log_moment(order, TWO_BUMPS, gamma)
        assert limit == pytest.approx(log_moment_integral(order, TWO_BUMPS, gamma), rel=1e-12, abs=0)
    for order, gamma, t in itertools.product((2, 5, 40), (1e-5, 0.3, 1 - 1e-9), (TWO_BUMPS, 1e6, 1e12)):
        assert log_moment(order, t, gamma) == pytest.approx(finite_sum(order, t, gamma), rel=1e-12, abs=0)


# events of dp_accounting


SPARSE = EpochEvent(noise_multiplier=0.05, keep_probability=0.01, linf_over_l2=0.006)
PLAIN = EpochEvent(noise_multiplier=5.0, keep_probability=1.0, linf_over_l2=1.0)


@pytest.mark.parametrize(
    ("adjacency", "relation"),
    [("zero_out", NeighboringRelation.REPLACE_SPECIAL), ("replace", NeighboringRelation.REPLACE_ONE)],
)
def test_a_plain_epoch_is_a_gaussian_whose_epsilon_dp_accounting_confirms(adjacency, relation):
    accountant = PLDAccountant(relation)
    accountant.compose(to_dp_event(PLAIN), 4)
    exact = Ledger((PLAIN,) * 4).spent(delta=1e-5, adjacency=adjacency).epsilon
    assert accountant.get_epsilon(1e-5) == pytest.approx(exact, rel=1e-3)


COUNTED = EpochEvent(0.05, 0.01, 0.006, 20.0), EpochEvent(5.0, 1.0, 1.0, 20.0)  # these also release a count


@pytest.mark.parametrize(("adjacency", "times"), [("zero_out", 1), ("replace", 2)])
def test_replacement_doubles_what_a_client_moves_of_sums_and_not_of_counts(adjacency, times):
    theirs = PLDAccountant(NeighboringRelation.REPLACE_SPECIAL)
    theirs.compose(to_dp_event(EpochEvent(5.0 / times, 1.0, 1.0, 20.0)), 4)
    ours = privacy_spent(COUNTED[1], 4, delta=1e-5, adjacency=adjacency)
    assert ours.epsilon == pytest.approx(theirs.get_epsilon(1e-5), rel=1e-3)
    for event in COUNTED:
        for order in (1.1, 3.7, 64.0):
            both, sums = (divergence({one: 3}, order, adjacency) for one in (event, event.without_count))
            assert both - sums == pytest.approx(3 * order / (2 * 20.0**2), rel=1e-9)
    theirs = ZeroOutAccountant().compose(to_dp_event(COUNTED[0]), 3).get_epsilon(1e-5)
    assert theirs == pytest.approx(privacy_spent(COUNTED[0], 3, delta=1e-5).epsilon, rel=2e-2)
    with pytest.raises(NotCoveredError, match="accountant=tight is proved for the sums"):
        privacy_spent(COUNTED[0], 3, delta=1e-5, accountant="tight")


def test_our_epochs_compose_in_an_accountant_of_dp_accounting_by_adding_divergences():
    """The Renyi curve of rho = 0.125 is that of a Gaussian with noise multiplier 2, which we account ourselves."""
    alone = ZeroOutAccountant().compose(to_dp_event(SPARSE), 3)
    ours = Ledger((SPARSE,) * 3)
    assert ours.spent(delta=1e-5).epsilon <= alone.get_epsilon(1e-5) * (1 + 1e-9)
    assert alone.get_epsilon(1e-5) == pytest.approx(ours.spent(delta=1e-5).epsilon, rel=2e-2)
    nested = dp_event.ComposedDpEvent(
        [dp_event.SelfComposedDpEvent(to_dp_event(SPARSE), 3), dp_event.ZCDpEvent(rho=0.125, xi=0.0)]
    )
    epsilon, order = ZeroOutAccountant().compose(nested).get_epsilon_and_optimal_order(1e-5)
    total = order * 0.125 + 3 * rdp(SPARSE, order)
    assert epsilon == pytest.approx(epsilon_of_order(order, total, 1e-5), rel=1e-9)
    exact = ours.record(EpochEvent(2.0, 1.0, 1.0)).spent(delta=1e-5).epsilon
    assert exact <= epsilon == pytest.approx(exact, rel=1e-2)
    assert alone.compose(to_dp_event(EpochEvent(2.0, 1.0, 1.0))).get_epsilon(1e-5) == pytest.approx(epsilon)


def test_dp_accountings_renyi_curve_is_not_used_under_replacement_because_it_ignores_the_relation():
    theirs = RdpAccountant(neighboring_relation=NeighboringRelation.REPLACE_ONE)
    theirs.compose(dp_event.GaussianDpEvent(5.0), 4)
    exact = Ledger((PLAIN,) * 4).spent(delta=1e-5, adjacency="replace").epsilon
    assert exact == pytest.approx(gaussian_epsilon(4 / 5, 1e-5))
    assert exact == pytest.approx(3.387, abs=1e-3)
    assert theirs.get_epsilon(1e-5) == pytest.approx(1.694, abs=1e-3)


def test_compositions_that_are_not_valid_are_refused():
    """A sampled epoch of ours has no known divergence; loss distributions of one would be a lower bound."""
    ours = to_dp_event(SPARSE)
    for accountant, event in (
        (PLDAccountant(NeighboringRelation.REPLACE_SPECIAL), ours),
        (RdpAccountant(), ours),
        (ZeroOutAccountant(), dp_event.PoissonSampledDpEvent(0.1, ours)),
    ):
        with pytest.raises(UnsupportedEventError):
            accountant.compose(event)
    without_noise = ZeroOutAccountant().compose(to_dp_event(EpochEvent(0.0, 0.1, 0.5)))
    assert without_noise.get_epsilon(1e-5) == float("inf")

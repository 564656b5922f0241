"""log F_a(t): finite sum, integral and a brute-force twin agree wherever an accountant may ask."""

import math

import numpy as np
import pytest
from scipy.integrate import quad

from fedmf.accounting.moments import TWO_BUMPS, log_moment, log_moment_integral, log_moment_sum

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


def twin(order, t, gamma):
    """F by adaptive quadrature of its definition: slow, obvious, good to 1e-9 where F is far from 1."""
    root = math.sqrt(t)

    def integrand(x):
        return (
            (1 + gamma * math.expm1(root * x - t / 2)) ** order
            * math.exp(-x * x / 2)
            / math.sqrt(2 * math.pi)
        )

    return math.log(quad(integrand, -12, order * root + 12, limit=400, epsabs=0, epsrel=1e-12)[0])


@pytest.mark.parametrize(
    ("order", "root", "gamma"),
    [(1.5, 1.0, 0.5), (3.25, 0.7, 0.2), (6.5, 1.3, 0.9), (1.1, 4.0, 0.5), (12.5, 0.9, 0.05), (2.0, 2.0, 0.3)],
)
def test_the_integral_is_the_definition(order, root, gamma):
    assert log_moment(order, root**2, gamma) == pytest.approx(twin(order, root**2, gamma), rel=1e-9, abs=0)


def test_the_integral_agrees_with_the_finite_sum_at_integers_from_tiny_to_huge_signals():
    rng = np.random.default_rng(1)
    for _ in range(400):
        gamma = 10 ** rng.uniform(-5, -1e-4)
        t = 10 ** rng.uniform(-8, 4)
        order = int(rng.integers(2, 257))
        assert log_moment_integral(order, t, gamma) == pytest.approx(
            log_moment_sum(order, t, gamma), rel=1e-11, abs=0
        )


@pytest.mark.parametrize("gamma", [1e-60, 1e-12, 1 - 1e-6, 1 - 1e-12])
def test_the_integral_agrees_with_the_sum_at_extreme_keep_probabilities(gamma):
    for root in (1e-4, 0.1, 3.0, 8.0, 50.0, 100.0):
        for order in (2, 7, 100):
            expected = log_moment_sum(order, root**2, gamma)
            assert log_moment_integral(order, root**2, gamma) == pytest.approx(expected, rel=1e-11, abs=0)


@pytest.mark.parametrize(("order", "root", "gamma", "value"), GOLDEN)
def test_fractional_orders_match_forty_digits(order, root, gamma, value):
    assert log_moment(order, root**2, gamma) == pytest.approx(value, rel=1e-11, abs=0)


@pytest.mark.parametrize("order", [1.3, 2.0, 5.5, 40.0])
@pytest.mark.parametrize("gamma", [1e-4, 0.05, 0.7])
def test_f_is_convex_increasing_and_zero_at_zero(order, gamma):
    t = np.linspace(0, 3, 31)
    f = np.array([log_moment(order, s, gamma) for s in t])
    assert f[0] == 0
    assert (np.diff(f) > 0).all()
    assert (np.diff(f, 2) > -1e-13 * f[-1]).all()  # f tends to a line for large t
    assert f[1] < f[-1] / 30 * (1 - 1e-4)


def test_the_moment_is_log_convex_and_increasing_in_the_order():
    orders = np.linspace(1.01, 12, 60)
    values = np.array([log_moment(a, 0.5, 0.1) for a in orders])
    assert (np.diff(values) > 0).all()
    assert (np.diff(values, 2) > -1e-13).all()
    assert (np.diff(values / (orders - 1)) > 0).all()


def test_without_sparsification_the_moment_is_that_of_a_gaussian():
    for order in (1.001, 2.5, 70.0):
        assert log_moment(order, 0.3, 1.0) == pytest.approx(order * (order - 1) * 0.15, rel=1e-15)
        assert log_moment(order, 0.3, 1 - 1e-12) == pytest.approx(log_moment(order, 0.3, 1.0), rel=1e-9)


def test_an_infinite_signal_is_infinite_and_none_is_zero():
    assert log_moment(3.5, math.inf, 0.1) == math.inf
    assert log_moment(3, 1e308, 0.1) == math.inf
    assert log_moment(3.5, 0.0, 0.1) == 0


@pytest.mark.parametrize("order", [1.05, 2.0, 7.5])
@pytest.mark.parametrize("gamma", [1e-5, 0.4, 0.999])
def test_the_limit_for_large_signals_continues_the_integral(order, gamma):
    limit = log_moment(order, TWO_BUMPS, gamma)
    assert limit == pytest.approx(log_moment_integral(order, TWO_BUMPS, gamma), rel=1e-12, abs=0)


def test_the_limit_for_large_signals_is_the_finite_sum_at_integers():
    for order in (2, 5, 40):
        for gamma in (1e-5, 0.3, 1 - 1e-9):
            for t in (TWO_BUMPS, 1e6, 1e12):
                expected = log_moment_sum(order, t, gamma)
                assert log_moment(order, t, gamma) == pytest.approx(expected, rel=1e-12, abs=0)


def test_small_orders_above_one_keep_their_accuracy():
    # As a -> 1 the divergence tends to the Kullback-Leibler one, E (1 + y) log(1 + y).
    t, gamma = 0.25, 0.1
    root = math.sqrt(t)

    def integrand(x):
        y = gamma * math.expm1(root * x - t / 2)
        return ((1 + y) * math.log1p(y) - y) * math.exp(-x * x / 2) / math.sqrt(2 * math.pi)

    limit = quad(integrand, -12, 13, epsabs=0, epsrel=1e-12)[0]
    assert log_moment(1 + 1e-6, t, gamma) / 1e-6 == pytest.approx(limit, rel=1e-5, abs=0)

"""The quadratic-variation bound in its parts: every number errs upwards, and by little."""

import itertools
import math

import mpmath
import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import log_ndtr

from fedmf.accounting import EpochEvent, quadratic_variation
from fedmf.accounting.gaussian import gaussian_delta, gaussian_epsilon
from fedmf.accounting.quadratic_variation import (
    Parameters,
    Setting,
    certified_epsilon,
    certified_gaussian_epsilon,
    hitting_probability,
    least_stop,
    log_cell_masses,
    log_expm1,
    log_exponential_moment,
)
from fedmf.accounting.tight import _best, _Family, make_setting

ORACLES = [  # lam, gamma, tau, psi to 40 digits
    (1.0, 0.01, 0.0048, 4.822632569e-7),
    (2000.0, 0.01, 0.0048, 9.645353436e-4),
    (300.0, 0.001, 1.0, 227.0790930531),
    (6.0, 0.001, 100.0, 593.0920194017),
    (1e5, 0.01, 0.001, 0.0100100023987),
]
GRID = list(itertools.product((1e-3, 0.05, 0.6), (1e-3, 0.05, 1.0, 9.0), (0.01, 1.0, 30.0, 400.0)))


@pytest.mark.parametrize(("lam", "gamma", "tau", "psi"), ORACLES)
def test_psi_is_above_its_oracle_by_two_millionths_at_most(lam, gamma, tau, psi):
    found = log_exponential_moment(lam * tau, tau=tau, keep_probability=gamma)
    assert psi * (1 - 1e-10) <= found <= psi * (1 + 2e-6)


def moment(s, t, gamma, *, below=math.inf, under_q=False):
    """E_P (or E_Q) of expm1(s p^2) over log L < below, to 25 digits."""
    root, c = mpmath.sqrt(t), 1 - mpmath.mpf(gamma)

    def integrand(x):
        y_minus_c = gamma * mpmath.exp(root * x - mpmath.mpf(t) / 2)
        y = c + y_minus_c
        return (1 if under_q else y) * mpmath.expm1(s * (y_minus_c / y) ** 2) * mpmath.npdf(x)

    end = min((below + t / 2) / math.sqrt(t), math.sqrt(t) + math.sqrt(2 * (s + 90)))
    with mpmath.workdps(25):
        return mpmath.quad(
            integrand, np.linspace(-14, end, 40).tolist(), maxdegree=4, method="gauss-legendre"
        )


@pytest.mark.parametrize(("gamma", "tau", "s"), GRID[::3])
def test_psi_is_above_the_integral_by_little_with_a_stop_and_without(gamma, tau, s):
    exact = float(mpmath.log1p(moment(s, tau, gamma)))
    assert (
        exact * (1 - 1e-12)
        <= log_exponential_moment(s, tau=tau, keep_probability=gamma)
        <= exact * (1 + 1e-5)
    )
    stop = least_stop(tau) * 1.5
    pi = hitting_probability(stop, tau=tau, keep_probability=gamma)
    stopped = 1 / (1 + math.exp(-stop) * (1 - gamma) / gamma)
    total = moment(s, tau, gamma, below=stop) + pi * mpmath.expm1(s * stopped**2)
    exact = float(mpmath.log1p(total))
    found = log_exponential_moment(s, tau=tau, keep_probability=gamma, stop=stop)
    assert exact * (1 - 1e-8) <= found <= exact * (1 + 1e-5)


def test_cell_masses_keep_their_digits_in_the_middle_and_far_out():
    for low, width in (
        (-13.0, 0.003),
        (-0.001, 0.003),
        (0.0, 0.003),
        (7.0, 0.004),
        (29.9, 0.01),
        (77.0, 0.011),
    ):
        with mpmath.workdps(40):
            exact = mpmath.quad(mpmath.npdf, [low, low + width])
            found = log_cell_masses(np.array([low, low + width]))[0]
            assert abs(mpmath.log(exact) - found) < 2e-10


@pytest.mark.parametrize(("gamma", "tau", "stop"), [(0.01, 0.05, 0.6), (0.3, 1.0, 2.5), (0.001, 4.0, 5.0)])
def test_the_probability_of_a_stop_is_the_integral_of_first_passages(gamma, tau, stop):
    def density(t, drift):
        return stop / math.sqrt(2 * math.pi * t**3) * math.exp(-((stop - drift * t) ** 2) / (2 * t))

    exact = (1 - gamma) * quad(density, 0, tau, (-0.5,), epsabs=0)[0]
    exact += gamma * quad(density, 0, tau, (0.5,), epsabs=0)[0]
    found = hitting_probability(stop, tau=tau, keep_probability=gamma)
    assert exact * (1 - 1e-12) <= found <= exact * (1 + 1e-7)


@pytest.mark.parametrize(("gamma", "tau", "s"), GRID[::5])
def test_psi_per_time_grows_with_time(gamma, tau, s):
    """Step 5: psi(t) <= (t/tau) psi(tau), which the ratio form K psi needs."""
    whole = log_exponential_moment(s, tau=tau, keep_probability=gamma)
    for share in (0.9, 0.5, 0.1):
        part = float(mpmath.log1p(moment(s * share, tau * share, gamma)))
        assert part <= share * whole


@pytest.mark.parametrize(("gamma", "tau", "s"), GRID[1::5])
def test_the_moment_without_the_client_is_no_larger(gamma, tau, s):
    """Step 5: E_Q g(p) <= E_P g(p), Chebyshev's inequality for two increasing functions."""
    assert moment(s, tau, gamma, under_q=True) <= moment(s, tau, gamma)


@pytest.mark.parametrize("tau", [0.001, 0.1, 3.0])
def test_the_probability_of_a_stop_per_time_grows_with_time_from_the_least_stop_on(tau):
    """Step 7: pi(t) <= (t/tau) pi(tau)."""
    stop = least_stop(tau)
    assert stop**2 >= 3 * tau + tau**2 / 4
    rates = [
        hitting_probability(stop, tau=t, keep_probability=0.05) / t for t in np.linspace(0.05 * tau, tau, 40)
    ]
    assert (np.diff(rates) >= 0).all()


def test_a_stop_below_the_least_proves_nothing():
    setting = Setting(tau=0.01, keep_probability=0.1, coordinates=1.0)
    least = least_stop(setting.tau)
    assert certified_epsilon(setting, Parameters(10.0, 1e-3, least), 0.5) < math.inf
    assert certified_epsilon(setting, Parameters(10.0, 1e-3, 0.99 * least), 0.5) == math.inf


def test_the_stops_are_paid_for_out_of_delta():
    setting, stop = Setting(tau=1.0, keep_probability=0.01, coordinates=3.0), least_stop(1.0)
    hits = 3 * hitting_probability(stop, tau=1.0, keep_probability=0.01)
    assert certified_epsilon(setting, Parameters(10.0, 1e-3, stop), hits + 0.9e-3) == math.inf
    assert certified_epsilon(setting, Parameters(10.0, 1e-3, stop), hits + 2e-3) < math.inf


@pytest.mark.parametrize(("mu_squared", "delta"), [
    (1e-6, 1e-5), (0.01, 1e-7), (1.0, 1e-3), (40.0, 1e-12), (1e4, 1e-5),
    *itertools.product((1e-4, 0.3, 7.0), (1e-9, 1e-5, 1e-2)),
])  # fmt: skip
def test_the_gaussian_step_holds_with_the_margins_on_mu_and_on_its_delta(mu_squared, delta):
    """Both of 1e-9, as the error budget of the evaluation asks; a search ends within an ulp of breaking them."""
    epsilon = certified_gaussian_epsilon(mu_squared, delta)
    mu = math.sqrt(mu_squared * (1 + 1e-9))
    assert gaussian_delta(epsilon, mu) * (1 + 1e-9) <= delta
    if epsilon > 0:
        assert gaussian_delta(epsilon * (1 - 1e-11), mu) * (1 + 1e-9) > delta * (1 - 1e-8)
    assert epsilon == pytest.approx(gaussian_epsilon(math.sqrt(mu_squared), delta), rel=1e-6, abs=1e-15)


def test_there_is_no_gaussian_step_without_delta_or_a_finite_mu():
    assert certified_gaussian_epsilon(1.0, 0.0) == math.inf
    assert certified_gaussian_epsilon(math.nan, 0.1) == math.inf


def test_formula_a_gives_no_less_than_the_regression():
    """Where the second peak of the integrand, near p = 1, was cut off, it gave less."""
    setting = make_setting(EpochEvent(0.0095243, 0.001, 0.0059351), 16)
    _, parameters = _best(_Family(setting, None), 1e-5, math.inf)
    assert 2.2469 <= certified_epsilon(setting, parameters, 1e-5) < 2.25


def test_the_certificate_holds_whatever_parameters_a_search_ends_with():
    setting = make_setting(EpochEvent(0.0860827, 0.01, 0.0059351), 16)
    best = certified_epsilon(setting, _best(_Family(setting, None), 1e-5, math.inf)[1], 1e-5)
    for scaled_lam, tail in itertools.product((1e-5, 1.0, 600.0, 3e3, 1e6), (1e-12, 1e-8, 9e-6, 2e-5)):
        assert certified_epsilon(setting, Parameters(scaled_lam, tail), 1e-5) >= best * (1 - 1e-4)


@pytest.mark.parametrize(("s", "tau", "gamma"), [(1.0, 0.0048, 0.01), (0.1, 1.0, 0.1), (0.01, 0.5, 0.3)])
def test_psi_is_rounded_upwards_by_its_margin(s, tau, gamma):
    root = math.sqrt(tau)
    end = root + math.sqrt(2 * (s + 80))
    integral = quadratic_variation._log_integral(s, tau, gamma, end)
    bound = np.logaddexp(integral, s + log_ndtr(root - end))
    assert log_expm1(log_exponential_moment(s, tau=tau, keep_probability=gamma)) >= bound + 5e-10


@pytest.mark.parametrize("left", [-1.0, 0.0])
def test_what_lies_left_of_the_grid_is_bounded_and_not_dropped(left, monkeypatch):
    truth = log_exponential_moment(2.0, tau=0.3, keep_probability=0.4)
    monkeypatch.setattr(quadratic_variation, "LEFT", left)
    assert log_exponential_moment(2.0, tau=0.3, keep_probability=0.4) >= truth * (1 - 1e-5)
